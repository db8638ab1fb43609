"""Models of a stream's event time, and of how its watermark advances."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, model_validator

from frazil.spec.values import Model, PositiveDuration

TimeUnit = Literal["iso", "s", "ms", "us", "ns"]


class EventTime(Model):
    """The column with the time of a record's event."""

    column: str = Field(description="A `timestamptz` or `timestamp` column of the schema, or `kafka_timestamp`.")
    unit: TimeUnit = Field(
        default="iso",
        description="ISO 8601 text, or a number of seconds, ms, us or ns since 1970. Same meaning as the column's "
        "`unit`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return {"column": value} if isinstance(value, str) else value


class Watermark(Model):
    """How the stream's event time advances."""

    idle_timeout: PositiveDuration = Field(
        default=timedelta(minutes=5),
        description="A topic-partition with nothing unread for this long no longer holds the watermark back.",
    )
    max_future: PositiveDuration = Field(
        default=timedelta(minutes=10),
        description="A row whose event time is further ahead of Kafka's timestamp, or of the clock, lands and "
        "does not move the watermark.",
    )
