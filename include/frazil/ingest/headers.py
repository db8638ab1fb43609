"""Packs the headers of each record into one byte string. A header has two lengths (little-endian int32; `NULL` for a
null value), the name in UTF-8, the value, and a newline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.binary_arrays import as_loop_arguments, read_only
from frazil.ingest.chunk import NULL, BinaryColumn
from frazil.ingest.compiled import compiled, load32


def header_column(headers: BinaryColumn | None, name: str, count: int) -> BinaryColumn:
    """Return the value of each record's last header with this name, or null. Shares the buffer of `headers`."""
    if headers is None:
        return BinaryColumn.nulls(count)
    places = np.empty((2, count), np.int64)
    find_last_header(*as_loop_arguments(headers), read_only(np.frombuffer(name.encode(), np.uint8)), places)
    return BinaryColumn(headers.data, *places)


@compiled
def find_last_header(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    name: NDArray[np.uint8],
    places: NDArray[np.int64],
) -> None:
    address = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        places[0, i], places[1, i] = 0, NULL
        at = starts[i]
        end = at + max(lengths[i], 0)
        while at < end:
            name_bytes, value_bytes = load32(address + at), load32(address + at + 4)
            at += 8
            same = name_bytes == len(name)
            for j in range(len(name) if same else 0):
                same = same and data[at + j] == name[j]
            at += name_bytes
            if same:
                places[0, i], places[1, i] = at, value_bytes
            at += max(value_bytes, 0) + 1


@compiled
def write_int32(to: Any, at: Any, value: Any) -> None:
    for i in range(4):
        to[at + i] = value >> 8 * i & 255
