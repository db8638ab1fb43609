"""Stores a variant in a Parquet file as a group of `metadata` and `value`, without Numba.

PyArrow 26 writes such a group as a struct, but cannot annotate it. So a second footer with the annotation follows the
first: readers use the last footer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode
from pyiceberg.schema import Schema

from frazil.pyiceberg_fixes.variant import VariantType

GROUP = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in ("metadata", "value")])


def variant_columns(schema: Schema) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields if isinstance(field.field_type, VariantType))


def group_schema(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Return the schema with these columns as groups. Their parts have no field ids, as Iceberg requires."""
    return pa.schema([field.with_type(GROUP) if field.name in names else field for field in schema])


def map_statistics(schema: Schema, statistics: Mapping[int, Any], ids: Mapping[str, int]) -> tuple[Any, Any]:
    """Return PyIceberg's plans with the columns of variants. They have sizes, but no other statistics."""
    statistics, ids = {**statistics}, {**ids}
    for name in variant_columns(schema):
        field_id = ids.pop(name)
        ids |= {f"{name}.{part.name}": field_id for part in GROUP}
        statistics[field_id] = dataclasses.replace(statistics[field_id], mode=MetricsMode(MetricModeTypes.NONE))
    return statistics, ids


def annotated_footer(metadata: pq.FileMetaData, columns: pa.Schema) -> bytes:
    """Return the footer of a Parquet file (with its length, and `PAR1`), in which these columns are variants."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    footer = sink.getvalue().to_pybytes()[4:-8]
    for field in columns:
        name, field_id = field.name.encode(), int(field.metadata[b"PARQUET:field_id"])
        # Repetition, name, number of children and field id in Thrift's compact form. The field id is unique.
        element = b"\x35" + (b"\x02" if field.nullable else b"\x00") + b"\x18" + _varint(len(name)) + name
        element += b"\x15\x04\x45" + _varint(2 * field_id)
        if element + b"\0" not in footer:
            raise ValueError(f"PyArrow {pa.__version__} writes the column {field.name} in an unknown form")
        footer = footer.replace(element + b"\0", element + _ANNOTATION + b"\0", 1)
    return footer + len(footer).to_bytes(4, "little") + b"PAR1"  # type: ignore[no-any-return]


_ANNOTATION = b"\x1c\x0c\x20\x13\x01\x00\x00"
"""Thrift's compact form of a schema element's logical type: VARIANT, version 1."""


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])
