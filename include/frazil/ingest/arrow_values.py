"""Array functions for input that Arrow's functions reject: some types, and required fields inside null structs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.decode import bisect_failures

VARIANT_GROUP = pa.struct([pa.field(name, pa.large_binary(), nullable=False) for name in ("metadata", "value")])
"""A variant in a Parquet file. PyArrow 26 writes it as a struct, but cannot annotate it. So a second footer with the
annotation follows the first: readers use the last footer.
"""


def to_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a boolean array as a NumPy mask, in which null is false."""
    mask: NDArray[np.bool_] = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask


def select_where(mask: NDArray[np.bool_], first: pa.Array, second: pa.Array) -> pa.Array:
    positions = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([first, cast_unchecked(second, first.type)]).take(pa.array(positions))


def unwrap_extension(array: pa.Array) -> pa.Array:
    """Return the storage of an extension array (the bytes of UUIDs); return any other array unchanged."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, even for extension types."""
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def child_arrays(array: pa.Array) -> list[pa.Array]:
    """Return a struct's fields, a map's keys and items, or a list's elements."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [array.keys, array.items]
    return [array.values] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


def with_children(array: pa.Array, children: Iterable[pa.Array], kind: pa.DataType, *, valid: bool = False) -> pa.Array:
    """Return `array` with new children. It must not be a slice. With `valid`, its nulls become arbitrary values."""
    mask = array.is_null() if array.null_count and not valid else None
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([*children], fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, *children, type=kind, mask=mask)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), *children, type=kind, mask=mask)
    return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), *children, type=kind, mask=mask)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return an Arrow table without rows. Arrow's own `empty_table` raises for UUIDs in lists, maps and structs."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def fill_hidden_nulls(rows: pa.Table) -> pa.Table:
    """Replace nulls of required fields inside null structs by arbitrary values, which readers never see.

    Raises ArrowInvalid if a required field is null although all enclosing values are present.
    """
    if not any(_has_required(field.type) for field in rows.schema):
        return rows
    columns = [
        pa.chunked_array([_fill_array(chunk, chunk, field.type) for chunk in column.chunks], field.type)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def cast_unchecked(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array. Unlike Arrow's `cast`, this accepts nulls in required fields."""
    if not _has_required(kind):
        return array.cast(kind)
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if pa.types.is_struct(kind):
        parts = [cast_unchecked(array.field(field.name), field.type) for field in kind]
    elif pa.types.is_map(kind):
        parts = [array.keys.cast(kind.key_type), cast_unchecked(array.items, kind.item_type)]
    else:
        parts = [cast_unchecked(array.values, kind.value_type)]
    return with_children(array, parts, kind)


def floor_nanoseconds(array: pa.Array) -> pa.Array:
    """Round times in nanoseconds, including nested ones, down to microseconds. Arrow's cast would round toward 1970."""
    if "timestamp[ns" not in str(array.type):
        return array
    if pa.types.is_timestamp(array.type):
        return pc.floor_temporal(array, unit="microsecond")
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    children = [floor_nanoseconds(child) for child in child_arrays(array)]
    return with_children(array, children, array.type) if children else array


def find_missing_required(array: pa.Array, field: pa.Field) -> dict[int, str]:
    """Return an error text, by index, for each value in which a required field is null. Ignores null structs."""
    errors: dict[int, str] = {}
    if not _has_required(field.type):
        return errors
    schema = pa.schema([field])
    check = lambda start, end: fill_hidden_nulls(pa.Table.from_arrays([array[start:end]], schema=schema))  # noqa: E731
    for start, end, result in bisect_failures(len(array), check):
        if isinstance(result, Exception):
            errors |= dict.fromkeys(range(start, end), f"{field.name}: {result}")
    return errors


def default_row(schema: pa.Schema) -> pa.Table:
    """Return one row in which optional columns are null, and required columns are zero or empty."""
    return pa.Table.from_arrays([_default_array(field) for field in schema], schema=schema)


def _default_array(field: pa.Field) -> pa.Array:
    kind: Any = field.type
    if field.nullable:
        return pa.nulls(1, kind)
    if pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_default_array(part) for part in parts], fields=parts)
    if isinstance(kind, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(kind, _mark_all_valid(pa.nulls(1, kind.storage_type)))
    return _mark_all_valid(pa.nulls(1, kind))


def _has_required(kind: pa.DataType) -> bool:
    """Return whether the type contains a required field, other than a map's key."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type)
    if not pa.types.is_nested(kind):
        return False
    return any(not kind.field(i).nullable or _has_required(kind.field(i).type) for i in range(kind.num_fields))


def _fill_array(array: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Fill the hidden nulls of an array. `values` selects the entries that are not inside a null value."""
    if not _has_required(kind):
        return array
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    values = values.filter(values.is_valid()) if values.null_count else values
    if pa.types.is_struct(kind):
        parts = [_fill_part(array.field(i), values.field(i), kind.field(i)) for i in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        parts = [array.keys, _fill_part(array.items, values.items, kind.item_field)]
    else:
        parts = [_fill_part(array.values, values.flatten(), kind.value_field)]
    return with_children(array, parts, kind)


def _fill_part(array: pa.Array, values: pa.Array, field: pa.Field) -> pa.Array:
    array = _fill_array(array, values, field.type)
    if field.nullable or array.null_count == 0:
        return array
    if values.null_count:
        raise pa.ArrowInvalid(f"{field.name}: required, and missing or null")
    return _mark_all_valid(array)


def _mark_all_valid(array: pa.Array) -> pa.Array:
    """Mark all values as valid. Former nulls have arbitrary values."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _mark_all_valid(array.storage))
    kind: Any = array.type
    if pa.types.is_nested(kind):
        return with_children(array, child_arrays(array), kind, valid=True)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset)
