"""Counts the records, dead letters and dropped records of each offset range, and finds its newest event time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.contract import OffsetRange, RangeProgress

NO_EVENT_TIME = np.iinfo(np.int64).min
MAX_WINDOWS = 1_000
"""Maximum number of windows by which rows are counted. With more, the commit's summary would be too long."""


class ProgressCounter:
    def __init__(self, ranges: Sequence[OffsetRange], *, max_future_us: int, window_us: int | None) -> None:
        self._ranges = ranges
        self._max_future_us = max_future_us
        self._window_us = window_us
        self.windows: Counter[int] | None = None if window_us is None else Counter()
        """Number of rows with an event time, by window start (us); None if windows are not counted."""
        self._records, self._rejected, self._dropped, self._future = np.zeros((4, len(ranges)), np.int64)
        self._max_event_time, self._newest_future = (np.full(len(ranges), NO_EVENT_TIME) for _ in range(2))

    @property
    def records(self) -> int:
        return int(self._records.sum() + self._rejected.sum() + self._dropped.sum())

    def count_rows(  # noqa: PLR0913 - the columns to count
        self,
        range_index: NDArray[np.int32],
        event_times: pa.Array,
        *,
        timestamps_ms: NDArray[np.int64],
        now_ms: int,
        records: NDArray[np.bool_] | None = None,
        window_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Count rows. The arrays have one entry per row. Event times are in us since the epoch, UTC, and may be null.

        A missing Kafka timestamp (below 0), or one after `now_ms`, counts as `now_ms`. `records` is a mask of each
        record's first row; None if each record has one row. `window_mask` is a mask of the rows to count by window;
        None for all.
        """
        if len(range_index) == 0:
            return
        row_ranges = range_index if records is None else range_index[records]
        self._records += np.bincount(row_ranges, minlength=len(self._ranges))
        times = (event_times.fill_null(NO_EVENT_TIME) if event_times.null_count else event_times).to_numpy()
        if self.windows is not None and self._window_us is not None:
            counted_times = times if window_mask is None else times[window_mask]
            known = counted_times[counted_times != NO_EVENT_TIME] if event_times.null_count else counted_times
            for counted in pc.value_counts(pa.array(known // self._window_us)).to_pylist():
                self.windows[counted["values"] * self._window_us] += counted["counts"]
            self.windows = self.windows if len(self.windows) <= MAX_WINDOWS else None
        known_ms = np.where(timestamps_ms < 0, now_ms, np.minimum(timestamps_ms, now_ms))
        ahead = times > known_ms * 1000 + self._max_future_us
        if ahead.any():
            self._future += np.bincount(range_index[ahead], minlength=len(self._ranges))
            np.maximum.at(self._newest_future, range_index[ahead], times[ahead])
            times = np.where(ahead, NO_EVENT_TIME, times)
        # Kafka delivers records in runs of one partition. A maximum per run is cheaper than one per record.
        runs = np.flatnonzero(np.r_[True, range_index[1:] != range_index[:-1]])
        highest = np.maximum.reduceat(times, runs)
        np.maximum.at(self._max_event_time, range_index[runs], highest)

    def count_rejected(self, range_index: NDArray[np.int32]) -> None:
        self._rejected += np.bincount(range_index, minlength=len(self._ranges))

    def count_dropped(self, range_index: NDArray[np.int32]) -> None:
        self._dropped += np.bincount(range_index, minlength=len(self._ranges))

    def result(self) -> tuple[RangeProgress, ...]:
        counts = zip(self._records, self._rejected, self._future, self._dropped, strict=True)
        times = zip(self._max_event_time.tolist(), self._newest_future.tolist(), strict=True)
        partitions = []
        for r, range_counts, (newest, future) in zip(self._ranges, counts, times, strict=True):
            records, rejected, in_future, dropped = map(int, range_counts)
            newest_us, future_us = (None if time_us == NO_EVENT_TIME else time_us for time_us in (newest, future))
            where = (r.topic, r.partition, r.start, r.end)
            partitions.append(RangeProgress(*where, records, rejected, newest_us, in_future, dropped, future_us))
        return tuple(partitions)


log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0


class Compilation:
    """Whether this process is compiling loops over records."""

    def __init__(self) -> None:
        self._functions = 0  # one function may call others, which are compiled first
        self.on_change: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        return self._functions > 0

    def begin(self) -> None:
        self._functions += 1
        if self._functions == 1:
            self.on_change()

    def end(self) -> None:
        self._functions -= 1
        if self._functions == 0:
            self.on_change()


compilation = Compilation()

OnProgress = Callable[[int, float], None]
"""Receives the number of records read, and how long (s) a broker quota delays each fetch."""


class ProgressReporter:
    """Reports the number of records that the task has read. If a report fails, the task continues."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._due = time.monotonic() + REPORT_INTERVAL_S
        self._warned = False

    def report_if_due(self, records: int, delay_s: float = 0.0) -> None:
        if time.monotonic() >= self._due:
            self(records, delay_s)
            self._due = time.monotonic() + REPORT_INTERVAL_S

    def __call__(self, records: int, delay_s: float = 0.0) -> None:
        try:
            self._on_progress(records, delay_s)
        except Exception as error:
            if not self._warned:
                log.warning("cannot report the task's progress; the task continues: %s", error)
            self._warned = True
