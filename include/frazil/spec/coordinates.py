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

REQUIRED_COORDINATES = frozenset({"kafka_topic", "kafka_partition", "kafka_offset"})
