"""Checks the columns of a Parquet file against a table by name and type, and casts them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.errors import SpecError

_Test = Callable[[pa.DataType], bool]

_NESTED: tuple[_Test, ...] = (
    pa.types.is_struct,
    pa.types.is_map,
    lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind),
)
_FAMILIES: tuple[_Test, ...] = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_time,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)


def check_columns(path: str, file: ds.ParquetFileFragment, *schemas: Schema) -> set[str]:
    """Return the file's column names. Raises SpecError for a missing required column or a wrong type."""
    columns = file.metadata.schema
    int96 = {columns.column(i).path for i in range(len(columns)) if columns.column(i).physical_type == "INT96"}
    found = {field.name: field.type for field in file.physical_schema}
    for schema in schemas:
        for declared, field in zip(schema.fields, schema_to_pyarrow(schema), strict=True):
            name, kind = field.name, found.get(field.name)
            if kind is None:
                if declared.required:
                    raise SpecError(
                        f"{path} has no column {name}, which every record must have. Files can be backfilled whose "
                        "records have the table's required columns, and kafka_topic, kafka_partition and kafka_offset"
                    )
            # INT96 is always an instant, although Arrow reads it as a time without a zone.
            elif not fits(pa.timestamp("us", "UTC") if name in int96 else kind, field.type):
                raise SpecError(
                    f"{path}: column {name} is {kind}, and cannot become the table's {declared.field_type}. "
                    "Write the file again with that type"
                )
    return set(found)


def cast_columns(path: str, rows: pa.Table, schema: Schema) -> pa.Table:
    """Cast the rows to the schema's columns and types. Columns that the file does not have become null.

    Raises SpecError for a null in a required column, and ArrowInvalid for a value that its column's type cannot hold.
    """
    wanted = schema_to_pyarrow(schema, include_field_ids=True)
    arrays = []
    for declared, field in zip(schema.fields, wanted, strict=True):
        if field.name not in rows.column_names:
            arrays.append(pa.nulls(len(rows), field.type))
            continue
        column = rows[field.name]
        if declared.required and column.null_count:
            raise SpecError(f"{path}: column {field.name} is required, but has nulls. Remove those records")
        # Nanoseconds are truncated to the table's microseconds, as in JSON.
        safe = not pa.types.is_timestamp(field.type)
        arrays.append(column.cast(field.type, safe=safe))
    return pa.Table.from_arrays(arrays, schema=wanted)


def fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value of type `found` fits type `wanted`. A loss of nanoseconds is accepted."""
    if pa.types.is_dictionary(found):
        return fits(found.value_type, wanted)
    if pa.types.is_nested(wanted):
        return _nested_fit(found, wanted)
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(found) and (found.tz is None) == (wanted.tz is None)
    if pa.types.is_decimal(wanted):
        alike = pa.types.is_decimal(found) and found.scale == wanted.scale
        return bool(alike and found.precision <= wanted.precision)
    family = next((of for of in _FAMILIES if of(wanted)), None)
    return bool(found == wanted if family is None else family(found) and _width(found) <= _width(wanted))


def _nested_fit(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a nested type fits. Structs need the same field names in the same order; the parts of lists and
    maps may have other names.
    """
    if not any(of(found) and of(wanted) for of in _NESTED):
        return False
    ours, theirs = ([kind.field(i) for i in range(kind.num_fields)] for kind in (wanted, found))
    named = not pa.types.is_struct(wanted) or [f.name for f in ours] == [f.name for f in theirs]
    return named and all(fits(a.type, b.type) for a, b in zip(theirs, ours, strict=True))


def _width(kind: pa.DataType) -> int:
    return kind.bit_width if pa.types.is_primitive(kind) else 0
