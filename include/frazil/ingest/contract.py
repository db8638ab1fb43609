"""What passes between the driver and its executors: plain frozen values that pickle and turn into JSON.

One batch has one `StageContext`, and a `StageTask` for each Spark task; a task answers with a `StageResult`.
No record returns to the driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from frazil.ingest.sightings import NOTHING_SIGHTED, Sightings
from frazil.offsets.spans import TopicPartition

Target = str
"""A table of a batch: "main", "dead-letters", or the identifier of a table of the stream's route, which has a dot."""


def is_routed(target: Target) -> bool:
    return "." in target


Content = Literal["data", "candidates", "changes", "position-deletes"]
"""What a staged file holds: rows of its target; rows of which those that repeat others are dropped when they are
committed; changes of rows, which no table ever has; or the places of rows that are deleted."""


PartitionKey = tuple[str | None, ...]
"""A table partition: one value per partition field, each an Iceberg single-value serialisation in base64."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records `[start, end)` of one topic-partition; offsets in it may be missing (compaction, transactions)."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StageTask:
    """The ranges that one Spark task reads: many Kafka partitions may share a task, and so a file."""

    index: int
    ranges: tuple[OffsetRange, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageTask:
        return cls(value["index"], tuple(OffsetRange(**r) for r in value["ranges"]))


LETTERS = ".letters"
"""Copies of dead letters, as Parquet: their bytes are decoded as Kafka's would be."""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of records that a backfill reads instead of Kafka, as it was when it was listed."""

    path: str
    bytes: int
    modified_ms: int
    ranges: tuple[OffsetRange, ...]
    """From the first to the last of its records, for each topic-partition."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table to write files for, as its metadata stood when the batch began.

    `schema_json`, `spec_json` and `sort_order_json` are Iceberg's own JSON forms; `folder` is this batch's own
    `<data>/<stream>/<epoch>/<batch>`, without a trailing slash.
    """

    schema_json: str
    spec_json: str
    sort_order_json: str
    properties: Mapping[str, str]
    folder: str
    target_file_bytes: int
    io: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg FileIO properties of this table alone: vended credentials open no other table's files."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How a batch's rows are shuffled to as many writers as it has tasks; see `frazil.ingest.shuffle`."""

    writers: int
    shares: Mapping[PartitionKey, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """The writers of a partition, each with the end of its part of `[0, 1)`; the last end is 1. A partition that is not
    here gets one writer."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """How records change the table of an upsert stream. Columns have the names that they have in the table."""

    key: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Columns that a row must have, and that are no key: a delete needs none of them."""
    delete_column: str | None = None
    delete_values: tuple[str | int | bool, ...] = ()
    tombstones: bool = False
    """Whether a record without a value deletes its key."""
    key_fields: tuple[str, ...] = ()
    """The key columns that fields of such a record's key fill; none where the whole key is the column."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Which rows go to which tables, where the stream has a route; see `frazil.ingest.destinations`."""

    by: Literal["topic", "field", "header"]
    name: str
    """Of the column or of the header that has a record's value; empty for the topic."""
    targets: Mapping[str, Target]
    """By value; their tables are those of the context."""
    to_main: bool
    """Whether rows without a value go to the main table, and those with an unknown one, unless tables are made."""
    makes: bool = False
    """Whether unknown values may get tables: then they are reported."""
    allow: tuple[str, ...] = ()
    """Patterns of the values that get tables."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why some values get none."""
    full: str = ""
    """Why no further table can be made; empty if one can."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """All that the tasks of one batch have in common."""

    stream: str
    epoch: int
    batch: int
    kafka: Mapping[str, str]
    """librdkafka properties. All but the brokers are as declared: executors resolve references in their own
    environment, and no secret travels."""
    format: str | Mapping[str, Any]
    """As `frazil.spec.formats.plain_format` gives it."""
    event_time_column: str
    coordinates: bool
    targets: Mapping[Target, TargetTable]
    """Where files of each target go."""
    topic_ids: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)
    """The unit of each column that arrives as a number of time since the epoch: s, ms, us or ns."""
    beside_value: Mapping[str, str | None] = field(default_factory=dict)
    """The columns that a record's value does not fill, with the header that does; None for the key."""
    max_future_us: int = 600_000_000
    """How far an event time may be ahead of its record's Kafka timestamp and still advance the watermark."""
    window_us: int | None = None
    """The length of a window of event time; None if windows never complete, so that rows are not counted by window."""
    dead_letters_held: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    """Offsets of records that are dead letters already, as a serialised `pyroaring.BitMap64`. They are counted as
    rejected and written to neither table, whatever the schema makes of them now."""
    rejects_accepted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Rejected records before these offsets do not count for the circuit: a person accepted them."""
    event_times_us: tuple[int, int] | None = None
    """For a backfill: only rows of `[from, to)` are kept, and no dead letters, which have no event time."""
    files: tuple[RecordFile, ...] = ()
    """For a backfill: if there are any, they are read instead of Kafka."""
    aliases: Mapping[str, int] = field(default_factory=dict)
    """Fields of records that fill a column of another name: its field id."""
    evolution: Literal["off", "additive", "full"] = "off"
    """What tasks look for in records beyond the table's columns, for the driver to evolve the table."""
    sensitive: Mapping[str, Any] = field(default_factory=dict)
    """`fields`: by the column's full name in the table, `as` and `keep-last`; `dropped`: full names; `secret`: a
    reference; `dead-letters`: omit, encrypt or keep. Nothing if no field is sensitive."""
    changes: ChangeRules | None = None
    """For an upsert: records are changes, and "main" is where change files go."""
    drops_repeats: bool = False
    """Whether the rows of "main" are candidates."""
    shuffle: Shuffle | None = None
    """How rows are shuffled between decoding and writing; None if each task writes what it reads."""
    destinations: Destinations | None = None
    """Which rows go to other tables than the main one; None if all go there."""

    def named(self) -> dict[str, Any]:
        """Its values by name, in built-in types alone, which another version of this class can read."""
        return dataclasses.asdict(self)

    @classmethod
    def from_named(cls, value: Mapping[str, Any]) -> StageContext:
        """The inverse of `named`. Raises TypeError or KeyError for a name that is unknown here, or missing."""
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
        """How the records that are read are encoded: a line of a backfill's file is JSON, whatever the topic has."""
        return self.format if self._as_in_kafka else "json"

    @property
    def beside(self) -> Mapping[str, str | None]:
        """`beside_value` of the records that are read: a backfill's files have keys and headers as columns."""
        return self.beside_value if self._as_in_kafka else {}

    @property
    def main_content(self) -> Content:
        """What the files of "main" hold."""
        return "changes" if self.changes else "candidates" if self.drops_repeats else "data"

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
    """One Parquet file that no table knows yet, with all that a manifest entry needs.

    Bounds, and `partition` (one value per partition field), are Iceberg single-value serialisations in base64.
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
        """Data files have no `content`: earlier versions neither wrote nor read it."""
        value = dataclasses.asdict(self)
        if self.content == "data":
            del value["content"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedFile:
        """Restores integer keys and tuples, which JSON lacks.

        Raises ValueError for a content that this version does not know, rather than commit it as another.
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
    """What became of one range: `records` landed rows, `rejected` dead letters (those held already included)."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    rejected: int
    max_event_time_us: int | None
    """Microseconds since the epoch, UTC; None if no row with a credible event time landed."""
    future: int = 0
    """Rows that landed with an event time too far in the future."""

    @property
    def topic_partition(self) -> TopicPartition:
        return (self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected record, with the text of its dead letter."""

    topic: str
    partition: int
    offset: int
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Rejects:
    """The new dead letters of a task or of a batch, summed up; not those that a person has accepted."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By error class."""
    first: tuple[Reject, ...] = ()
    """The first of each topic-partition."""
    samples: tuple[Reject, ...] = ()
    """A few of each error class."""

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
    """Rows by the start of their window, in microseconds since the epoch; None where they were not counted."""
    notices: tuple[str, ...] = ()
    """What people should know about how the task ran: see `NoticeGiven`."""
    rejects: Rejects = Rejects()
    sighted: Sightings = NOTHING_SIGHTED
    """What records have beyond the table's columns; nothing unless the stream's table may evolve."""
    other_events: int = 0
    """Events of a captured database that tell no change of a row, such as heartbeats; no tombstones."""
    values: tuple[str, ...] = ()
    """Values of records that may get a table. Rows with them were not written: the batch is staged again."""

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [f.to_json() for f in self.files],
            "progress": [dataclasses.asdict(p) for p in self.progress],
            "windows": None if self.windows is None else dict(self.windows),
            "notices": list(self.notices),
            "rejects": dataclasses.asdict(self.rejects),
            "sighted": self.sighted.to_json(),
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
            Sightings.from_json(value["sighted"]) if "sighted" in value else NOTHING_SIGHTED,
            value.get("other-events", 0),
            tuple(value.get("values", ())),
        )
