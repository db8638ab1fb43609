"""Patches how PyIceberg reads and writes data files, in each process that imports this module.

PyIceberg 0.12 reads null lists and maps of structs as empty, and may compute an upper bound that is not valid text. It
cannot open files with a variant, not even to read other columns.
Each module that reads or writes data files through PyIceberg imports this one.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, _ConvertToIceberg, _ConvertToIcebergWithoutIDs, visit_pyarrow
from pyiceberg.types import ListType, MapType, NestedField

from frazil.pyiceberg_fixes import VariantType


def _list(
    self: ArrowProjectionVisitor, kind: ListType, array: pa.Array | None, values: pa.Array | None
) -> pa.Array | None:
    if values is None or not isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return None
    values = self._cast_if_needed(kind.element_field, values)
    element = self._construct_field(kind.element_field, values.type)
    if isinstance(array, pa.FixedSizeListArray):
        return _with_child(array, pa.list_(element, array.type.list_size), values).cast(pa.list_(element))
    return _with_child(array, (pa.large_list if isinstance(array, pa.LargeListArray) else pa.list_)(element), values)


def _map(
    self: ArrowProjectionVisitor, kind: MapType, array: pa.Array | None, keys: pa.Array | None, items: pa.Array | None
) -> pa.Array | None:
    if keys is None or items is None or not isinstance(array, pa.MapArray):
        return None
    keys, items = self._cast_if_needed(kind.key_field, keys), self._cast_if_needed(kind.value_field, items)
    fields = [self._construct_field(kind.key_field, keys.type), self._construct_field(kind.value_field, items.type)]
    return _with_child(array, pa.map_(*fields), pa.StructArray.from_arrays([keys, items], fields=fields))


def _with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return the lists or maps of `array` with the elements `child`. Nulls and lengths stay the same."""
    buffers: list[Any] = array.buffers()[: 1 if isinstance(array, pa.FixedSizeListArray) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[child])


def _upper_bound(text: str, length: int | None) -> str | None:
    """Return a text of at most `length` characters that is not less than `text`; None if no such text exists.

    PyIceberg would increment U+D7FF to half of a surrogate pair.
    """
    start = text[:length]
    if start == text:
        return text
    for end in range(len(start), 0, -1):
        if (last := ord(start[end - 1])) < sys.maxunicode:
            return start[: end - 1] + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def _is_variant(kind: pa.StructType) -> bool:
    """Return whether a struct in a file is a variant, whose parts have no field ids, unlike the fields of a struct."""
    names = {field.name for field in kind}
    if "metadata" not in names or names - {"metadata", "value", "typed_value"} or len(names) < 2:
        return False
    return not any(b"PARQUET:field_id" in (field.metadata or {}) for field in kind)


_visit_struct, _cast_if_needed = visit_pyarrow.dispatch(pa.StructType), ArrowProjectionVisitor._cast_if_needed


def _visit(kind: pa.StructType, visitor: Any) -> Any:
    # In a file without any field ids, nothing distinguishes a variant from a struct.
    if isinstance(visitor, _ConvertToIcebergWithoutIDs) or not _is_variant(kind):
        return _visit_struct(kind, visitor)
    return VariantType() if isinstance(visitor, _ConvertToIceberg) else visitor.primitive(kind)


def _cast_others(self: ArrowProjectionVisitor, field: NestedField, values: pa.Array) -> pa.Array:
    return values if isinstance(field.field_type, VariantType) else _cast_if_needed(self, field, values)


visit_pyarrow.register(pa.StructType, _visit)
ArrowProjectionVisitor._cast_if_needed = _cast_others  # type: ignore[method-assign]
ArrowProjectionVisitor.list = _list  # type: ignore[method-assign, assignment]
ArrowProjectionVisitor.map = _map  # type: ignore[method-assign, assignment]
pyiceberg.io.pyarrow.truncate_upper_bound_text_string = _upper_bound  # type: ignore[attr-defined, assignment]
