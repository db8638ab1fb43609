"""A declared column, written in the short form (`long not null`) or as a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, field_validator

from frazil.spec.event_time import TimeUnit
from frazil.spec.types import parse_type
from frazil.spec.values import MAX_DESCRIPTION_CHARACTERS, Model

_NOT_NULL = re.compile(r"(?<!\s)\s+not\s+null\s*$", re.IGNORECASE)


class Column(Model):
    """One column. Its type is written in Iceberg's notation, including `struct<…>`, `list<…>` and `map<…>`."""

    name: str = Field(min_length=1)
    type: str = Field(description="An Iceberg type: `string`, `decimal(10, 2)`, `list<struct<a: int>>`, …")
    required: bool = Field(
        False, description="`true`: a record without a value for the column is a dead letter (`not null`)."
    )
    doc: str | None = Field(
        default=None,
        max_length=MAX_DESCRIPTION_CHARACTERS,
        description="What the column means; kept in the table's schema.",
    )
    unit: TimeUnit | None = Field(
        default=None,
        description="How records encode a `timestamptz` or `timestamp`: `iso` text by default, or a number since 1970.",
    )

    @field_validator("type")
    @classmethod
    def _canonical_type(cls, value: str) -> str:
        return str(parse_type(value))

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if "." in value or value != value.strip():
            raise ValueError("has a dot or surrounding spaces, which a column's name must not have")
        if any(c < " " or c in '"\\' for c in value):
            raise ValueError("has a quote, a backslash or a control character, which a column's name must not have")
        return value


def columns_of(value: object) -> object:
    """Convert a mapping of declared columns to a tuple in the model's form. Raises ValueError for any other value."""
    if isinstance(value, list | tuple):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping of columns; write column: type, such as id: long not null")  # noqa: TRY004 - pydantic's
    return tuple(column_of(str(name), declared) for name, declared in value.items())


def column_of(name: str, declared: object) -> object:
    """Convert a declared column, `"type [not null]"` or a mapping with `type`, to the model's form.

    Any other value is passed on, and the model refuses it.
    """
    if isinstance(declared, str):
        bare = _NOT_NULL.sub("", declared)
        return {"name": name, "type": bare, "required": bare != declared}
    return {"name": name, **declared} if isinstance(declared, Mapping) else {"name": name, "type": declared}
