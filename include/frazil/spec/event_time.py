"""Models of a stream's event time, and of how its watermark advances."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from frazil.spec.values import Model, PositiveDuration

TimeUnit = Literal["iso", "s", "ms", "us", "ns"]
"""ISO 8601 text, or a number since 1970 in this unit."""


class EventTime(Model):
    """The column with the time of a record's event."""

    column: str = Field(description="A `timestamptz` or `timestamp` column of the schema, or `kafka_timestamp`.")
    unit: TimeUnit = Field(
        default="iso",
        description="How records encode it, as `unit` of a column.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return {"column": value} if isinstance(value, str) else value


class Watermark(Model):
    """How the stream's event time advances."""

    idle_timeout: PositiveDuration = Field(
        default=timedelta(minutes=5),
        description="A topic-partition without unread records for this long no longer holds the watermark back.",
    )
    max_future: PositiveDuration = Field(
        default=timedelta(minutes=10),
        description="A row whose event time is further ahead of Kafka's timestamp or the clock lands, but "
        "does not advance the watermark.",
    )
