"""A stream as its user declares it: frozen, kebab-case in YAML, complete with defaults.

Nothing here holds a secret: `${env:NAME}`, `${env:NAME:-default}` and `${airflow:connection.field}` stay as written
until `frazil.spec.references.resolve` is asked for the value, at the moment of use.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from frazil.spec.units import parse_bytes, parse_duration


def _kebab(name: str) -> str:
    return name.replace("_", "-")


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""`60s`, `5m`, `1h30m`, `250ms`, `7d`."""

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
"""`128MiB`, `1GB`, or a number of bytes."""


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_kebab, populate_by_name=True)


class Source(Model):
    """Where records come from."""

    bootstrap_servers: str
    topics: tuple[str, ...] = Field(min_length=1)
    format: Literal["json"] = "json"
    start: Literal["earliest", "latest"] | datetime = "earliest"
    properties: dict[str, str] = Field(default_factory=dict, description="librdkafka properties, secrets by reference")


class Column(Model):
    """One column: an Iceberg type as Iceberg writes it, `struct<…>`, `list<…>` and `map<…>` included."""

    name: str
    type: str
    required: bool = False
    doc: str | None = None


class Table(Model):
    """Which table the stream lands in, and how it is laid out."""

    identifier: str
    catalog: str | None = Field(None, description="a PyIceberg catalog; the default catalog if not named")
    location: str | None = None
    properties: dict[str, str] = Field(default_factory=dict)


class EventTime(Model):
    """The column that says when a record happened. `unit` is for numeric columns' wire form."""

    column: str
    unit: Literal["iso", "s", "ms", "us", "ns"] = "iso"


class Commit(Model):
    """When a batch is due: its size or its oldest unread record's age, whichever comes first."""

    interval: Duration = timedelta(seconds=60)
    size: Bytes = 128 * 2**20
    max_records: int = Field(20_000_000, gt=0)
    align: Literal["none"] = "none"


class Watermark(Model):
    idle_timeout: Duration = timedelta(minutes=5)


class DeadLetters(Model):
    """Records that cannot be decoded land in `<table>_dead_letters`, or in the table named here."""

    table: str | None = None


class Resources(Model):
    """What the writer may use of its machine."""

    cores: int = Field(2, gt=0)
    driver_memory: Bytes = 1 * 2**30
    spark: dict[str, str] = Field(default_factory=dict, description="further Spark properties")


class StreamSpec(Model):
    """One declared stream."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    source: Source
    table: Table
    columns: tuple[Column, ...] = Field(alias="schema", min_length=1)
    event_time: EventTime
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    commit: Commit = Commit()
    lateness: Duration = timedelta(0)
    watermark: Watermark = Watermark()
    coordinates: bool = Field(True, description="keep kafka_topic, kafka_partition, kafka_offset, kafka_timestamp")
    dead_letters: DeadLetters = DeadLetters()
    resources: Resources = Resources()

    def fingerprint(self) -> str:
        """A digest of everything declared: it changes exactly when a running writer must be restarted."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
