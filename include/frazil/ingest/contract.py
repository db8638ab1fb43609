"""Values exchanged between the driver and its executors: frozen, picklable, convertible to JSON.

One batch has one `StageContext`, and one `StageTask` per Spark task; each task returns a `StageResult`.
No record returns to the driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from frazil.ingest.schema_drift import NO_DRIFT, SchemaDrift
from frazil.offsets.spans import TopicPartition

Target = str
"""A table of a batch: "main", "dead-letters", or the identifier (with a dot) of a table that the stream routes to."""


def is_routed(target: Target) -> bool:
    return "." in target


Content = Literal["data", "candidates", "changes", "position-deletes"]
"""Content of a staged file.

`data`: rows of its target. `candidates`: rows that are dropped at commit if they repeat others. `changes`: changes of
rows, which never enter a table. `position-deletes`: positions of deleted rows.
"""


PartitionKey = tuple[str | None, ...]
"""A table partition: per partition field, an Iceberg single-value serialisation in base64."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records `[start, end)` of one topic-partition. Offsets may be missing (compaction, transactions)."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StageTask:
    """The ranges that one Spark task reads. Several Kafka partitions may share a task, and thus a file."""

    index: int
    ranges: tuple[OffsetRange, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageTask:
        return cls(value["index"], tuple(OffsetRange(**r) for r in value["ranges"]))


LETTERS = ".letters"
"""Suffix of Parquet files with copies of dead letters, whose bytes are decoded as if they came from Kafka."""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of records that a backfill reads instead of Kafka, as listed."""

    path: str
    bytes: int
    modified_ms: int
    ranges: tuple[OffsetRange, ...]
    """First to last record of each topic-partition."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table to write files for, as its metadata was when the batch began.

    `schema_json`, `spec_json` and `sort_order_json` use Iceberg's JSON. `folder` belongs to this batch alone:
    `<data>/<stream>/<epoch>/<batch>`, without a trailing slash.
    """

    schema_json: str
    spec_json: str
    sort_order_json: str
    properties: Mapping[str, str]
    folder: str
    target_file_bytes: int
    io: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg FileIO properties for this table only: vended credentials open no other table's files."""
    content: Content = "data"
    """What the files hold."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How a batch's rows are shuffled to as many writers as it has tasks; see `frazil.ingest.shuffle`."""

    writers: int
    shares: Mapping[PartitionKey, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """The writers of a partition, each with the end of its part of `[0, 1)`; the last end is 1. A partition that is not
    here gets one writer."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """How records change the table of an upsert stream. Columns are named as in the table."""

    key: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Required columns outside the key; a delete needs none of them."""
    delete_column: str | None = None
    delete_values: tuple[str | int | bool, ...] = ()
    tombstones: bool = False
    """Whether a record without a value deletes its key."""
    key_fields: tuple[str, ...] = ()
    """Key columns filled by fields of such a record's key; empty if the whole key is the column."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Assigns rows to the tables of a routed stream; see `frazil.ingest.destinations`."""

    by: Literal["topic", "field", "header"]
    name: str
    """The column or header that selects the table; empty means the topic."""
    targets: Mapping[str, Target]
    """Targets by value; their tables are in the context."""
    to_main: bool
    """Whether rows without a value go to the main table; also rows with unknown values, unless tables are created."""
    makes: bool = False
    """Whether unknown values may get tables; if so, they are reported."""
    allow: tuple[str, ...] = ()
    """Patterns of the values that may get tables."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values that get no table, with the reasons."""
    full: str = ""
    """Why no further table can be created; empty if one can."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """What all tasks of one batch share."""

    stream: str
    epoch: int
    batch: int
    kafka: Mapping[str, str]
    """librdkafka properties as declared, except for the brokers: executors resolve references in their own environment,
    so no secret travels.
    """
    format: str | Mapping[str, Any]
    """The result of `frazil.spec.formats.plain_format`."""
    event_time_column: str
    coordinates: bool
    targets: Mapping[Target, TargetTable]
    """Tables to write files for, by target."""
    topic_ids: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)
    """The unit of each column that arrives as a number of time since the epoch: s, ms, us or ns."""
    beside_value: Mapping[str, str | None] = field(default_factory=dict)
    """Columns that are not filled from a record's value, with the name of their header; None means the key."""
    max_future_us: int = 600_000_000
    """How far an event time may be ahead of its record's Kafka timestamp and still advance the watermark."""
    window_us: int | None = None
    """Length of an event-time window; None if windows never complete and rows are not counted by window."""
    dead_letters_held: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    """Offsets of records that already are dead letters, as serialised `pyroaring.BitMap64`. They count as rejected and
    are written to neither table, whatever the schema makes of them now.
    """
    rejects_accepted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets before which rejected records no longer count for the circuit breaker: an operator accepted them."""
    event_times_us: tuple[int, int] | None = None
    """Range `[from, to)` of a backfill: only rows in it are kept, and no dead letters, which have no event time."""
    files: tuple[RecordFile, ...] = ()
    """Files that a backfill reads instead of Kafka; empty when Kafka is read."""
    aliases: Mapping[str, int] = field(default_factory=dict)
    """Record fields that fill a column of another name, with that column's field id."""
    evolution: Literal["off", "additive", "full"] = "off"
    """Differences between records and columns that the tasks report, so that the driver can evolve the table."""
    sensitive: Mapping[str, Any] = field(default_factory=dict)
    """Sensitive fields; empty if there are none.

    `fields`: by the column's full name in the table, `as` and `keep-last`; `dropped`: full names; `secret`: a
    reference; `dead-letters`: omit, encrypt or keep.
    """
    changes: ChangeRules | None = None
    """Rules of an upsert stream, whose records are changes of rows."""
    shuffle: Shuffle | None = None
    """How rows are shuffled between decoding and writing; None if each task writes what it reads."""
    destinations: Destinations | None = None
    """Assigns rows to tables other than the main one; None if all rows go there."""

    def named(self) -> dict[str, Any]:
        """The values by name, in built-in types only, so that another version of this class can read them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_named(cls, value: Mapping[str, Any]) -> StageContext:
        """The inverse of `named`. Raises TypeError or KeyError for an unknown or missing name."""
        files = tuple(
            RecordFile(**{**file, "ranges": tuple(OffsetRange(**r) for r in file["ranges"])}) for file in value["files"]
        )
        targets = {target: TargetTable(**table) for target, table in value["targets"].items()}
        shuffle = Shuffle(**value["shuffle"]) if value["shuffle"] else None
        changes = ChangeRules(**value["changes"]) if value["changes"] else None
        destinations = Destinations(**value["destinations"]) if value["destinations"] else None
        made = {"files": files, "targets": targets, "shuffle": shuffle}
        return cls(**{**value, **made, "changes": changes, "destinations": destinations})

    @property
    def record_format(self) -> str | Mapping[str, Any]:
        """The format of the records that are read. Lines of a backfill's file are JSON, whatever the topic uses."""
        return self.format if self._as_in_kafka else "json"

    @property
    def beside(self) -> Mapping[str, str | None]:
        """`beside_value` for the records that are read: files of a backfill have keys and headers as columns."""
        return self.beside_value if self._as_in_kafka else {}

    @property
    def _as_in_kafka(self) -> bool:
        return all(file.path.endswith(LETTERS) for file in self.files)

    @property
    def main(self) -> TargetTable:
        return self.targets["main"]

    @property
    def dead_letters(self) -> TargetTable:
        return self.targets["dead-letters"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file that no table refers to yet, with everything a manifest entry needs.

    Bounds and `partition` (one value per partition field) are Iceberg single-value serialisations in base64.
    """

    target: Target
    path: str
    records: int
    bytes: int
    schema_id: int
    spec_id: int
    sort_order_id: int | None
    """Set only when the whole file is sorted."""
    partition: PartitionKey
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, str]
    upper_bounds: Mapping[int, str]
    split_offsets: tuple[int, ...]
    content: Content = "data"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON. Data files omit `content`, as earlier versions did."""
        value = dataclasses.asdict(self)
        if self.content == "data":
            del value["content"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedFile:
        """Restore integer keys and tuples, which JSON does not have.

        Raises ValueError for an unknown content instead of committing it as another.
        """
        content = value.get("content", "data")
        if content not in get_args(Content):
            raise ValueError(f"{value['path']} holds {content!r}, which this version of frazil cannot commit")
        fixed: dict[str, Any] = {
            k: {int(i): x for i, x in v.items()} if isinstance(v, Mapping) else tuple(v) if isinstance(v, list) else v
            for k, v in value.items()
        }
        return cls(**fixed)


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """Result of one range: `records` rows landed; `rejected` are dead letters, including existing ones."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    rejected: int
    max_event_time_us: int | None
    """Microseconds since the epoch, UTC; None if no row with a credible event time landed."""
    future: int = 0
    """Rows that landed although their event time is too far in the future."""

    @property
    def topic_partition(self) -> TopicPartition:
        return (self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected record and the text of its dead letter."""

    topic: str
    partition: int
    offset: int
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Rejects:
    """Summary of a task's or batch's new dead letters, except those that an operator accepted."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts by error class."""
    first: tuple[Reject, ...] = ()
    """First reject of each topic-partition."""
    samples: tuple[Reject, ...] = ()
    """A few rejects of each error class."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rejects:
        first, samples = (tuple(Reject(**reject) for reject in value[name]) for name in ("first", "samples"))
        return cls(dict(value["counts"]), first, samples)


@dataclass(frozen=True, slots=True)
class StageResult:
    files: tuple[StagedFile, ...]
    progress: tuple[RangeProgress, ...]
    windows: Mapping[int, int] | None = None
    """Row counts by the window's start, in microseconds since the epoch; None if not counted."""
    notices: tuple[str, ...] = ()
    """Notices for operators about how the task ran; see `NoticeGiven`."""
    rejects: Rejects = Rejects()
    drift: SchemaDrift = NO_DRIFT
    """What records have beyond the table's columns; nothing unless the table may evolve."""
    other_events: int = 0
    """Events of a captured database that change no row, such as heartbeats, but not records without a value."""
    values: tuple[str, ...] = ()
    """Values of records that may get a table. Their rows were not written: the batch is staged again."""

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [f.to_json() for f in self.files],
            "progress": [dataclasses.asdict(p) for p in self.progress],
            "windows": None if self.windows is None else dict(self.windows),
            "notices": list(self.notices),
            "rejects": dataclasses.asdict(self.rejects),
            "sighted": self.drift.to_json(),
            "other-events": self.other_events,
            "values": list(self.values),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageResult:
        return cls(
            tuple(StagedFile.from_json(f) for f in value["files"]),
            tuple(RangeProgress(**p) for p in value["progress"]),
            None if value["windows"] is None else {int(start): rows for start, rows in value["windows"].items()},
            tuple(value.get("notices", ())),
            Rejects.from_json(value["rejects"]) if "rejects" in value else Rejects(),
            SchemaDrift.from_json(value["sighted"]) if "sighted" in value else NO_DRIFT,
            value.get("other-events", 0),
            tuple(value.get("values", ())),
        )
