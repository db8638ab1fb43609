"""Declared columns, in the short form (`long not null`) or as a mapping, and the declared event time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from frazil.spec.types import Primitive, parse_type
from frazil.spec.values import MAX_DESCRIPTION_CHARACTERS, FieldPath, Model, PositiveDuration, YamlForm, parse_path

COORDINATES = {
    "kafka_topic": Primitive("string"),
    "kafka_partition": Primitive("int"),
    "kafka_offset": Primitive("long"),
    "kafka_timestamp": Primitive("timestamptz"),
}
LINE_COLUMN = "kafka_line"
"""Additional column if a record may become several rows: the row's number within its record, from 0."""
RESERVED_COLUMNS = frozenset({*COORDINATES, LINE_COLUMN})

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
    | {"_change_type", "_change_ordinal", "_commit_snapshot_id"}
)
"""Lower-case names of Iceberg's metadata columns, which a table's own columns cannot have."""
METADATA_COLUMN_PROBLEM = (
    "has the name of one of Iceberg's metadata columns, so engines would refuse the table or read the wrong one"
)

REQUIRED_COORDINATES = frozenset({"kafka_topic", "kafka_partition", "kafka_offset"})


TimeUnit = Literal["iso", "s", "ms", "us", "ns"]
"""The form of a time in records: ISO 8601 text, or a number since 1970 in this unit."""
_NOT_NULL = re.compile(r"(?<!\s)\s+not\s+null\s*$", re.IGNORECASE)


class Column(Model):
    """One column of the table."""

    name: str = Field(min_length=1)
    type: Annotated[str, AfterValidator(lambda text: str(parse_type(text)))]
    """An Iceberg type: `string`, `decimal(10, 2)`, `list<struct<a: int>>`, …"""
    required: bool = False
    """`true`: a record without a value is a dead letter (`not null`)."""
    doc: str | None = Field(default=None, max_length=MAX_DESCRIPTION_CHARACTERS)
    """The column's documentation in the table."""
    unit: TimeUnit | None = None
    """How records encode a `timestamptz` or `timestamp`: as ISO 8601 text, or as a number since 1970."""

    as_: Annotated[Literal["json"] | Mapping[str, Literal["json"]] | None, YamlForm("`json`, or a mapping")] = Field(
        default=None, alias="as"
    )
    """`json` keeps any value as JSON text in a `string`. `{detail: json}` does this for a string in a nested column."""

    from_: Annotated[str | Mapping[str, str] | None, YamlForm("path, or a mapping")] = Field(
        default=None, alias="from", min_length=1
    )
    r"""The record's field, if its name differs: `userId`, `payload.user.id`, `items[0].sku`. Write `\.` for a dot in a
    name. `{key: id}`: a field of the record's key.
    """

    cast: Literal["strict", "lenient"] | None = None
    """`lenient`: values of other types, such as `"7"` for `int`, are converted and counted. Default: the stream's."""
    rounding: Literal["half-even", "half-up", "down"] | None = None
    """Rounds longer numbers for a `decimal` with `cast: lenient`. Otherwise, they are dead letters."""
    null_if: Annotated[tuple[bool | int | float | str, ...], YamlForm("list of values")] = ()
    """Values that mean null, such as `["N/A", "", -999]`."""
    default: bool | int | float | str | None = None
    """The value of a missing or null field, written as in a record; with `as: json`, as JSON text."""

    @field_validator("from_")
    @classmethod
    def _check_from(cls, value: str | Mapping[str, str] | None) -> str | Mapping[str, str] | None:
        if isinstance(value, Mapping) and [*value] != ["key"]:
            raise ValueError("must be a path in the record's value, or {key: path} for a field of the record's key")
        if value is not None:
            parse_path(value if isinstance(value, str) else value["key"])
        return value

    @property
    def is_from_key(self) -> bool:
        return isinstance(self.from_, Mapping)

    @property
    def path(self) -> FieldPath:
        if isinstance(self.from_, Mapping):
            return parse_path(self.from_["key"])
        return (self.name,) if self.from_ is None else parse_path(self.from_)

    def reading_settings(self, cast: Literal["strict", "lenient"] = "strict") -> dict[str, Any]:
        """Return the settings for reading the column, except type and unit. `cast` is the stream's setting."""
        settings: dict[str, Any] = {} if self.path == (self.name,) else {"from": [*self.path]}
        if "lenient" in {cast, self.cast} and "<" not in self.type:
            settings["cast"] = self.cast or cast
        if self.rounding:
            settings["rounding"] = self.rounding
        if self.null_if:
            settings["null-if"] = [*self.null_if]
        if self.default is not None:
            settings["default"] = self.default
        return settings

    @field_validator("as_")
    @classmethod
    def _check_as(cls, value: object) -> object:
        if isinstance(value, Mapping) and not all(part.strip() for name in value for part in name.split(".")):
            raise ValueError("has a name with an empty part; write field, or field.inner")
        return value

    @property
    def json_text_fields(self) -> tuple[str, ...]:
        """Full names of the column's string fields, or of the column itself, whose values are JSON."""
        if self.as_ is None:
            return (self.name,) if self.type == "variant" else ()
        return tuple(f"{self.name}.{name}" for name in self.as_) if isinstance(self.as_, Mapping) else (self.name,)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if "." in value or value != value.strip():
            raise ValueError("has a dot or surrounding spaces; a column's name must have neither")
        if any(c < " " or c in '"\\' for c in value):
            raise ValueError("has a quote, a backslash or a control character; a column's name must have none of them")
        return value


def _convert_columns(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple(convert_column(str(name), declared) for name, declared in value.items())
    if isinstance(value, list | tuple):
        return value
    raise ValueError("is not a mapping of columns; write column: type, such as id: long not null")


def convert_column(name: str, declared: object) -> object:
    """Convert `"type [not null]"`, or a mapping with `type`, to the model's form. The model rejects other values."""
    if isinstance(declared, str):
        bare = _NOT_NULL.sub("", declared)
        return {"name": name, "type": bare, "required": bare != declared}
    return {"name": name, **declared} if isinstance(declared, Mapping) else {"name": name, "type": declared}


Columns = Annotated[tuple[Column, ...], BeforeValidator(_convert_columns), YamlForm("mapping of columns")]


class EventTime(Model):
    """The column with the time of a record's event."""

    short_form = "column"
    column: str
    """A `timestamptz` or `timestamp` column, or `kafka_timestamp`."""
    unit: TimeUnit = "iso"
    """Like `unit` of a column."""


class Watermark(Model):
    """How the stream's event time advances."""

    idle_timeout: PositiveDuration = timedelta(minutes=5)
    """A topic-partition without unread records for this long does not hold the watermark back."""
    max_future: PositiveDuration = timedelta(minutes=10)
    """How far an event time may be ahead of Kafka's timestamp and of the clock.

    Later times do not advance the watermark.
    """
