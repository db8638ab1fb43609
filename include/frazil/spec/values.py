"""Types of YAML values (durations, sizes, times, mappings), and the base model of all declarations.

The ValueError of a validator is the end of a sentence: `frazil.spec.problems` puts the file, key and value in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import core_schema

from frazil.spec.units import MAX_SIZE_BYTES, format_bytes, format_duration, parse_bytes, parse_duration
from frazil.timetext import parse_moment

MAX_PERCENT = 99
MAX_TEXT_CHARACTERS = 100_000
"""Maximum length of any string in a declaration, unless its key has a lower limit. Certificates and schemas are
the longest strings.
"""
MAX_DESCRIPTION_CHARACTERS = 10_000


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _positive_duration(value: object) -> timedelta:
    duration = parse_duration(value)
    if not duration:
        raise ValueError("is zero; write a duration above 0, such as 60s")
    return duration


def _positive_bytes(value: object) -> int:
    size_bytes = parse_bytes(value)
    if not size_bytes:
        raise ValueError("is zero; write a size above 0, such as 128MiB")
    return size_bytes


def _percent(value: object) -> object:
    text = str(value).strip().removesuffix("%").strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) > MAX_PERCENT:
        raise ValueError(f"is not a percentage from 0 to {MAX_PERCENT}, such as 50%")
    return int(text)


def _start(value: object) -> object:
    return (
        value
        if isinstance(value, str) and value in {"earliest", "latest"}
        else _moment(value, besides="earliest, latest or ")
    )


def _moment(value: object, besides: str = "") -> datetime:
    """Parse a time. Refuses a time without a zone, whose meaning would differ between machines."""
    try:
        moment = parse_moment(value if isinstance(value, datetime) else str(value))
    except ValueError:
        raise ValueError(f"is not {besides}an ISO 8601 time with a zone: 2013-12-30T00:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone; end it with Z (UTC) or an offset such as +02:00")
    return moment


def _texts(value: object) -> object:
    """Convert numbers and booleans to text, because Kafka, Iceberg and Spark expect properties as text."""
    if not isinstance(value, Mapping):
        return value
    return {
        str(k): str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int | float) else v
        for k, v in value.items()
    }


def _refuse_boolean(value: object) -> object:
    """Refuse booleans, because pydantic would accept `true` as 1."""
    if isinstance(value, bool):
        raise ValueError("is not an integer")  # noqa: TRY004
    return value


@dataclass(frozen=True, slots=True)
class Whole:
    """Restricts an `int` of a declaration to `minimum` to `maximum`, by default the limit of Spark and Iceberg.

    Bounds are set here, because pydantic loses some bounds of a key's `Field`, in its check or its JSON Schema. That
    happens with two upper bounds, or with one and a validator.
    """

    minimum: int = 1
    maximum: int = 2**31 - 1

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            _refuse_boolean, core_schema.int_schema(ge=self.minimum, le=self.maximum)
        )


Count = Annotated[int, Whole()]
Several = Annotated[int, Whole(minimum=2)]
Records = Annotated[int, Whole(maximum=2**63 - 1)]
"""An integer up to the largest number of offsets in a Kafka partition."""
Percentage = Annotated[int, Whole(maximum=100)]
"""A percentage as a bare number; `Percent` may also be written with a percent sign."""


@dataclass(frozen=True, slots=True)
class YamlForm:
    """How a value is written in YAML, in words, for the configuration reference."""

    words: str


_DURATION_JSON = WithJsonSchema({"type": "string", "pattern": r"^(0|(\d+(\.\d+)?(ms|s|m|h|d))+)$", "examples": ["60s"]})
_BYTES_JSON = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_SIZE_BYTES},
            {"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KMGT]i?B|B)?$", "examples": ["128MiB"]},
        ]
    }
)
_DURATION_TEXT = PlainSerializer(format_duration, return_type=str, when_used="json")
_BYTES_TEXT = PlainSerializer(format_bytes, return_type=str, when_used="json")

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    _DURATION_TEXT,
    _DURATION_JSON,
    YamlForm("duration: `60s`, `1h30m`"),
]
PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(_positive_duration),
    _DURATION_TEXT,
    _DURATION_JSON,
    YamlForm("duration above 0: `250ms`, `60s`"),
]
SIZE = YamlForm("size: `128MiB`, `1GB`, or bytes")
Bytes = Annotated[int, BeforeValidator(_positive_bytes), _BYTES_TEXT, _BYTES_JSON, SIZE]
_PERCENT_JSON = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MAX_PERCENT},
            {"type": "string", "pattern": r"^\d{1,2}\s*%?$", "examples": ["50%"]},
        ]
    }
)
Percent = Annotated[int, BeforeValidator(_percent), _PERCENT_JSON, YamlForm("percent: `50%`")]
Start = Annotated[
    Literal["earliest", "latest"] | datetime,
    BeforeValidator(_start),
    YamlForm("`earliest`, `latest`, or a time with a zone"),
]
Moment = Annotated[datetime, BeforeValidator(_moment), YamlForm("time with a zone: `2013-12-30T00:00:00Z`")]
Properties = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
    YamlForm("mapping of properties"),
]


class Model(BaseModel):
    """Base of all declared models. Fields are snake_case in Python and kebab-case in YAML.

    Unknown keys are errors, and every string has a maximum length.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_kebab,
        populate_by_name=True,
        str_max_length=MAX_TEXT_CHARACTERS,
    )
