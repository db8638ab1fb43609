"""What passes between the driver and the tasks of a merge: plain frozen values that pickle and turn into JSON.

A stream with `mode: upsert` stages *change files* (`frazil.ingest.changes`): Parquet with the table's columns and some
of our own, one row for each change, in any order, several for a key. They are journaled like data files, but no table
ever has them. A merge turns them into data files and position-delete files against the table as it stands. It is
repeated where the table changes meanwhile; a task whose table files and changes are the same as before keeps its
result.

A table of such a stream has at most one row for each key.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from frazil.ingest.contract import PartitionKey, StagedFile, TargetTable

How = Literal["auto", "copy-on-write", "merge-on-read"]
"""How rows leave a data file. `copy-on-write`: the file is written anew without them. `merge-on-read`: a
position-delete file names them. `auto`: by the share of the file's rows that have left it."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What a merge is told by the stream's declaration. Columns are named as in the table."""

    key: tuple[str, ...]
    """Primitive columns, never null, none of them a float."""
    order_by: str | None = None
    """A change whose value is below that of the table's row, or of another change of the batch, is stale. Null is below
    all. Among equals, and without a column, the later record wins. Within a topic-partition that is the greater offset.
    Of the winners of several topic-partitions it is the one with the greater Kafka timestamp, then topic and partition.
    A delete without a value, such as a tombstone, counts where Kafka has it: what came before it is gone, by offset in
    its topic-partition, and by Kafka timestamp in others.
    """
    by_position: bool = False
    """Whether `order_by` has positions in the log of a source (`frazil.ingest.source_log`). Then a change of a log that
    began anew is not below a row, or a change of its topic-partition, that has a higher position: `began_anew`.
    One without a position, which is no delete, counts where Kafka has it, at the position before it.
    """
    replays: bool = False
    """Whether the changes are dead letters that are merged after records which Kafka has after them. Then among equals,
    and without a column, the table's row stays unless its record came before the letter: in the letter's own
    topic-partition by offset, in another one by Kafka timestamp. A row that does not tell its record stays.
    """
    ignored: tuple[str, ...] = ()
    """Columns that do not make an update: the coordinates."""
    traced: bool = True
    """Whether a change that leaves its row as it was is written all the same, if its record came later than the row's:
    the stream has dead letters, and a letter of between the two is older than the row.
    """
    how: How = "auto"
    event_time: str | None = None
    """The column and `window_us` by which changed rows are counted."""
    window_us: int | None = None
    within_us: int | None = None
    """For a stream that drops repeats: how near rows of a key are in event time of which only the first is kept. Then
    the changes are rows, staged as data files, and nothing else of these rules but the key and the event time counts.
    """


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position-delete file of the table that has rows of one data file or of several."""

    path: str
    records: int
    alone: bool
    """Whether all of its rows are of one data file, so that it can be replaced with that file's next one."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of the table, as its snapshot has it."""

    path: str
    records: int
    bytes: int
    spec_id: int
    partition: PartitionKey
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One task's share: some changes against some of the table's files.

    Equal tasks have equal results, because files never change.
    """

    index: int
    changes: tuple[str, ...]
    """Paths of change files, in the order that numbers their rows from 0."""
    files: tuple[TableFile, ...]
    inserts: bool
    """Whether no other task's files can have these keys: then this task inserts what its own files lack."""
    matched: bytes = b""
    """For a task without files that inserts what no task has matched: the numbers of the changes that some did, as a
    serialised `pyroaring.BitMap64`."""
    share: tuple[str, ...] = ()
    """For a task that drops repeats, and is one of the last: which of `changes` it writes anew."""

    def to_json(self) -> dict[str, Any]:
        """`matched` is in base64."""
        return {**dataclasses.asdict(self), "matched": base64.b64encode(self.matched).decode()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MergeTask:
        files = tuple(
            TableFile(
                **{
                    **file,
                    "partition": tuple(file["partition"]),
                    "deletes": tuple(DeleteFile(**delete) for delete in file["deletes"]),
                }
            )
            for file in value["files"]
        )
        matched = base64.b64decode(value["matched"])
        return cls(value["index"], tuple(value["changes"]), files, value["inserts"], matched, tuple(value["share"]))


@dataclass(frozen=True, slots=True)
class MergeContext:
    """All that the tasks of one merge have in common."""

    stream: str
    rules: MergeRules
    changes: TargetTable
    """The schema and storage of the change files."""
    target: TargetTable
    """The table; new files go to its `folder`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Changes by what became of them, and rows by what became of them. Each change is counted once."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    """Below the table's row in `order_by`."""
    superseded: int = 0
    """Below another change of the same batch and key."""
    unchanged: int = 0
    """Updates with the values that the row has, and deletes of keys that the table lacks."""
    repeated: int = 0
    """Rows that repeat one of the table, or of the same batch."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What one task did."""

    files: tuple[StagedFile, ...]
    """New data files, and position-delete files (`content`: "position-deletes"), each of one data file."""
    replaced: tuple[str, ...]
    """Paths of the task's data files that were written anew; of a task that drops repeats, of its share."""
    dropped_deletes: tuple[str, ...]
    """Paths of delete files that no longer delete anything, or whose rows are in one of `files`."""
    counts: Counts
    matched: bytes = b""
    """If the task did not insert: the numbers of the changes whose keys its files have, serialised as `MergeTask`'s."""
    windows: Mapping[int, int] = field(default_factory=dict)
    """Inserted, updated and deleted rows by the start of their window, in microseconds since the epoch."""
    bytes_read: int = 0

    def to_json(self) -> dict[str, Any]:
        """`matched` is in base64."""
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
            Counts(**value["counts"]),
            base64.b64decode(value["matched"]),
            {int(start): rows for start, rows in value["windows"].items()},
            value["bytes_read"],
        )
