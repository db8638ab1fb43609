"""Which records of an append stream repeat others, and are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from frazil.spec.inconsistent import Problem
from frazil.spec.upsert import key_problems
from frazil.spec.values import Model, PositiveDuration, YamlForm

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


class Dedupe(Model):
    """Rows of one key that lie near each other in event time are one row: the first one."""

    key: Annotated[tuple[str, ...], YamlForm("column, or list of columns")] = Field(
        min_length=1, description="The columns that are equal in a record and its repeats."
    )
    within: PositiveDuration = Field(
        description="A row is dropped if a kept row of its key is this near in event time, in the table or the batch."
    )

    @field_validator("key", mode="before")
    @classmethod
    def _column_alone(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def problems(spec: StreamSpec) -> Iterator[Problem]:
    """What is wrong with it, and what does not go with it."""
    if (dedupe := spec.dedupe) is None:
        return
    columns = {column.name: column for column in spec.columns}
    yield from key_problems(spec, "dedupe.key", dedupe.key, columns)
    if spec.mode == "upsert":
        yield Problem("dedupe", None, "is for mode: append; an upsert has one row of each key anyway. Leave it out")
    if spec.route is not None:
        yield Problem("dedupe", None, "does not go with a route yet; leave one of them out")
    if spec.commit.align != "none":
        what = "holds rows of open windows back on a branch, where dedupe does not look; leave one of them out"
        yield Problem("commit.align", spec.commit.align, what)
    if spec.has_lines:
        what = "makes several rows of a record, which have no order among them; leave it out with dedupe"
        yield Problem("source.format.lines", "true", what)
    if not spec.coordinates:
        what = "leaves nothing that tells which of two rows came first; keep the coordinates, or leave dedupe out"
        yield Problem("coordinates", False, what)
    if spec.evolution.mode == "full":
        what = "may make a column of the key optional; use additive, or leave dedupe out"
        yield Problem("evolution", spec.evolution.mode, what)
