"""Packs the headers of each record into one byte string. A header has two lengths (little-endian int32; `NULL` for a
null value), the name in UTF-8, the value, and a newline.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.binary_arrays import as_loop_arguments, read_only
from frazil.ingest.binary_column import NULL, BinaryColumn
from frazil.ingest.compiled import compiled, load32

HEADER_LENGTHS = struct.Struct("<ii")

Headers = Sequence[tuple[str, bytes | None]]


def pack_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> bytes | None:
    """Return a record's headers as packed bytes; None if the record has no headers."""
    parts = []
    for name, value in headers or ():
        text = name.encode("utf-8", "surrogateescape")
        parts += [HEADER_LENGTHS.pack(len(text), NULL if value is None else len(value)), text, value or b"", b"\n"]
    return b"".join(parts) or None


def unpack_headers(data: bytes | None) -> list[tuple[str, bytes | None]]:
    """Return the headers in packed bytes. Bytes of a name that are not UTF-8 are escaped with backslashes."""
    found, at, text = [], 0, data or b""
    while at < len(text):
        name_bytes, value_bytes = HEADER_LENGTHS.unpack_from(text, at)
        at += HEADER_LENGTHS.size
        name = text[at : at + name_bytes].decode("utf-8", "backslashreplace")
        at += name_bytes
        found.append((name, None if value_bytes == NULL else text[at : at + value_bytes]))
        at += max(value_bytes, 0) + 1
    return found


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
