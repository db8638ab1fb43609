"""Stores many byte strings, such as record values, in one buffer without a Python object for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload

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

    def take(self, places: NDArray[np.int64]) -> Self:
        return type(self)(self.data, self.starts[places], self.lengths[places])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the values of this column, not the whole buffer."""
        return type(self).of, ([*self],)
