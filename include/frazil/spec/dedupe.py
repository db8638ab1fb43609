"""Declares the repeated records that an append stream drops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from frazil.spec.inconsistent import Problem
from frazil.spec.upsert import find_key_problems
from frazil.spec.values import Model, PositiveDuration, YamlForm

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


class Dedupe(Model):
    """Drops repeats: of rows with the same key and close event times, only the first is kept."""

    key: Annotated[tuple[str, ...], YamlForm("column, or list of columns")] = Field(
        min_length=1, description="The columns in which repeats are equal."
    )
    within: PositiveDuration = Field(
        description="A row is dropped if the table or the batch has a row with the same key at most this far "
        "away in event time."
    )

    @field_validator("key", mode="before")
    @classmethod
    def _wrap_single_column(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def problems(spec: StreamSpec) -> Iterator[Problem]:
    """Yield the problems of the key that is declared for `dedupe`."""
    if (dedupe := spec.dedupe) is None:
        return
    columns = {column.name: column for column in spec.columns}
    yield from find_key_problems(spec, "dedupe.key", dedupe.key, columns)
