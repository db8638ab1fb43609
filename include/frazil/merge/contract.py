"""Immutable values that the driver and the tasks of a merge exchange. They can be pickled, and converted to JSON.

A stream with `mode: upsert` stages *change files* (`frazil.ingest.changes`): Parquet files with the table's columns and
some internal columns. Each row is a change, in any order; a key may have several changes. Change files are journaled,
but never become part of a table. A merge turns them into data files and position-delete files for the current table. If
the table changes meanwhile, only tasks whose files differ are repeated. The table has at most one row per key.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from frazil.ingest.contract import PartitionKey, StagedFile, TargetTable

RowRemoval = Literal["auto", "copy-on-write", "merge-on-read"]
"""How rows are removed from a data file.

- `copy-on-write`: the file is rewritten without the rows.
- `merge-on-read`: a position-delete file names the rows.
- `auto`: chosen by the share of the file's rows that have been removed.
"""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The merge settings from the stream's declaration. Columns have the names that they have in the table."""

    key: tuple[str, ...]
    """Primitive columns; their values are never null, and their type is never a float."""
    order_by: str | None = None
    """The column that orders changes; null is the lowest value.

    A change is stale if its value is below that of the table's row, or of another change of the batch. Among changes
    with equal values, and without such a column, the later record wins: within a topic-partition the record with the
    greater offset. Among the winners of several topic-partitions, the greater Kafka timestamp wins, then topic and
    partition.

    A delete without a value, such as a tombstone, takes effect at its position in Kafka. It removes the changes and
    rows before that position: by offset in its own topic-partition, by Kafka timestamp in others.
    """
    by_position: bool = False
    """Whether the values of `order_by` are positions in a source's log (`frazil.ingest.source_log`).

    If so, a log that began again has lower positions than the old log, but its changes are not stale: see
    `newer_log_mask`. An upsert without a position takes effect at its place in Kafka, with the highest position before
    it.
    """
    replays: bool = False
    """Whether the changes are dead letters, which are merged after records that follow them in Kafka.

    If so, with equal values and without an order column, the table's row stays unless its record came before the dead
    letter. In the same topic-partition the offsets are compared, otherwise the Kafka timestamps. A row without
    coordinates stays.
    """
    landed: tuple[tuple[str, int], ...] = ()
    """Offsets at which the table's records end, by `topic/partition`, for recreated topics and truncated logs.

    A row at or after this offset comes from a former record, so every change of the topic-partition is later.
    """
    ignored: tuple[str, ...] = ()
    """Columns that are not compared to find updates: the Kafka coordinates."""
    traced: bool = True
    """Whether a row takes the coordinates of a later change that changes none of its values.

    This is needed with dead letters. A dead letter whose record lies between the two must be recognised as older than
    the row.
    """
    how: RowRemoval = "auto"
    """How rows are removed from data files."""
    event_time: str | None = None
    """The event-time column. With `window_us`, it counts changed rows by window."""
    window_us: int | None = None
    within_us: int | None = None
    """The event-time distance within which rows with the same key are repeats (dedupe); the first is kept.

    The changes are then rows, staged as data files. Of these rules, only the key and the event time apply.
    """


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position-delete file of the table, with deletes for one or several data files."""

    path: str
    records: int
    alone: bool
    """Whether the file has deletes of only one data file. A new delete file of that data file can then replace it."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of the table's snapshot."""

    path: str
    records: int
    bytes: int
    spec_id: int
    partition: PartitionKey
    deletes: tuple[DeleteFile, ...] = ()
    constants: tuple[tuple[int, str], ...] = ()
    """Values of identity partitions, by field id. Imported files often lack these columns."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One task of a merge. Equal tasks have equal results, because files never change."""

    index: int
    changes: tuple[str, ...]
    """Paths of change files. The rows are numbered from 0, in the order of these files."""
    files: tuple[TableFile, ...]
    inserts: bool
    """Whether only this task's files can have these keys. The task then inserts the keys that its files do not have."""
    matched: bytes = b""
    """A serialised `BitMap64` of the changes that other tasks matched; this task inserts the others."""
    share: tuple[str, ...] = ()
    """The files of `changes` that this task rewrites, if it is a task of the rewrite phase of a stream with dedupe."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; `matched` is in base64."""
        return {**dataclasses.asdict(self), "matched": base64.b64encode(self.matched).decode()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MergeTask:
        files = tuple(
            TableFile(
                **{
                    **file,
                    "partition": tuple(file["partition"]),
                    "deletes": tuple(DeleteFile(**delete) for delete in file["deletes"]),
                    "constants": tuple((field_id, value) for field_id, value in file["constants"]),
                }
            )
            for file in value["files"]
        )
        matched = base64.b64decode(value["matched"])
        return cls(value["index"], tuple(value["changes"]), files, value["inserts"], matched, tuple(value["share"]))


@dataclass(frozen=True, slots=True)
class MergeContext:
    """The values that all tasks of one merge share."""

    stream: str
    rules: MergeRules
    changes: TargetTable
    """The schema and storage of the change files."""
    target: TargetTable
    """The table into which the changes are merged. New files go to its `folder`."""


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Counts of changes and rows by outcome. Each change is counted once."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    """Changes whose `order_by` value is below that of the table's row."""
    superseded: int = 0
    """Changes that lose to another change of the same batch and key."""
    unchanged: int = 0
    """Updates that change no value, and deletes of keys that are not in the table."""
    repeated: int = 0
    """Rows that repeat a row of the table or of the same batch."""

    def __add__(self, other: MergeCounts) -> MergeCounts:
        return MergeCounts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of one task."""

    files: tuple[StagedFile, ...]
    """New data files, and new position-delete files (`content`: "position-deletes"), each for one data file."""
    replaced: tuple[str, ...]
    """Paths of the task's data files that were rewritten. For a task that drops repeats: paths of its `share`."""
    dropped_deletes: tuple[str, ...]
    """Paths of delete files that no longer delete anything, or whose deletes are in one of `files`."""
    counts: MergeCounts
    matched: bytes = b""
    """The changes whose keys are in the task's files, as in `MergeTask`. Empty for a task that inserts."""
    windows: Mapping[int, int] = field(default_factory=dict)
    """Number of inserted, updated and deleted rows by the start of their window, in microseconds since 1970."""
    bytes_read: int = 0

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values; `matched` is in base64."""
        return {
            "files": [file.to_json() for file in self.files],
            "replaced": list(self.replaced),
            "dropped_deletes": list(self.dropped_deletes),
            "counts": dataclasses.asdict(self.counts),
            "matched": base64.b64encode(self.matched).decode(),
            "windows": dict(self.windows),
            "bytes_read": self.bytes_read,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MergeResult:
        return cls(
            tuple(StagedFile.from_json(file) for file in value["files"]),
            tuple(value["replaced"]),
            tuple(value["dropped_deletes"]),
            MergeCounts(**value["counts"]),
            base64.b64decode(value["matched"]),
            {int(start): rows for start, rows in value["windows"].items()},
            value["bytes_read"],
        )
