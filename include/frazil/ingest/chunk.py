"""Records as read from Kafka, before decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.binary_column import BinaryColumn


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
    """Packed headers (`frazil.ingest.headers`); null for a record without headers. None if no record has headers."""
    target: str = field(default="main", kw_only=True)

    @classmethod
    def of_values(cls, values: Sequence[bytes | None]) -> RecordChunk:
        """Create a chunk from values alone, without keys, as one range from offset 0."""
        return cls.of_column(BinaryColumn.of(values))

    @classmethod
    def of_column(cls, values: BinaryColumn) -> RecordChunk:
        count = len(values)
        return RecordChunk(
            values,
            BinaryColumn.nulls(count),
            np.zeros(count, np.int32),
            np.arange(count, dtype=np.int64),
            np.full(count, -1, np.int64),
        )

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, end: int) -> Self:
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts: dict[str, Any] = {
            name: column[start:end] for name, column in columns.items() if name != "target" and column is not None
        }
        return dataclasses.replace(self, **parts)

    def select(self, places: NDArray[np.int64], target: str) -> RecordChunk:
        return RecordChunk(
            self.values.take(places),
            self.keys.take(places),
            self.range_index[places],
            self.offsets[places],
            self.timestamps_ms[places],
            headers=None if self.headers is None else self.headers.take(places),
            target=target,
        )
