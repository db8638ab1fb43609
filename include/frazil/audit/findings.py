"""Results of an audit: findings (errors, and records that could not be compared), and counts by topic-partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from frazil.commit.history import Period


class FindingKind(StrEnum):
    """What an audit found."""

    DUPLICATES = "duplicates"
    """An offset occurs more than once in the table, or in the dead-letter table."""
    MISSING = "missing"
    """Kafka has a committed record, but no table has it."""
    MISCOUNTED = "miscounted"
    """The tables have more or fewer rows than the commit records count."""
    ROW_AND_DEAD_LETTER = "row and dead letter"
    UNCLAIMED = "unclaimed"
    """Rows that no commit covers."""
    ROLLED_BACK = "rolled back"
    RECORD_GONE = "record gone"
    """A snapshot names a commit record that is missing or unreadable."""
    LOG_CUT = "log cut"
    """Kafka lost committed records, and assigned their offsets to new records, which no table has."""
    UNCHECKED = "unchecked"
    """One source of evidence no longer has the records, but they were compared with another source."""
    NOT_COMPARED = "not compared"
    """Committed records could not be compared with any source."""
    SKIPPED = "skipped"
    READ_AGAIN = "read again"
    """Offsets were committed more than once, for example after a reset, and are counted each time."""
    CHANGED = "changed"
    """Commits of another program deleted or overwrote rows."""

    @property
    def is_wrong(self) -> bool:
        """Whether the finding is an error, and not only a note."""
        return self not in {
            FindingKind.UNCHECKED,
            FindingKind.NOT_COMPARED,
            FindingKind.SKIPPED,
            FindingKind.READ_AGAIN,
            FindingKind.CHANGED,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of an audit."""

    kind: FindingKind
    count: int
    """Number of offsets or rows."""
    sentence: str
    where: str
    """The topic-partition, or the stream."""
    keys: tuple[Mapping[str, Any], ...] = ()
    """The first keys to which the finding applies, if the stream has a key: values by column, as stored."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Counts of one topic-partition. Offsets `[start, end)` were committed (in the audited period)."""

    topic: str
    partition: int
    start: int | None
    """The first committed offset; None if no batch is committed."""
    end: int
    rows: int
    distinct: int
    """Number of distinct records that have a row: `rows` minus `duplicates`."""
    duplicates: int
    gaps: int | None
    """Number of records that Kafka has but no table has; None if the audit does not compare with Kafka."""
    dead_letters: int
    """Number of dead letters, including those of earlier topics with the same name."""
    dropped: int = 0
    """Number of records that the transform dropped, as counted by the commit records."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit of one stream."""

    stream: str
    partitions: tuple[PartitionAudit, ...]
    findings: tuple[Finding, ...]
    batches: int
    """Number of commit records read."""
    window: Period | None = None
    """The audited period; None if all commits were audited."""
    by_key: bool = False
    """Whether records change rows by key. If so, `rows` counts changes, and rows are not compared by offset."""
    complete: bool = field(init=False)
    """Whether all committed records were compared."""
    clean: bool = field(init=False)
    """Whether the audit is complete and found no error."""

    def __post_init__(self) -> None:
        complete = not any(f.kind is FindingKind.NOT_COMPARED for f in self.findings)
        object.__setattr__(self, "complete", complete)
        object.__setattr__(self, "clean", complete and not self.wrong)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind.is_wrong)

    def with_findings(self, more: Iterable[Finding]) -> Audit:
        return replace(self, findings=(*self.findings, *more))
