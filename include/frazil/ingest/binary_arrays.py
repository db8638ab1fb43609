"""Reads the byte strings and packed headers of records into columns in compiled code, without Python objects."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.types import NestedField, StringType

from frazil.ingest.chunk import NULL, BinaryColumn
from frazil.ingest.compiled import compiled, load32, memcpy
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scan import Octets, find_invalid_utf8

Kind = TypeVar("Kind", bound=np.generic)


@compiled
def copy_values(data: Octets, starts: Numbers, lengths: Numbers, offsets: Numbers, to: Octets) -> None:
    for i in range(len(starts)):
        if lengths[i] > 0:
            memcpy(to.ctypes.data + offsets[i], data.ctypes.data + starts[i], lengths[i])


@compiled
def find_each_invalid_utf8(data: Octets, starts: Numbers, lengths: Numbers, where: Numbers) -> None:
    """Write the position of each value's first invalid UTF-8 byte to `where`, or -1. A newline follows each value."""
    for i in range(len(starts)):
        position = find_invalid_utf8(data, starts[i], starts[i] + max(lengths[i], 0))
        where[i] = position - starts[i] if position >= 0 else -1


def locate_invalid_utf8(values: BinaryColumn) -> Numbers:
    positions = np.empty(len(values), np.int64)
    find_each_invalid_utf8(*as_loop_arguments(values), positions)
    return positions


def to_arrow_binary(values: BinaryColumn, kind: pa.DataType) -> pa.Array:
    """Convert the values to a `large_binary` or `large_string` array, without checking UTF-8."""
    lengths = np.maximum(values.lengths, 0)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    octets = np.empty(int(offsets[-1]), np.uint8)
    copy_values(*as_loop_arguments(values), offsets, octets)
    present = values.lengths != NULL
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(offsets), pa.py_buffer(octets)])


def find_failures(values: BinaryColumn, field: NestedField, *, name: str) -> dict[int, tuple[str, str]]:
    """Return the error class and text of each value that does not fit a `string` or `binary` column, by index.

    `name` is the values' name in messages, such as "key".
    """
    failures: dict[int, tuple[str, str]] = {}
    if field.required:
        missing = ("MissingRequired", f"{field.name}: required, and the record has no {name}")
        failures = dict.fromkeys(np.flatnonzero(values.lengths == NULL).tolist(), missing)
    if isinstance(field.field_type, StringType):
        byte = locate_invalid_utf8(values)
        for index in np.flatnonzero(byte >= 0).tolist():
            text = f"{field.name}: the {name} is not UTF-8 (byte {byte[index]}): write UTF-8, or make the column binary"
            failures[index] = ("InvalidUtf8", text)
    return failures


def as_loop_arguments(values: BinaryColumn) -> tuple[Octets, Numbers, Numbers]:
    """Return data, starts and lengths as contiguous, read-only arrays, as compiled loops require."""
    return read_only(values.data), read_only(values.starts), read_only(values.lengths)


def read_only(array: NDArray[Kind]) -> NDArray[Kind]:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def header_column(headers: BinaryColumn | None, name: str, count: int) -> BinaryColumn:
    """Return the value of each record's last header with this name, or null. Shares the buffer of `headers`."""
    if headers is None:
        return BinaryColumn.nulls(count)
    spans = np.empty((2, count), np.int64)
    find_last_header(*as_loop_arguments(headers), read_only(np.frombuffer(name.encode(), np.uint8)), spans)
    return BinaryColumn(headers.data, *spans)


@compiled
def find_last_header(data: Octets, starts: Numbers, lengths: Numbers, name: Octets, spans: Numbers) -> None:
    address = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        spans[0, i], spans[1, i] = 0, NULL
        p = starts[i]
        end = p + max(lengths[i], 0)
        while p < end:
            name_bytes, value_bytes = load32(address + p), load32(address + p + 4)
            p += 8
            same = name_bytes == len(name)
            for j in range(len(name) if same else 0):
                same = same and data[p + j] == name[j]
            p += name_bytes
            if same:
                spans[0, i], spans[1, i] = p, value_bytes
            p += max(value_bytes, 0) + 1
