"""The columns that frazil adds to a declared table: where in Kafka a row was read."""

from __future__ import annotations

from frazil.spec.types import Primitive

COORDINATES = {
    "kafka_topic": Primitive("string"),
    "kafka_partition": Primitive("int"),
    "kafka_offset": Primitive("long"),
    "kafka_timestamp": Primitive("timestamptz"),
}
"""The columns that frazil adds, unless `coordinates: false`, with their types."""

LINE = "kafka_line"
"""The column that frazil adds beside them where a record may be several rows, which it numbers from 0."""
RESERVED = frozenset({*COORDINATES, LINE})

REQUIRED_COORDINATES = frozenset({"kafka_topic", "kafka_partition", "kafka_offset"})
