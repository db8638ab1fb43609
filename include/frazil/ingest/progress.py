"""What became of each range: how many rows and dead letters, and how far event time got."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from frazil.ingest.contract import OffsetRange, RangeProgress

NEVER = np.iinfo(np.int64).min


class ProgressCounter:
    """Adds up chunks. `event_times` are microseconds since the epoch, UTC, and may be null."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = ranges
        self._records = np.zeros(len(ranges), np.int64)
        self._rejected = np.zeros(len(ranges), np.int64)
        self._max_event_time = np.full(len(ranges), NEVER)

    @property
    def records(self) -> int:
        """Records read so far, rejected ones included."""
        return int(self._records.sum() + self._rejected.sum())

    def landed(self, range_index: NDArray[np.int32], event_times: pa.Array) -> None:
        """Rows with the range that each came from."""
        if len(range_index) == 0:
            return
        self._records += np.bincount(range_index, minlength=len(self._ranges))
        times = event_times.fill_null(NEVER) if event_times.null_count else event_times
        # Kafka hands records over in runs of one partition: a maximum per run is a few operations, not one a record.
        starts = np.flatnonzero(np.r_[True, range_index[1:] != range_index[:-1]])
        highest = np.maximum.reduceat(times.to_numpy(), starts)
        np.maximum.at(self._max_event_time, range_index[starts], highest)

    def rejected(self, range_index: NDArray[np.int32]) -> None:
        self._rejected += np.bincount(range_index, minlength=len(self._ranges))

    def result(self) -> tuple[RangeProgress, ...]:
        return tuple(
            RangeProgress(
                r.topic,
                r.partition,
                r.start,
                r.end,
                records=int(self._records[i]),
                rejected=int(self._rejected[i]),
                max_event_time_us=None if self._max_event_time[i] == NEVER else int(self._max_event_time[i]),
            )
            for i, r in enumerate(self._ranges)
        )
