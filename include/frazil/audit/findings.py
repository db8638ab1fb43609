"""Results of an audit: findings (errors and missing comparisons), and counts by topic-partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from frazil.commit.history import Period


class FindingKind(StrEnum):
    DUPLICATES = "duplicates"
    """An offset occurs more than once in the table, or in the dead-letter table."""
    MISSING = "missing"
    """Kafka has a committed record, but no table has it."""
    MISCOUNTED = "miscounted"
    """The tables have more or fewer rows than the commit records state."""
    ROW_AND_DEAD_LETTER = "row and dead letter"
    UNCLAIMED = "unclaimed"
    """The table has rows that no commit covers."""
    ROLLED_BACK = "rolled back"
    RECORD_GONE = "record gone"
    """A commit record that a snapshot names is missing or unreadable."""
    LOG_TRUNCATED = "log truncated"
    """Kafka lost committed records. New records at their offsets are in no table."""
    UNCHECKED = "unchecked"
    """A source of evidence no longer has the records, but another source has them."""
    NOT_COMPARED = "not compared"
    """Committed records could not be compared with any source of evidence."""
    NOT_COMMITTED = "not committed"
    """Kafka has newer records that are not committed yet."""
    SKIPPED = "skipped"
    READ_AGAIN = "read again"
    """Offsets were committed and counted repeatedly, as after a reset."""
    CHANGED = "changed"
    """Another program deleted or overwrote rows."""

    @property
    def is_wrong(self) -> bool:
        notes = {FindingKind.UNCHECKED, FindingKind.NOT_COMPARED, FindingKind.NOT_COMMITTED, FindingKind.SKIPPED}
        return self not in notes | {FindingKind.READ_AGAIN, FindingKind.CHANGED}


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    count: int
    sentence: str
    where: str
    keys: tuple[Mapping[str, Any], ...] = ()
    """Values of the first affected keys by column, as stored; empty without a key."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Counts of one partition. `[start, end)` are the committed offsets (of the audited period)."""

    topic: str
    partition: int
    start: int | None
    end: int
    rows: int
    distinct: int
    """Number of records with a row."""
    duplicates: int
    gaps: int | None
    """Number of records in Kafka that are in no table; None without a comparison with Kafka."""
    dead_letters: int
    """Number of dead letters, including dead letters of earlier topics with the same name."""
    dropped: int = 0
    """Number of records that the transform dropped, according to commit records."""
    of_former_topics: int = 0
    """Number of rows from earlier topics with the same name; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Audit:
    stream: str
    partitions: tuple[PartitionAudit, ...]
    findings: tuple[Finding, ...]
    batches: int
    window: Period | None = None
    by_key: bool = False
    """Whether records change rows by key. `rows` then counts changes."""
    repeats: int | None = None
    """Number of rows that `dedupe` dropped; None if unknown, or without `dedupe`."""
    complete: bool = field(init=False)
    """Whether all committed records were compared."""
    clean: bool = field(init=False)

    def __post_init__(self) -> None:
        complete = not any(f.kind is FindingKind.NOT_COMPARED for f in self.findings)
        object.__setattr__(self, "complete", complete)
        object.__setattr__(self, "clean", complete and not self.errors)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind.is_wrong)

    def with_findings(self, findings: Iterable[Finding]) -> Audit:
        return replace(self, findings=(*self.findings, *findings))
