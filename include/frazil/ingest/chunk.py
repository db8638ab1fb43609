"""Records as read from Kafka, before decoding: columns of byte strings without a Python object for each."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

NULL = -1
"""The length that marks a null value, as in Kafka's protocol."""
_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True, eq=False)
class BinaryColumn(Sequence[bytes | None]):
    """A sequence of `bytes` or None. Value i is `data[starts[i] :][: lengths[i]]`; None if its length is `NULL`.

    A newline follows each value in the buffer, so a loop can find a value's end without its length. A slice shares the
    buffer.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Self:
        lengths = np.fromiter((NULL if value is None else len(value) for value in values), np.int64, len(values))
        text = _NEWLINE.join([*(value or b"" for value in values), b""])
        ends = np.cumsum(np.maximum(lengths, 0) + 1)
        return cls(np.frombuffer(text, np.uint8), ends - 1 - np.maximum(lengths, 0), lengths)

    @classmethod
    def nulls(cls, count: int) -> Self:
        newlines = np.full(count, ord(_NEWLINE), np.uint8)
        return cls(newlines, np.arange(count, dtype=np.int64), np.full(count, NULL, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> bytes | Self | None:
        if isinstance(index, slice):
            return type(self)(self.data, self.starts[index], self.lengths[index])
        start, length = int(self.starts[index]), int(self.lengths[index])
        return None if length == NULL else self.data[start : start + length].tobytes()

    def __iter__(self) -> Iterator[bytes | None]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield None if length == NULL else self.data[start : start + length].tobytes()

    def take(self, picked: NDArray[np.int64]) -> Self:
        return type(self)(self.data, self.starts[picked], self.lengths[picked])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the values of this column, not the whole buffer."""
        return type(self).of, ([*self],)


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of several offset ranges, as columns of equal length. The records of each range are in offset order."""

    values: BinaryColumn
    keys: BinaryColumn
    range_index: NDArray[np.int32]
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    """Milliseconds since 1970; -1 if the record has no timestamp."""
    headers: BinaryColumn | None = field(default=None, kw_only=True)
    """Headers as `pack_headers` returns them; null for a record without headers. None if no record has headers."""
    target: str = field(default="main", kw_only=True)

    @classmethod
    def of_values(cls, values: Sequence[bytes | None]) -> RecordChunk:
        """Create a chunk from values alone, without keys, as one range from offset 0."""
        return cls.of_column(BinaryColumn.of(values))

    @classmethod
    def of_column(cls, values: BinaryColumn) -> RecordChunk:
        count = len(values)
        numbers = np.zeros(count, np.int32), np.arange(count, dtype=np.int64), np.full(count, -1, np.int64)
        return RecordChunk(values, BinaryColumn.nulls(count), *numbers)

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, end: int) -> Self:
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts: dict[str, Any] = {
            name: column[start:end] for name, column in columns.items() if name != "target" and column is not None
        }
        return dataclasses.replace(self, **parts)

    def select(self, picked: NDArray[np.int64], target: str) -> RecordChunk:
        headers = None if self.headers is None else self.headers.take(picked)
        numbers = self.range_index[picked], self.offsets[picked], self.timestamps_ms[picked]
        return RecordChunk(self.values.take(picked), self.keys.take(picked), *numbers, headers=headers, target=target)


HEADER_LENGTHS = struct.Struct("<ii")


def pack_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> bytes | None:
    """Return a record's headers as packed bytes; None if the record has no headers.

    A header has two lengths (little-endian int32; `NULL` for null), the name in UTF-8, the value, and a newline.
    """
    parts = []
    for name, value in headers or ():
        text = name.encode("utf-8", "surrogateescape")
        parts += [HEADER_LENGTHS.pack(len(text), NULL if value is None else len(value)), text, value or b"", b"\n"]
    return b"".join(parts) or None


def unpack_headers(data: bytes | None) -> list[tuple[str, bytes | None]]:
    """Return the headers in packed bytes. Bytes of a name that are not UTF-8 are escaped with backslashes."""
    headers, p, text = [], 0, data or b""
    while p < len(text):
        name_bytes, value_bytes = HEADER_LENGTHS.unpack_from(text, p)
        p += HEADER_LENGTHS.size
        name = text[p : p + name_bytes].decode("utf-8", "backslashreplace")
        p += name_bytes
        headers.append((name, None if value_bytes == NULL else text[p : p + value_bytes]))
        p += max(value_bytes, 0) + 1
    return headers
