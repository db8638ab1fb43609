"""Splits rows by a table's partition values, and sorts them by the table's sort order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.types import BinaryType, IcebergType

from frazil.ingest.arrow_values import unwrap_extension


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The rows of one partition. `values` has the transformed Python value of each partition field."""

    values: tuple[Any, ...]
    rows: pa.Table


def column_of(table: pa.Table, schema: Schema, field_id: int) -> pa.Array:
    """Return the values of a field, which may be nested, as one array. UUIDs become their 16 bytes."""
    path = schema.accessor_for_field(field_id)
    array = table.column(path.position).combine_chunks()
    while path.inner is not None:
        path = path.inner
        array = array.flatten()[path.position]  # flatten: null where the struct is null
    return unwrap_extension(array)


def apply_transform(array: pa.Array, transform: Transform[Any, Any], source: IcebergType) -> pa.Array:
    if isinstance(transform, IdentityTransform):
        return array
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(array), array.type)
    if isinstance(transform, TruncateTransform) and isinstance(source, BinaryType):
        return pc.binary_slice(array, 0, transform.width)  # PyIceberg's transform refuses Arrow's large binary
    return transform.pyarrow_transform(source)(array)


def split_by_partition(table: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[PartitionRows]:
    """Yield the rows of each partition, in their original order. Copies rows if there are several partitions."""
    if table.num_rows == 0:
        return
    encoded = [_encode_distinct(table, schema, field.source_id, field.transform) for field in spec.fields]
    values = [dictionary for _, dictionary in encoded]
    if all(len(dictionary) == 1 for dictionary in values):
        yield PartitionRows(tuple(dictionary[0].as_py() for dictionary in values), table)
        return
    codes = np.zeros(table.num_rows, np.int64)
    for code, dictionary in encoded:
        codes = codes * len(dictionary) + code
    for places in split_by_code(codes):
        key = tuple(dictionary[int(code[places[0]])].as_py() for code, dictionary in encoded)
        yield PartitionRows(key, table.take(pa.array(places)))


def split_by_code(codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the positions of each distinct code, in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def group_by_partition(
    table: pa.Table, schema: Schema, spec: PartitionSpec
) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """Return the distinct partition values, and each row's index in them."""
    encoded = [_encode_distinct(table, schema, field.source_id, field.transform) for field in spec.fields]
    if len(encoded) == 1:
        code, dictionary = encoded[0]
        return code.astype(np.int64), [(value,) for value in dictionary.to_pylist()]
    codes = np.zeros(table.num_rows, np.int64)
    for code, dictionary in encoded:
        codes = codes * len(dictionary) + code
    _, first, groups = np.unique(codes, return_index=True, return_inverse=True)
    columns = [dictionary.take(pa.array(code[first])).to_pylist() for code, dictionary in encoded]
    return groups, list(zip(*columns, strict=True)) or [()]


def _encode_distinct(
    table: pa.Table, schema: Schema, source_id: int, transform: Transform[Any, Any]
) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Return the distinct transformed values (including nulls and NaNs), and each row's index in them."""
    source = schema.find_type(source_id)
    array = apply_transform(column_of(table, schema, source_id), transform, source)
    encoded = array.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary


def sort_rows(table: pa.Table, schema: Schema, order: SortOrder) -> pa.Table:
    """Sort rows by the table's sort order. NaN sorts after all numbers."""
    keys: dict[str, pa.Array] = {}
    directions: list[tuple[str, str]] = []

    def add(array: pa.Array, direction: str) -> None:
        name = str(len(keys))
        keys[name] = array
        directions.append((name, direction))

    for field in order.fields:
        source = schema.find_type(field.source_id)
        array = apply_transform(column_of(table, schema, field.source_id), field.transform, source)
        direction = "ascending" if field.direction == SortDirection.ASC else "descending"
        if array.null_count:
            add(array.is_null(), "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending")
        if pa.types.is_floating(array.type):
            add(pc.is_nan(array), direction)
        add(array, direction)
    if not keys:
        return table
    return table.take(pc.sort_indices(pa.table(keys), sort_keys=directions))
