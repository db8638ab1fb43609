"""Opens a declared stream's tables, journals and Kafka for everything except its writer."""

from __future__ import annotations

import os
from dataclasses import dataclass

from frazil import clock
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import Patience
from frazil.errors import SpecError, TableLost
from frazil.kafka.admin import PERSON_WAITS_S, KafkaOffsets
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.table.lost import lost_table
from frazil.table.tables import ensure_dead_letters, load_stream_table

PATIENCE_S = 60.0
"""A command waits for a catalog for a shorter time than a writer does, because a person waits for it."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """One stream whose table exists."""

    spec: StreamSpec
    tables: StreamTables


def open_stream(spec: StreamSpec) -> OpenStream:
    """Open the stream's table without evolving it.

    Raises SpecError if there is none, TableLost if only the catalog lacks it.
    """
    table = load_stream_table(spec)
    if table is None:
        if lost := lost_table(spec):
            raise TableLost(f"stream {spec.name!r}: {lost}")
        raise SpecError(
            f"stream {spec.name!r} has no table {spec.table.identifier} yet: its first start makes it, "
            f"`frazil run {spec.name}` or its DAG"
        )
    tables = StreamTables.of(
        spec.name,
        {"main": table, "dead-letters": ensure_dead_letters(table.catalog, spec)},
        clock_ms=clock.now_ms,
        patience=Patience(total_s=PATIENCE_S),
    )
    return OpenStream(spec, tables)


def open_kafka(spec: StreamSpec, *, timeout_s: float = PERSON_WAITS_S) -> KafkaOffsets:
    """The stream's source; raises SpecError if a reference cannot be resolved."""
    # By default librdkafka writes every lost connection to stderr; the error that is raised says it once.
    properties = {"log_level": "2", **kafka_properties(spec, os.environ)}
    return KafkaOffsets(properties, spec.source.reads, stream=spec.name, timeout_s=timeout_s)
