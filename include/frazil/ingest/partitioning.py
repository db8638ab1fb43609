"""Splits rows by a table's partition values, and sorts them by the table's sort order. Chooses each row's shuffle
writer by table partition and Kafka coordinates, so repeated tasks choose equally.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.types import BinaryType, IcebergType

from frazil.ingest.arrow_values import unwrap_extension
from frazil.ingest.contract import OffsetRange, Shuffle
from frazil.ingest.parquet import FileLayout, encode_partition


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
    if isinstance(transform, TruncateTransform) and isinstance(source, BinaryType):
        return pc.binary_slice(array, 0, transform.width)  # PyIceberg's transform refuses Arrow's large binary
    return transform.pyarrow_transform(source)(array)


def split_by_partition(table: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[PartitionRows]:
    """Yield the rows of each partition, in their original order. Copies rows if there are several partitions."""
    if table.num_rows == 0:
        return
    codes, values = group_by_partition(table, schema, spec)
    if len(values) == 1:
        yield PartitionRows(values[0], table)
        return
    for positions in split_by_code(codes):
        yield PartitionRows(values[int(codes[positions[0]])], table.take(pa.array(positions)))


def split_by_code(codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the positions of each distinct code, in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def group_by_partition(
    table: pa.Table, schema: Schema, spec: PartitionSpec
) -> tuple[NDArray[np.int64], list[tuple[Any, ...]]]:
    """Return the distinct partition values, and each row's index in them."""
    encoded = [_encode_distinct(table, schema, field) for field in spec.fields]
    if len(encoded) == 1:
        code, dictionary = encoded[0]
        return code.astype(np.int64), [(value,) for value in dictionary.to_pylist()]
    codes = np.zeros(table.num_rows, np.int64)
    if all(len(dictionary) == 1 for _, dictionary in encoded):
        return codes, [tuple(dictionary[0].as_py() for _, dictionary in encoded)]
    for code, dictionary in encoded:
        codes = codes * len(dictionary) + code
    groups = pa.array(codes).dictionary_encode()
    parts = np.unravel_index(groups.dictionary.to_numpy(), [len(dictionary) for _, dictionary in encoded])
    columns = [d.take(pa.array(part)).to_pylist() for part, (_, d) in zip(parts, encoded, strict=True)]
    return groups.indices.to_numpy().astype(np.int64), list(zip(*columns, strict=True))


def _transform_column(table: pa.Table, schema: Schema, field: PartitionField | SortField) -> pa.Array:
    if isinstance(field.transform, VoidTransform):  # its column may have been dropped
        return pa.nulls(table.num_rows, pa.bool_())
    source = schema.find_type(field.source_id)
    return apply_transform(column_of(table, schema, field.source_id), field.transform, source)


def _encode_distinct(table: pa.Table, schema: Schema, field: PartitionField) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Return the distinct transformed values (including nulls and NaNs), and each row's index in them."""
    encoded = _transform_column(table, schema, field).dictionary_encode(null_encoding="encode")
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
        array = _transform_column(table, schema, field)
        direction = "ascending" if field.direction == SortDirection.ASC else "descending"
        if array.null_count:
            add(array.is_null(), "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending")
        if pa.types.is_floating(array.type):
            add(pc.is_nan(array), direction)
        add(array, direction)
    if not keys:
        return table
    return table.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
"""Compression of rows before Spark gets them, so that fewer bytes pass between Python and the JVM."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows that a task sends to one shuffle writer. `data` is an Arrow IPC stream."""

    writer: int
    task: int
    rows: int
    data: bytes


class Shuffler:
    def __init__(self, shuffle: Shuffle, layout: FileLayout, ranges: Sequence[OffsetRange], *, task: int) -> None:
        self._shuffle, self._layout, self._task = shuffle, layout, task
        self._salts = np.array([zlib.crc32(f"{r.topic}\0{r.partition}".encode()) for r in ranges], np.uint64)
        self._found: dict[tuple[object, ...], tuple[NDArray[np.uint16], NDArray[np.float64]]] = {}
        """The shuffle writers of each partition, and the end of each writer's share of `[0, 1)`."""
        self.sent = [0] * shuffle.writers

    @property
    def partitions(self) -> int:
        return len(self._found)

    def __call__(self, rows: pa.Table, *, range_index: NDArray[np.int32], offsets: NDArray[np.int64]) -> list[Parcel]:
        if rows.num_rows == 0:
            return []
        codes, values = group_by_partition(rows, self._layout.schema, self._layout.spec)
        shares = [self._find_shares(value) for value in values]
        writers = np.array([several[0] for several, _ in shares], np.uint16)[codes]
        for code, (several, ends) in enumerate(shares):
            if len(several) > 1:
                mine = np.flatnonzero(codes == code)
                draws = _pseudo_random(self._salts[range_index[mine]], offsets[mine])
                writers[mine] = several[np.searchsorted(ends[:-1], draws, side="right")]
        order = np.argsort(writers, kind="stable")
        counts = np.bincount(writers, minlength=self._shuffle.writers).tolist()
        sorted_rows = rows if counts.count(0) == len(counts) - 1 else rows.take(pa.array(order))
        parcels, start = [], 0
        for writer, count in enumerate(counts):
            if count:
                sent = sorted_rows.slice(start, count)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, sent.schema, options=_IPC) as to:
                    to.write_table(sent)
                packed: bytes = sink.getvalue().to_pybytes()
                parcels.append(Parcel(writer, self._task, count, packed))
                self.sent[writer] += count
                start += count
        return parcels

    def _find_shares(self, values: tuple[object, ...]) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
        # Floats that compare equal can be different partitions: 0.0 and -0.0.
        name = tuple(repr(v) if isinstance(v, float) else v for v in values)
        if name not in self._found:
            key = encode_partition(self._layout, values)
            writer = zlib.crc32(repr(key).encode()) % self._shuffle.writers
            writers, ends = zip(*self._shuffle.shares.get(key, ((writer, 1.0),)), strict=True)
            self._found[name] = np.array(writers, np.uint16), np.array(ends)
        return self._found[name]


def unpack_parcel(parcel: Parcel) -> pa.Table:
    with pa.ipc.open_stream(parcel.data) as stream:
        return stream.read_all()


def _pseudo_random(salts: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Derive a number in `[0, 1)` from each salt and offset, with SplitMix64's finalizer (OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        mixed = offsets.astype(np.uint64) + salts * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    positions: NDArray[np.float64] = (mixed >> np.uint64(11)) / 2**53
    return positions
