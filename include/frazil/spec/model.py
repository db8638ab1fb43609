"""The model of a declared stream: immutable, with defaults for all optional settings, kebab-case in YAML.
`${env:NAME}`, `${env:NAME:-default}` and `${airflow:connection.field}` stay references until
`frazil.spec.references.resolve` replaces them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from frazil.spec import layout, rules
from frazil.spec.column import Column, Columns, EventTime, Watermark
from frazil.spec.formats import BytesFormat, CsvFormat, JsonFormat, Key, StringFormat, ValueFormat
from frazil.spec.maintenance import Maintenance
from frazil.spec.resources import Resources
from frazil.spec.route import IDENTIFIER, Route
from frazil.spec.sensitive import Sensitive
from frazil.spec.sinks import Sinks
from frazil.spec.source import Source
from frazil.spec.upsert import Dedupe, Delete, MergeMode
from frazil.spec.values import (
    MAX_DESCRIPTION_CHARACTERS,
    Bytes,
    Count,
    Duration,
    InconsistentError,
    Model,
    Moment,
    Names,
    Percent,
    PositiveDuration,
    Problem,
    Properties,
    Records,
    YamlForm,
)

MAX_UPSERT_RECORDS = 1_000_000
STREAM_NAME = r"^[a-z][a-z0-9_-]{0,62}$"


def _check_table_identifier(value: str) -> str:
    if not IDENTIFIER.fullmatch(value):
        raise ValueError("is not a table identifier; write namespace.table, such as demo.flights")
    return value


Identifier = Annotated[str, AfterValidator(_check_table_identifier)]


class Table(Model):
    """The stream's table, and settings for its creation."""

    short_form = "identifier"
    identifier: Identifier
    """`namespace.table`; created at the first start if missing."""
    catalog: str | None = None
    """The PyIceberg catalog; by default the default catalog."""
    location: str | None = None
    """The location of a new table; by default the catalog decides."""
    properties: Properties = Field(default_factory=dict)
    """Table properties of a new table."""


class Commit(Model):
    """When a batch is due: by its size, or by the age of its oldest record, whichever comes first."""

    interval: PositiveDuration = timedelta(seconds=60)
    """The longest time that a record waits for its batch."""
    size: Bytes = 128 * 2**20
    """A batch of this Parquet size is due immediately."""
    max_records: Records = 20_000_000
    """Maximum number of records in a batch. For `mode: upsert` the default is 1,000,000."""
    throttle: Literal["off", "warn", "stretch"] = "warn"
    """What happens if metadata grows faster than maintenance shrinks it.

    `warn`: a warning. `stretch`: also longer commit intervals.
    """
    max_interval: PositiveDuration = timedelta(minutes=10)
    """The longest commit interval with `throttle: stretch`."""
    align: Literal["none", "watermark"] = "none"
    """`none`: rows become visible with their batch. `watermark`: each window becomes visible as a whole; open windows
    wait on the branch `frazil-open-<stream>`.
    """

    atomic: bool | tuple[str, ...] = False
    """Commit a batch to all its tables in one step, if the catalog supports it. A list names routed tables for it."""

    @property
    def longest_interval(self) -> timedelta:
        return self.max_interval if self.throttle == "stretch" else self.interval


class CircuitBreaker(Model):
    """Ends the writer before it commits a batch of mostly dead letters."""

    share: Percent = 50
    """A batch with a larger percentage of dead letters is not committed."""
    at_least: Count = 1000
    """A batch with fewer records is always committed."""


class DeadLetters(Model):
    """The table of records that cannot become rows."""

    table: Identifier | None = None
    """`namespace.table`; by default `<table>_dead_letters`."""
    circuit: Annotated[CircuitBreaker | Literal["off"], YamlForm("mapping, or `off`")] = CircuitBreaker()
    """When too many dead letters end the writer. `off`: never."""


class Evolution(Model):
    """Changes in records that the table follows automatically: a mode, or a mapping."""

    short_form = "mode"
    mode: Literal["off", "additive", "full"] = "off"
    """`off`: unknown fields are ignored. `additive`: unknown fields become optional columns. `full`: columns also
    become wider or optional if a record needs that.
    """
    max_columns: Count = 500
    """Maximum number of columns, including nested fields. Further new fields are ignored."""


