"""Runs one task of a merge that drops repeats.

A row is dropped if a kept row before it has the same key, and an event time at most `within_us` away. The table's rows
come before the batch's rows. Within the batch, rows are ordered by offset within a partition, and by Kafka's timestamps
across partitions.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.ingest.arrow_values import to_mask
from frazil.merge.changes import (
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Mask,
    NewestChanges,
    Numbers,
    column,
    encode_keys,
    encode_partitions,
    rank_values,
)
from frazil.merge.contract import MergeCounts, MergeResult, TableFile
from frazil.merge.table_files import TableFileReader, TaskRun, rows_without

CHANGE_ROW, ROW_INDEX = "_change", "_index"


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """A data file's live rows whose keys have changes."""

    file: TableFile
    positions: Numbers
    """Positions in the file, in order."""
    changes: Numbers
    """Index in `NewestChanges.rows` of each position's change."""
    deleted: Numbers
    """Positions that existing delete files delete."""


class KeyIndex:
    def __init__(self, newest: NewestChanges, key: tuple[str, ...]) -> None:
        self._key = key
        columns = {name: column(newest.rows, name) for name in key}
        # The first filter is the column with the most distinct values, so that few rows are left for the join.
        self._first = max(key, key=lambda name: len(columns[name].unique())) if newest.rows.num_rows else key[0]
        self._values = columns[self._first].unique()
        ends = {name: pc.min_max(array).as_py() for name, array in columns.items()}
        self.bounds = {name: (bounds["min"], bounds["max"]) for name, bounds in ends.items()}
        self._keys = pa.table({**columns, CHANGE_ROW: pa.array(np.arange(newest.rows.num_rows))})

    @property
    def batch_rows(self) -> int:
        """Number of rows to look up at once, which grows with the number of keys."""
        return max(2**18, int(self._keys.num_rows))

    def find_rows(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Return the sorted indexes of rows whose key has a change, and the index of each row's change."""
        columns = {name: column(rows, name) for name in self._key}
        first = columns[self._first]
        if len(columns) == 1:  # keys are distinct, so the index of a value among them is the index of its change
            key_ids = pc.index_in(first, self._values.cast(first.type))
            row_indexes = np.flatnonzero(to_mask(key_ids.is_valid()))
            return row_indexes, key_ids.drop_null().to_numpy().astype(np.int64)
        likely = np.flatnonzero(to_mask(pc.is_in(first, self._values)))
        if not len(likely):
            return likely, likely
        likely_columns = {name: array.take(pa.array(likely)) for name, array in columns.items()}
        likely_rows = pa.table({**likely_columns, ROW_INDEX: pa.array(likely)})
        fields = [*(likely_rows.schema.field(name) for name in self._key), self._keys.schema.field(CHANGE_ROW)]
        keys = self._keys.cast(pa.schema(fields))
        joined = likely_rows.join(keys, keys=list(self._key), join_type="inner", use_threads=False)
        indexes = column(joined, ROW_INDEX).to_numpy()
        order = np.argsort(indexes, kind="stable")
        return indexes[order], column(joined, CHANGE_ROW).to_numpy()[order]


def locate_rows(
    reader: TableFileReader, files: tuple[TableFile, ...], index: KeyIndex, keys: Schema
) -> Iterator[LocatedRows]:
    """Yield the rows whose keys have changes, file by file. `keys` is the schema of the key columns."""
    matches: list[list[_Match]] = [[] for _ in files]
    pending: list[tuple[int, int, pa.Table]] = []
    yielded = 0
    for number, file in enumerate(files):
        with reader.open(file.path) as data:
            for start, rows in data.row_groups(keys, data.may_hold(keys, index.bounds)):
                pending.append((number, start, rows))
                if sum(rows.num_rows for _, _, rows in pending) >= index.batch_rows:
                    _match_pending(index, pending, matches)
                    pending = []
        complete = pending[0][0] if pending else number + 1
        yield from (_make_located(reader, files[n], matches[n]) for n in range(yielded, complete))
        yielded = complete
    _match_pending(index, pending, matches)
    yield from (_make_located(reader, files[n], matches[n]) for n in range(yielded, len(files)))


_Match = tuple[Numbers, Numbers]


def _match_pending(index: KeyIndex, pending: list[tuple[int, int, pa.Table]], matches: list[list[_Match]]) -> None:
    if not pending:
        return
    indexes, key_ids = index.find_rows(pa.concat_tables([rows for _, _, rows in pending]))
    first = 0
    for number, start, rows in pending:
        rows_of_group = slice(*np.searchsorted(indexes, (first, first + rows.num_rows)))
        matches[number].append((indexes[rows_of_group] - first + start, key_ids[rows_of_group]))
        first += rows.num_rows


def _make_located(reader: TableFileReader, file: TableFile, parts: list[_Match]) -> LocatedRows:
    empty = np.zeros(0, np.int64)
    positions = np.concatenate([empty, *(positions for positions, _ in parts)])
    changes = np.concatenate([empty, *(changes for _, changes in parts)])
    deleted = reader.deleted_positions(file)
    is_live = ~np.isin(positions, deleted)
    return LocatedRows(file, positions[is_live], changes[is_live], deleted)


@dataclass(frozen=True, slots=True)
class _BatchRows:
    """All rows of a batch, in the order of the task's files, with the columns that identify repeats."""

    keys: pa.Table
    codes: Numbers
    """Each row's key, as a number from 0."""
    times: Numbers
    """Event times (us since 1970)."""
    timed: Mask
    """Mask of rows with an event time. Rows without one are never repeats."""
    coordinates: pa.Table
    """The columns that order the rows."""
    starts: tuple[int, ...]
    """The index of each file's first row, followed by the total number of rows."""


class RepeatsRun(TaskRun):
    def result(self) -> MergeResult:
        batch = self._read_batch()
        if not self.task.inserts:
            rules = self.context.rules
            codes, first = np.unique(batch.codes, return_index=True)
            index = KeyIndex(NewestChanges(batch.keys.take(pa.array(first)), first, 0), rules.key)
            parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
            for rows in self._live_rows(index.batch_rows):
                indexes, changes = index.find_rows(rows)
                times = column(rows, self._event_time).take(pa.array(indexes))
                has_time = to_mask(times.is_valid())
                parts.append((codes[changes[has_time]], _to_microseconds(times.drop_null())))
            of_table = np.concatenate([codes for codes, _ in parts]), np.concatenate([times for _, times in parts])
            is_repeat = find_repeats_of_table(batch.codes, batch.times, *of_table, within_us=self._within_us)
            matched = BitMap64(np.flatnonzero(is_repeat & batch.timed).tolist()).serialize()
            return MergeResult((), (), (), MergeCounts(), matched)
        repeated = np.zeros(len(batch.codes), np.bool_)
        if self.task.matched:
            repeated[np.array(BitMap64.deserialize(self.task.matched), np.int64)] = True
        repeated[self._find_repeats(batch, np.flatnonzero(batch.timed & ~repeated))] = True
        return self._rewrite_without(batch, repeated)

    def _read_batch(self) -> _BatchRows:
        rules = self.context.rules
        names = dict.fromkeys((*rules.key, self._event_time, TOPIC, PARTITION, OFFSET, TIMESTAMP))
        schema = self.schema.select(*names)
        files = [self.reader.read_rows(path, schema) for path in self.task.changes]
        starts = (0, *np.cumsum([rows.num_rows for rows in files]).tolist())
        rows = pa.concat_tables(files)
        times = column(rows, self._event_time)
        return _BatchRows(
            rows.select(list(rules.key)),
            encode_keys([column(rows, name) for name in rules.key], rows.num_rows),
            _to_microseconds(times.fill_null(pa.scalar(0, pa.int64()).cast(times.type))),
            to_mask(times.is_valid()),
            rows.select([TOPIC, PARTITION, OFFSET, TIMESTAMP]),
            starts,
        )

    @property
    def _within_us(self) -> int:
        assert self.context.rules.within_us is not None
        return self.context.rules.within_us

    @property
    def _event_time(self) -> str:
        assert self.context.rules.event_time is not None
        return self.context.rules.event_time

    def _live_rows(self, min_rows: int) -> Iterator[pa.Table]:
        """Yield keys and event times of live rows. Each table except the last has at least `min_rows` rows."""
        schema = self.schema.select(*dict.fromkeys((*self.context.rules.key, self._event_time)))
        pending: list[pa.Table] = []
        for file in self.task.files:
            deleted = self.reader.deleted_positions(file)
            with self.reader.open(file.path) as data:
                for start, rows in data.row_groups(schema):
                    pending.append(rows_without(rows, start, deleted))
            if sum(rows.num_rows for rows in pending) >= min_rows:
                yield pa.concat_tables(pending)
                pending = []
        if pending:
            yield pa.concat_tables(pending)

    def _find_repeats(self, batch: _BatchRows, candidates: Numbers) -> Numbers:
        """Return the rows among `candidates` that repeat another row of the batch."""
        several = candidates[np.bincount(batch.codes)[batch.codes[candidates]] > 1] if len(candidates) else candidates
        if not len(several):
            return several
        order = _rank_rows(batch.coordinates.take(pa.array(several)))
        return several[
            find_repeats_in_batch(batch.codes[several], batch.times[several], order, within_us=self._within_us)
        ]

    def _rewrite_without(self, batch: _BatchRows, repeated: Mask) -> MergeResult:
        """Rewrite this task's files that have repeats, and count the kept and dropped rows."""
        replaced, share = [], set(self.task.share)
        counts = MergeCounts()
        for path, start, end in zip(self.task.changes, batch.starts, batch.starts[1:], strict=False):
            if path not in share:
                continue
            is_repeat = repeated[start:end]
            self.count_windows(batch.times[start:end][~is_repeat])
            counts += MergeCounts(inserted=int((~is_repeat).sum()), repeated=int(is_repeat.sum()))
            if is_repeat.any():
                replaced.append(path)
                self.copy(path, np.flatnonzero(is_repeat))
        files = tuple(self.writer.finish())
        return MergeResult(files, tuple(replaced), (), counts, b"", dict(self.windows))


def find_repeats_of_table(
    codes: Numbers, times: Numbers, table_codes: Numbers, table_times: Numbers, *, within_us: int
) -> Mask:
    """Return a mask of rows that repeat a row of the table, at most `within_us` apart. Pure."""
    count = len(codes)
    keys, moments = np.r_[codes, table_codes], np.r_[times, table_times]
    ordered = np.lexsort((moments, keys))
    indexes = np.arange(len(ordered))
    of_table = ordered >= count
    near = np.zeros(len(ordered), np.bool_)
    previous_row = np.maximum.accumulate(np.where(of_table, indexes, -1))
    next_row = np.minimum.accumulate(np.where(of_table, indexes, len(ordered))[::-1])[::-1]
    for neighbour, exists in ((previous_row, previous_row >= 0), (next_row, next_row < len(ordered))):
        other = ordered[np.clip(neighbour, 0, max(len(ordered) - 1, 0))]
        same = exists & (keys[other] == keys[ordered])
        near |= same & _are_near(moments[other], moments[ordered], within_us)
    repeats = np.zeros(len(ordered), np.bool_)
    repeats[ordered] = near
    return repeats[:count]


def find_repeats_in_batch(codes: Numbers, times: Numbers, order: Numbers, *, within_us: int) -> Mask:
    """Return a mask of rows that repeat an earlier, kept row. `order` has the rows' ranks. Pure."""
    count = len(codes)
    ordered = np.lexsort((order, codes))
    keys, moments = codes[ordered], times[ordered]
    is_first = np.r_[True, keys[1:] != keys[:-1]][:count]
    group = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    near = _are_near(moments[first[group]], moments, within_us) if count else np.zeros(0, np.bool_)
    dropped = near & ~is_first
    ends = np.r_[first[1:], count]
    for number in np.unique(group[~near]).tolist():  # few keys recur after more than `within_us`
        start, end = int(first[number]), int(ends[number])
        dropped[start:end] = _repeats_of_key(moments[start:end].tolist(), within_us)
    repeats = np.zeros(count, np.bool_)
    repeats[ordered] = dropped
    return repeats


def _repeats_of_key(times: list[int], within_us: int) -> list[bool]:
    """Return a mask of rows that repeat an earlier, kept row. The rows have one key, and are in order of rank."""
    kept_times: list[int] = []
    dropped = []
    for time in times:
        position = bisect.bisect_left(kept_times, time - within_us)
        repeat = position < len(kept_times) and kept_times[position] <= time + within_us
        dropped.append(repeat)
        if not repeat:
            bisect.insort(kept_times, time)
    return dropped


def _are_near(times: Numbers, other_times: Numbers, within_us: int) -> Mask:
    """Return a mask of times at most `within_us` apart, without overflow."""
    later, earlier = np.maximum(times, other_times).astype(np.uint64), np.minimum(times, other_times).astype(np.uint64)
    return (later - earlier) <= np.uint64(within_us)  # modulo 2^64, which is the true distance


def _rank_rows(rows: pa.Table) -> Numbers:
    """Rank rows by offset within a partition. Across partitions, rank by the highest timestamp reached so far."""
    count = rows.num_rows
    partitions, offsets = encode_partitions(rows), column(rows, OFFSET).to_numpy()
    stamps = rank_values(column(rows, TIMESTAMP))
    ordered = np.lexsort((np.arange(count), offsets, partitions))
    begins = np.flatnonzero(np.r_[True, np.diff(partitions[ordered]) != 0][:count])
    reached = stamps[ordered]
    for start, end in pairwise([*begins.tolist(), count]):
        reached[start:end] = np.maximum.accumulate(reached[start:end])
    stamps[ordered] = reached
    ranks = np.empty(count, np.int64)
    ranks[np.lexsort((np.arange(count), offsets, partitions, stamps))] = np.arange(count)
    return ranks


def _to_microseconds(times: pa.Array) -> Numbers:
    micros: Numbers = times.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64)
    return micros
