"""Immutable values that the driver and the tasks of a merge exchange, as pickles or JSON.

A stream with `mode: upsert` stages *change files* (`frazil.ingest.changes`), which are never part of a table. A merge
turns change files into data files and position-delete files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frazil.ingest.contract import PartitionKey, StagedFile, TargetTable

RowRemoval = Literal["auto", "copy-on-write", "merge-on-read"]
"""How rows are removed from a data file: `copy-on-write` rewrites the file, `merge-on-read` names the rows in a delete
file, and `auto` chooses by their share. A delete file is a position-delete file or, in format version 3, a deletion
vector.
"""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The declared merge settings, with the table's column names."""

    key: tuple[str, ...]
    """The key columns: primitive, never null, and never floating-point."""
    order_by: str | None = None
    """The column that orders changes; null is lowest. A change is stale if its value is below the row's value.

    If the values are equal, or this column is not declared, Kafka's order decides: offsets within a partition,
    timestamps across partitions. A delete without a value removes everything before the delete in Kafka's order.
    """
    by_position: bool = False
    """Whether `order_by` is a position in a source's log (`frazil.ingest.source_log`). Changes in a newer log are not
    stale: see `newer_log_mask`. An upsert without a position gets the highest position before it in Kafka.
    """
    replays: bool = False
    """Whether the changes are replayed dead letters, which are merged after later records. For equal values, or without
    `order_by`, a change replaces only rows of earlier records in Kafka's order.
    """
    landed: tuple[tuple[str, int], ...] = ()
    """If a topic was recreated or a log truncated: by `topic/partition`, the offset after the last record landed since.

    Rows at or after this offset come from the former topic or log, so every change is newer than these rows.
    """
    ignored: tuple[str, ...] = ()
    """The Kafka coordinates. A change of coordinates alone does not count as an update."""
    traced: bool = True
    """Whether rows take the coordinates of changes without new values. Older dead letters need this."""
    row_removal: RowRemoval = "auto"
    event_time: str | None = None
    """The event-time column. With `window_us`, changed rows are counted by window."""
    window_us: int | None = None
    within_us: int | None = None
    """The event-time distance up to which rows of a key are repeats (dedupe).

    With `within_us`, the changes are staged data files, and `key` and `event_time` are the only other rules that apply.
    """


@dataclass(frozen=True, slots=True)
class DeleteFile:
    path: str
    records: int
    alone: bool
    """Whether the delete file concerns only one data file. A new delete file can then replace it."""
    key: str = ""
    """The deletion vector's name in its Puffin file; empty for other delete files."""

    @property
    def removable_key(self) -> str | None:
        """The key with which a merge may drop this delete file; None if it concerns other data files, too."""
        return self.key or (self.path if self.alone else None)


@dataclass(frozen=True, slots=True)
class TableFile:
    path: str
    records: int
    bytes: int
    spec_id: int
    partition: PartitionKey
    deletes: tuple[DeleteFile, ...] = ()
    constants: tuple[tuple[int, str], ...] = ()
    """Values of identity partitions, by field id. Imported files often omit these columns."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One task of a merge. Equal tasks have equal results."""

    index: int
    changes: tuple[str, ...]
    """Change files. Their rows are numbered in this order."""
    files: tuple[TableFile, ...]
    inserts: bool
    """Whether this task inserts keys without a row. For each key, exactly one task inserts."""
    matched: bytes = b""
    """The changes that earlier tasks matched (`BitMap64`), if this task inserts the unmatched changes."""
    share: tuple[str, ...] = ()
    """The files in `changes` that this task of a dedupe rewrites."""


@dataclass(frozen=True, slots=True)
class MergeContext:
    stream: str
    rules: MergeRules
    changes: TargetTable
    """Schema and storage of the change files."""
    target: TargetTable
    """The table, and the folder of new files."""


@dataclass(frozen=True, slots=True)
class MergeCounts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    """Number of changes with a lower `order_by` value than the row's value."""
    superseded: int = 0
    unchanged: int = 0
    """Number of updates without new values, of records that are read again, and of deletes of unknown keys."""
    repeated: int = 0
    """Number of rows that repeat another row in the table or in the batch."""

    def __add__(self, other: MergeCounts) -> MergeCounts:
        return MergeCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class MergeResult:
    files: tuple[StagedFile, ...]
    """Data files, and delete files for one data file each."""
    replaced: tuple[str, ...]
    """Rewritten data files; with dedupe, files of the task's `share`."""
    dropped_deletes: tuple[str, ...]
    """Keys of delete files that are no longer needed, or that a delete file in `files` replaces."""
    counts: MergeCounts
    matched: bytes = b""
    """The changes with keys in this task's files, as a `BitMap64`; empty if the task inserts."""
    windows: Mapping[int, int] = field(default_factory=dict)
    """Number of changed rows by window start (us since 1970)."""