class StreamSpec(Model):
    """One declared stream."""

    name: str = Field(pattern=STREAM_NAME)
    """Lower-case letters, digits, `-` and `_`; never reused."""
    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION_CHARACTERS)
    """Shown with the stream's DAGs."""
    owner: str | None = Field(default=None, min_length=1, max_length=200)
    """Owner of the stream's DAGs: a person or a team."""
    application: str | None = Field(default=None, pattern=STREAM_NAME)
    """Streams with the same `application` share one writer process. By default, each has its own."""
    source: Source
    """The origin of records."""
    table: Table
    """The table: `namespace.table`, or a mapping."""
    columns: Columns = Field(alias="schema", min_length=1)
    """`column: type`, `column: type not null`, or `column: {type, required, doc, unit}`."""
    cast: Literal["strict", "lenient"] = "strict"
    """Default `cast` of columns with primitive types, including columns that `evolution` adds."""
    transform: str | None = Field(default=None, min_length=1)
    """A DuckDB `SELECT … FROM records [WHERE …]` that computes the columns of `schema`."""
    mode: Literal["append", "upsert"] = "append"
    """`append`: each record adds a row. `upsert`: each record changes the row of its `key`."""
    dedupe: Dedupe | None = None
    """The rows that `mode: append` drops as repeats."""
    key: Names = ()
    """The columns that identify a row, for `mode: upsert`."""
    order_by: str | None = None
    """The column that orders changes, for `mode: upsert`. A value below the row's is stale. Default: Kafka's order."""
    delete: Delete | None = None
    """The records that delete the row of their key, for `mode: upsert`."""
    merge: MergeMode = "auto"
    """`copy-on-write` rewrites changed files, `merge-on-read` writes delete files. `auto` rewrites a file once many of
    its rows are deleted. Only for `mode: upsert`.
    """
    route: Route | None = None
    """Further tables, and the records that go to them. `table` gets all other records."""
    rest: str | None = Field(default=None, min_length=1)
    """The `string` or `variant` column of all fields without a column, as a JSON object."""
    event_time: EventTime
    """The column of the event time, or a mapping of column and unit."""
    partition_by: tuple[str, ...] = ()
    """Iceberg transforms: `day(ts)`, `bucket(16, id)`, `carrier`."""
    sort_by: tuple[str, ...] = ()
    """`column`, `column desc`, `bucket(16, id) asc nulls last`."""
    distribution: Literal["none", "hash", "auto"] = "none"
    """`hash`: tasks shuffle rows by table partition, for fewer files. `auto`: only while that saves many files."""
    commit: Commit = Commit()
    """When a batch is due."""
    lateness: Duration = timedelta(0)
    """How long a window waits for late records after its end."""
    watermark: Watermark = Watermark()
    """How event time advances."""
    complete: Literal["hour", "day", "none"] | None = None
    """The windows to signal: hours or days. By default, those of the table's event-time partitions."""
    complete_from: Moment | None = None
    """The first window to signal; by default the one that is open at the first check."""
    evolution: Evolution = Evolution()
    """The changes in records that change the table's columns automatically."""
    coordinates: bool = True
    """Store `kafka_topic`, `kafka_partition`, `kafka_offset` and `kafka_timestamp` as columns."""
    dead_letters: DeadLetters = DeadLetters()
    """The table for records that cannot become rows."""
    sensitive: Sensitive | None = None
    """Fields whose values must not be readable in tables, dead letters and logs."""
    resources: Resources = Resources()
    """Cores, memory and cluster of the writer."""
    maintenance: Maintenance = Maintenance()
    """Maintenance of the table."""

    @field_validator("partition_by", "sort_by", mode="before")
    @classmethod
    def _split_terms(cls, value: object) -> object:
        if isinstance(value, str):
            return (value,)
        return _rejoin_terms(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value

    @field_validator("partition_by")
    @classmethod
    def _canonicalize_partition_terms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _parse_terms("partition-by", value, layout.parse_term)

    @field_validator("sort_by")
    @classmethod
    def _canonicalize_sort_terms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _parse_terms("sort-by", value, layout.parse_sort_term)

    @model_validator(mode="after")
    def _check_consistency(self, info: ValidationInfo) -> Self:
        context = info.context or {}
        problems = rules.find_problems(self, invalid=context.get("invalid", frozenset()))
        if "problems" in context:
            context["problems"].extend(problems)
        elif problems:
            raise InconsistentError(problems)
        return self

    @property
    def dead_letter_table(self) -> str:
        return self.sinks.dead_letter_table

    @property
    def sinks(self) -> Sinks:
        return Sinks.of(self, default_table=self.table.identifier)

    @property
    def signal_name(self) -> str:
        """The name under which the table's windows are signalled."""
        return self.table.identifier

    @property
    def window(self) -> Literal["hour", "day"] | None:
        """The window length: `complete`, or else the granularity of the event-time partitions, if any."""
        if self.complete is not None:
            return None if self.complete == "none" else self.complete
        by_time = self.event_time_partitions
        return "hour" if "hour" in by_time else "day" if "day" in by_time else None

    @property
    def event_time_partitions(self) -> tuple[str, ...]:
        terms = [layout.parse_term(text) for text in self.partition_by]
        return tuple(term.transform for term in terms if term.column == self.event_time.column)

    @property
    def max_records(self) -> int:
        if self.sinks.mode.replaces_rows and "max_records" not in self.commit.model_fields_set:
            return MAX_UPSERT_RECORDS
        return self.commit.max_records

    def fingerprint(self) -> str:
        """Return a hash that changes exactly when a running writer must be restarted.

        It covers only values that differ from the defaults, so a key that a newer version adds does not change it.
        """
        excluded: dict[str, Any] = dict.fromkeys(("maintenance", "application", "description", "owner"), True)
        excluded |= {"route": {"complete"}, "commit": {"max_records"}}
        if self.evolution.mode == "off":
            excluded["evolution"] = True
        if not self.resources.driver_in_cluster:
            excluded["resources"] = {"deploy_mode", "rest_port"}
        declared = self.model_dump(mode="json", exclude=excluded, exclude_defaults=True)
        values = {key: value for key, value in declared.items() if value != {}}
        maintenance, default = self.maintenance, Maintenance()
        if self.max_records != Commit().max_records:
            values["max_records"] = self.max_records
        if self.commit.throttle != "off" and maintenance.limits != default.limits:
            values["limits"] = repr(maintenance.limits)
        if maintenance.expiry != default.expiry:
            values["expiry"] = maintenance.expiry.model_dump(mode="json")
        if maintenance.compaction.enabled and maintenance.compaction.fold_files:
            values["fold_files"] = maintenance.compaction.fold_files
        text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The fields of a record: `source.schema` if declared, otherwise the table's columns."""
        return self.source.columns or self.columns

    @property
    def may_unnest(self) -> bool:
        """Whether the transform may turn one record into several rows."""
        return self.transform is not None and "unnest" in self.transform.lower()

    @property
    def units(self) -> dict[str, str | dict[str, Any]]:
        """Return the encodings that a column's type alone does not determine, by the column's full name.

        Times that arrive as numbers have a unit, strings that store JSON text have `json`, and the column that collects
        undeclared fields has `rest`. A column with more settings has a mapping: see
        `frazil.ingest.formats.fields.ColumnSource`.
        """
        as_json = {name: "json" for column in self.record_columns for name in column.json_text_fields}
        declared = {column.name: column.unit for column in self.record_columns if column.unit not in {None, "iso"}}
        of_event_time = {} if self.event_time.unit == "iso" else {self.event_time.column: self.event_time.unit}
        of_rest = {} if self.rest is None else {self.rest: "rest"}
        units = as_json | of_rest | {name: unit for name, unit in (declared | of_event_time).items() if unit}
        other = ({*self.key_header_columns} - {*self.key_columns}) | {self.rest}
        filled = [column for column in self.record_columns if column.name not in other]
        readings = {column.name: reading for column in filled if (reading := column.reading_settings(self.cast))}
        with_unit = {name: {"unit": units[name]} if name in units else {} for name in readings}
        return units | {name: with_unit[name] | reading for name, reading in readings.items()}

    @property
    def has_lines(self) -> bool:
        """Whether one record may become several rows."""
        return self.may_unnest or (isinstance(self.source.format, JsonFormat) and self.source.format.lines)

    @property
    def value_format(self) -> ValueFormat:
        """The format of values, with the names of the columns that the value fills."""
        declared = self.source.format
        key_header_columns = self.key_header_columns
        filled = tuple(column.name for column in self.record_columns if column.name not in key_header_columns)
        if isinstance(declared, StringFormat | BytesFormat):
            return declared.model_copy(update={"column": declared.column or filled[0]})
        if isinstance(declared, CsvFormat):
            return declared.model_copy(update={"columns": declared.columns or filled})
        return declared

    @property
    def key_header_columns(self) -> dict[str, str | None]:
        """Map the columns that keys and headers fill: each to its header, or to None for the record's key."""
        key = dict.fromkeys(column.name for column in self.record_columns if column.is_from_key)
        if self.source.key and self.source.key.column:
            key[self.source.key.column] = None
        return {**key, **{header.column: header.name for header in self.source.headers}}

    @property
    def whole_key_column(self) -> str | None:
        """The column of the whole key, if the key's format is neither `string` nor `bytes`."""
        key = self.source.key
        return key.column if key and key.format not in {"string", "bytes"} else None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that decoded keys fill: fields of the key, or a whole key of a primitive type."""
        return tuple(c.name for c in self.record_columns if c.is_from_key or c.name == self.whole_key_column)

    @property
    def key_format(self) -> ValueFormat:
        return (self.source.key or Key()).fields_format(self.source.format)


def _rejoin_terms(terms: list[str]) -> list[str]:
    """Join terms that YAML has split at a comma in parentheses, as in `[day(ts), bucket(16, id)]`."""
    joined: list[str] = []
    for term in terms:
        if joined and joined[-1].count("(") > joined[-1].count(")"):
            joined[-1] += f", {term}"
        else:
            joined.append(term)
    return joined


def _parse_terms(key: str, terms: tuple[str, ...], parse: Callable[[str], object]) -> tuple[str, ...]:
    parsed, problems = [], []
    for index, text in enumerate(terms):
        try:
            parsed.append(str(parse(text)))
        except ValueError as error:
            problems.append(Problem(f"{key}.{index}", text, str(error)))
    if problems:
        raise InconsistentError(tuple(problems))
    return tuple(parsed)
