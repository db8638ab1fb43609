"""Columns that frazil adds to a declared table: the position of the row's record in Kafka."""

from __future__ import annotations

from frazil.spec.types import Primitive

COORDINATES = {
    "kafka_topic": Primitive("string"),
    "kafka_partition": Primitive("int"),
    "kafka_offset": Primitive("long"),
    "kafka_timestamp": Primitive("timestamptz"),
}
LINE_COLUMN = "kafka_line"
"""Additional column if a record may become several rows: the row's number within its record, from 0."""
RESERVED_COLUMNS = frozenset({*COORDINATES, LINE_COLUMN})

METADATA_COLUMNS = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)
"""Lower-case names of Iceberg's metadata columns, which a table's own columns cannot have."""
METADATA_COLUMN_PROBLEM = (
    "has the name of one of Iceberg's metadata columns, so engines would refuse the table or read the wrong one"
)

REQUIRED_COORDINATES = frozenset({"kafka_topic", "kafka_partition", "kafka_offset"})
