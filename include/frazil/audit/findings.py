"""Findings of an audit: errors, and records that could not be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    DUPLICATES = "duplicates"
    """An offset occurs more than once in the table, or in the dead-letter table."""
    MISSING = "missing"
    """Kafka has a record and a commit claims it, but no table has it."""
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
    """One source of evidence no longer has the records, but another source was compared."""
    NOT_COMPARED = "not compared"
    """Committed records could not be compared with any source."""
    SKIPPED = "skipped"
    READ_AGAIN = "read again"
    """Offsets were committed more than once, for example after a reset, and are counted each time."""
    CHANGED = "changed"
    """Commits of another program deleted or overwrote rows."""

    @property
    def is_wrong(self) -> bool:
        return self not in {
            FindingKind.UNCHECKED,
            FindingKind.NOT_COMPARED,
            FindingKind.SKIPPED,
            FindingKind.READ_AGAIN,
            FindingKind.CHANGED,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    count: int
    """Number of offsets or rows."""
    sentence: str
    where: str
    """The topic-partition, or the stream."""
    keys: tuple[Mapping[str, Any], ...] = ()
    """The first keys that the finding is about, for a stream with a key: values by column, as stored."""
