"""Data that the driver and its executors exchange: immutable, picklable, convertible to JSON.

A batch has one `StageContext`, and a `StageTask` and `StageResult` for each Spark task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec
from pyiceberg.schema import Schema

from frazil.ingest.schema_drift import SchemaDrift
from frazil.offsets.spans import TopicPartition
from frazil.spec.route import Route
from frazil.typed_json import convert

Target = str
"""A table that a batch writes to: "main", "dead-letters", or a routed table's identifier, which contains a dot."""


def is_routed(target: Target) -> bool:
    return "." in target


Content = Literal["data", "candidates", "changes", "position-deletes"]
"""What a staged file contains: `data` (rows), `candidates` (rows from which the commit drops repeats), deleted
positions, or `changes` (inserts, updates and deletes). A table never includes files of changes.
"""


PartitionKey = tuple[str | None, ...]
"""A table partition: one value per partition field, as Iceberg's single-value serialisation in base64."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records `[start, end)` of one topic-partition. Some offsets may have no record."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StageTask:
    """The offset ranges that one Spark task reads. A task may read several Kafka partitions into one file."""

    index: int
    ranges: tuple[OffsetRange, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageTask:
        return cls(value["index"], tuple(OffsetRange(**r) for r in value["ranges"]))


DEAD_LETTERS_SUFFIX = ".letters"
"""Suffix of Parquet files with copies of dead letters. Their bytes are decoded like records from Kafka."""


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of records that a backfill reads instead of Kafka. Size and time come from the folder's listing."""

    path: str
    bytes: int
    modified_ms: int
    ranges: tuple[OffsetRange, ...]
    """One range per topic-partition, from its first to its last record in the file."""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table to write files for. The JSON fields contain its Iceberg metadata at the beginning of the batch.

    Only this batch uses `folder`: `<data>/<stream>/<epoch>/<batch>`, without a trailing slash.
    """

    schema_json: str
    spec_json: str
    sort_order_json: str
    properties: Mapping[str, str]
    folder: str
    target_file_bytes: int
    io: Mapping[str, str] = field(default_factory=dict)
    """PyIceberg FileIO properties for this table. Other tables may need other credentials."""
    content: Content = "data"
    format_version: int = 2

    @property
    def schema(self) -> Schema:
        return parse_schema(self.schema_json)


@lru_cache(maxsize=64)
def parse_schema(schema_json: str) -> Schema:
    """Parse a schema. Cached, with the indexes that PyIceberg adds to it, for the next batches of the same table."""
    return Schema.model_validate_json(schema_json)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How a batch's rows are distributed over as many shuffle writers as tasks; see `frazil.ingest.partitioning`."""

    writers: int
    shares: Mapping[PartitionKey, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """The writers of each listed partition, and the ends of their shares of `[0, 1)`. Others have one writer."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """How the records of an upsert stream change its table. Columns have the table's names."""

    key: tuple[str, ...]
    required: tuple[str, ...] = ()
    """Required columns outside the key. An upsert needs them; a delete does not."""
    delete_column: str | None = None
    delete_values: tuple[str | int | bool, ...] = ()
    tombstones: bool = False
    key_fields: tuple[str, ...] = ()
    """Key columns that fields of a tombstone's key fill; empty if the whole record key fills one column."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    columns: tuple[str, ...]
    format: str | Mapping[str, Any]
    is_whole: bool
    """Whether the whole key is one primitive value, which fills the only column."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """How the rows of a routed stream are assigned to tables; see `frazil.ingest.destinations`."""

    by: Literal["topic", "field", "header"]
    name: str
    """The column or header whose value selects the table; empty if the topic selects it."""
    targets: Mapping[str, Target]
    """The target of each value. `StageContext.targets` has the tables of these targets."""
    to_main: bool
    """Whether the main table gets rows without a value and, unless `creates`, rows with an unknown value."""
    creates: bool = False
    """Whether the driver creates tables for unknown values, which tasks report."""
    allow: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    full: str = ""
    """Why no more tables can be created; empty if more can be created."""

    @classmethod
    def of(
        cls, route: Route, targets: Mapping[str, Target], *, refused: Mapping[str, str] | None = None, full: str = ""
    ) -> Destinations:
        """Return a route's destinations. `targets` gives the target of each known value. Copies the mappings."""
        to_main, creates = route.otherwise == "table", route.template is not None
        by_name = dict(targets)
        return cls(route.by, route.name or "", by_name, to_main, creates, route.allow, dict(refused or {}), full)


@dataclass(frozen=True, slots=True)
class TransformedColumn:
    name: str
    expression: str
    declared: str
    """The declared expression, with UNNEST. In `expression`, a column replaces each UNNEST."""
    reads: tuple[str, ...]
    fails: str
    """An SQL condition that is true exactly if the expression fails for a record."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A checked SELECT that computes the table's columns from records; see `frazil.ingest.transform`."""

    records_json: str
    """The fields of a record: an Iceberg schema in JSON."""
    alias: str
    columns: tuple[TransformedColumn, ...]
    where: tuple[str, ...] = ()
    where_reads: tuple[str, ...] = ()
    unnested: tuple[str, ...] = ()
    may_fail: tuple[str, ...] = ()
    """SQL conditions that select records in which a cast or division may fail. Other failures are found, too."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Transform:
        return cls(**{**value, "columns": tuple(TransformedColumn(**column) for column in value["columns"])})


@dataclass(frozen=True, slots=True)
class StageContext:
    stream: str
    epoch: int
    batch: int
    kafka: Mapping[str, str]
    """librdkafka properties. Executors resolve references to secrets. The brokers' addresses are already resolved."""
    format: str | Mapping[str, Any]
    event_time_column: str
    coordinates: bool
    targets: Mapping[Target, TargetTable]
    topic_ids: Mapping[str, str]
    units: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    """How each column's values arrive in records, by full name; see `frazil.ingest.formats.fields.Unit`."""
    is_lenient: bool = False
    """Whether primitive columns that are not in `units` are read with lenient casts."""
    key_header_columns: Mapping[str, str | None] = field(default_factory=dict)
    """The record header that fills each column; None for the record key. Other columns are not included."""
    key_columns: KeyColumns | None = None
    """The columns of `key_header_columns` that decoded keys fill; None if keys are text or bytes."""
    max_future_us: int = 600_000_000
    """How far (us) an event time may be ahead of its Kafka timestamp. Later event times do not move the watermark."""
    window_us: int | None = None
    """Length (us) of an event-time window; None if rows are not counted by window."""
    existing_dead_letters: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    """Offsets of existing dead letters, as serialised `BitMap64`s. Tasks do not write these dead letters again."""
    rejects_accepted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The circuit breaker ignores rejected records before these offsets, because an operator accepted them."""
    event_times_us: tuple[int, int] | None = None
    """Event-time range `[from, to)` (us) of a backfill; None for all. With a range, rejected records are skipped."""
    files: tuple[RecordFile, ...] = ()
    aliases: Mapping[str, int] = field(default_factory=dict)
    """The field id of the column that each alias field fills."""
    evolution: Literal["off", "additive", "full"] = "off"
    """The kinds of schema drift that tasks report for evolving the table. `additive` means new fields only."""
    sensitive: Mapping[str, Any] = field(default_factory=dict)
    """Declared sensitive fields, if any. `fields` maps a column's full name in the table to `as` and `keep-last`;
    `dropped` lists full names; `secret` is a reference; `dead-letters` is omit, encrypt or keep.
    """
    changes: ChangeRules | None = None
    shuffle: Shuffle | None = None
    """How rows are shuffled between decoding and writing; None if each task writes the rows that it reads."""
    destinations: Destinations | None = None
    transform: Transform | None = None
    """How columns are computed from a record's fields; None if the fields are the columns. With a transform, `units`
    and `key_header_columns` have names of fields, not of columns.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of built-in types, which other versions of this class can read."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> StageContext:
        """Create a context from the result of `to_dict`. Raises TypeError or KeyError for a wrong field."""
        files = tuple(
            RecordFile(**{**file, "ranges": tuple(OffsetRange(**r) for r in file["ranges"])}) for file in value["files"]
        )
        targets = {target: TargetTable(**table) for target, table in value["targets"].items()}
        shuffle = Shuffle(**value["shuffle"]) if value["shuffle"] else None
        changes = ChangeRules(**value["changes"]) if value["changes"] else None
        destinations = Destinations(**value["destinations"]) if value["destinations"] else None
        transform = Transform.from_dict(value["transform"]) if value["transform"] else None
        keys = KeyColumns(**value["key_columns"]) if value["key_columns"] else None
        parsed = {"files": files, "targets": targets, "shuffle": shuffle, "transform": transform, "key_columns": keys}
        return cls(**{**value, **parsed, "changes": changes, "destinations": destinations})

    @property
    def record_format(self) -> str | Mapping[str, Any]:
        """The format of the records to read. A backfill's JSON lines are JSON even if the topic has another format."""
        return self.format if self.is_in_topic_format else "json"

    @property
    def filled_from_keys_and_headers(self) -> Mapping[str, str | None]:
        """`key_header_columns` for the records to read; empty for a backfill's files, which include these columns."""
        return self.key_header_columns if self.is_in_topic_format else {}

    @property
    def record_units(self) -> Mapping[str, str | Mapping[str, Any]]:
        """`units` for the records to read. Fields in a backfill's JSON lines have their columns' names."""
        if self.is_in_topic_format:
            return self.units
        return {
            name: unit if isinstance(unit, str) else {key: value for key, value in unit.items() if key != "from"}
            for name, unit in self.units.items()
        }

    @property
    def is_in_topic_format(self) -> bool:
        """Whether the records to read have the topic's format, unlike a backfill's JSON lines and rows."""
        return all(file.path.endswith(DEAD_LETTERS_SUFFIX) for file in self.files)

    @property
    def replays(self) -> bool:
        return bool(self.files) and self.is_in_topic_format

    @property
    def main(self) -> TargetTable:
        return self.targets["main"]

    @property
    def dead_letters(self) -> TargetTable:
        return self.targets["dead-letters"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file, and the data for its manifest entry. Bounds and `partition` are Iceberg's values in base64."""

    target: Target
    path: str
    records: int
    bytes: int
    schema_id: int
    spec_id: int
    sort_order_id: int | None
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
        """Convert to JSON. `content` is omitted for data files, as in earlier versions of frazil."""
        value = dataclasses.asdict(self)
        if self.content == "data":
            del value["content"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedFile:
        """Restore a file from the result of `to_json`. Raises ValueError for an unknown content."""
        content = value.get("content", "data")
        if content not in get_args(Content):
            raise ValueError(f"{value['path']} has the content {content!r}, which this version of frazil cannot commit")
        fixed: dict[str, Any] = {
            k: {int(i): x for i, x in v.items()} if isinstance(v, Mapping) else tuple(v) if isinstance(v, list) else v
            for k, v in value.items()
        }
        return cls(**fixed)


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """Result of one offset range: `records` became rows; `rejected` are dead letters, including earlier ones."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    rejected: int
    max_event_time_us: int | None
    """Newest plausible event time (us since the epoch, UTC); None if no record has one."""
    future: int = 0
    """Number of rows whose event time is too far in the future. These rows are written, too."""
    dropped: int = 0
    """Number of records that the transform's WHERE dropped. They become neither rows nor dead letters."""
    newest_future_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON. Omits newer fields that are 0 or None, so that earlier versions can read the result."""
        value = dataclasses.asdict(self)
        for name in ("dropped", "newest_future_us"):
            if not value[name]:
                del value[name]
        return value

    @property
    def topic_partition(self) -> TopicPartition:
        return (self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Reject:
    topic: str
    partition: int
    offset: int
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Rejects:
    """Summary of a task's or batch's new dead letters."""

    counts: Mapping[str, int] = field(default_factory=dict)
    first: tuple[Reject, ...] = ()
    samples: tuple[Reject, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class StageResult:
    files: tuple[StagedFile, ...]
    progress: tuple[RangeProgress, ...]
    windows: Mapping[int, int] | None = None
    """Row counts by window start (microseconds since the epoch); None if windows are not counted."""
    notices: tuple[str, ...] = ()
    """Notices for operators about how the task ran; see `frazil.events.NoticeIssued`."""
    rejects: Rejects = Rejects()
    """The new dead letters, except those that an operator accepted."""
    drift: Mapping[Target, SchemaDrift] = field(default_factory=dict)
    """New fields and types in records, by target; empty unless tables may evolve."""
    other_events: int = 0
    """Number of change events, other than tombstones, that change no row, such as heartbeats."""
    values: tuple[str, ...] = ()
    """Route values that need new tables. Their rows were not written, so the batch must be staged again."""
    accepted: Rejects = Rejects()
    """The new dead letters that an operator accepted, so that the circuit breaker ignores them."""
    secret: str = ""
    """A fingerprint of the secret that hashed or tokenized values; see `Sealer.fingerprint`."""

    def to_json(self) -> dict[str, Any]:
        drift = {target: target_drift.to_json() for target, target_drift in self.drift.items()}
        return {**msgspec.to_builtins(dataclasses.replace(self, drift={})), "drift": drift}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageResult:
        drift = {target: SchemaDrift.from_json(target_drift) for target, target_drift in value["drift"].items()}
        return dataclasses.replace(convert({**value, "drift": {}}, cls), drift=drift)
