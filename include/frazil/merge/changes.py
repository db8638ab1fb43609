"""Reads a batch's changes, and finds the newest change of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.arrow_values import unwrap_extension
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS
from frazil.ingest.source_log import MIN_NEW_LOG_GAP_MS, PositionLogs, parse_logs
from frazil.merge.contract import MergeRules

TOPIC, PARTITION, OFFSET, TIMESTAMP = "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"
NOT_DELETED = -1
"""The value in `deleted_by` for a key without a delete."""

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NewestChanges:
    rows: pa.Table
    numbers: Numbers
    """The index of each row's change among all changes."""
    superseded: int
    """Number of changes that lost to a newer change of the same key."""
    filled_by: Mapping[str, Numbers] = field(default_factory=dict)
    """The number of the change that supplies each row's value, for each column with values from earlier changes."""
    orders: pa.Array | None = None
    deleted_by: Numbers | None = None
    """Each row's last delete without an order value, or `NOT_DELETED`."""
    coordinates: pa.Table | None = None
    """Coordinates of all changes. Needed for `MergeRules.replays`, and for deletes without an order value."""

    def without(self, taken: Mask) -> NewestChanges:
        stays = ~taken
        filled_by = {name: numbers[stays] for name, numbers in self.filled_by.items()}
        deleted_by = None if self.deleted_by is None else self.deleted_by[stays]
        rows, numbers = self.rows.filter(pa.array(stays)), self.numbers[stays]
        return replace(self, rows=rows, numbers=numbers, superseded=0, filled_by=filled_by, deleted_by=deleted_by)

    def delete_coordinates(self, rows: Numbers) -> pa.Table | None:
        """Return the coordinates of the rows' deletes, null for other rows; None if all deletes are ordered."""
        if self.deleted_by is None or self.coordinates is None:
            return None
        numbers = self.deleted_by[rows]
        return self.coordinates.take(pa.array(numbers, mask=numbers == NOT_DELETED))


def find_newest_changes(changes: pa.Table, rules: MergeRules, ids: Mapping[str, int]) -> NewestChanges:
    """Return each key's newest change by `MergeRules.order_by`. Earlier changes supply left-out values."""
    count = changes.num_rows
    keys = encode_keys([column(changes, name) for name in rules.key], count)
    order = rank_values(column(changes, rules.order_by)) if rules.order_by else np.zeros(count, np.int64)
    partitions, offsets = encode_partitions(changes), column(changes, OFFSET).to_numpy()
    if rules.by_position and rules.order_by and count:
        order = _order_across_logs(order, parse_logs(column(changes, rules.order_by)), keys, partitions, offsets)
    unordered = find_unordered_deletes(changes, rules)
    in_several = count > 0 and partitions.max() != partitions.min()
    times = rank_values(column(changes, TIMESTAMP)) if in_several else np.zeros(count, np.int64)
    deleted_by = _find_last_unordered_deletes(unordered, keys, partitions, offsets, times)
    # A change before a delete without an order value never wins. "Before" means by offset in the delete's
    # topic-partition, and by time in others.
    later = np.where(partitions == partitions[deleted_by], offsets >= offsets[deleted_by], times >= times[deleted_by])
    survives = later | (deleted_by == NOT_DELETED)
    ordered = np.lexsort((offsets, order, survives, partitions, keys))
    last = ordered[_run_ends(keys[ordered], partitions[ordered])]
    if in_several:
        by_key = np.lexsort((partitions[last], times[last], order[last], survives[last], keys[last]))
        last = last[by_key[_run_ends(keys[last][by_key])]]
    numbers = np.sort(last)
    newest = NewestChanges(changes.take(pa.array(numbers)), numbers, count - len(numbers))
    if not count:
        return newest
    if rules.order_by:
        newest = replace(newest, orders=column(changes, rules.order_by))
    if unordered.any():
        newest = replace(newest, deleted_by=deleted_by[numbers])
    if unordered.any() or rules.replays:
        newest = replace(newest, coordinates=changes.select([TOPIC, PARTITION, OFFSET, TIMESTAMP]))
    return _ChangesByKey(changes, ordered, keys, partitions).fill_missing(newest, ids)


def _order_across_logs(
    order: Numbers, completed: PositionLogs, keys: Numbers, partitions: Numbers, offsets: Numbers
) -> Numbers:
    """Return the order values, raised until the values of a newer log exceed the values of older logs."""
    ordered = np.lexsort((offsets, partitions, keys))
    begins = np.r_[True, _run_ends(keys[ordered], partitions[ordered])[:-1]]
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    known, of_times = np.unique(completed.ms, return_inverse=True)
    latest = known[_running_maximum(of_times[ordered], begins)]
    before = np.where(begins, 0, np.r_[0, latest[:-1]])
    later = latest > before
    moved = _differs_from_last(completed.name, ordered, later, first)
    moved = moved | _differs_from_last(completed.server, ordered, later, first)
    begins_again = later & (before > 0) & (latest >= before + np.where(moved, 1, MIN_NEW_LOG_GAP_MS))
    number, at = np.cumsum(begins_again), order[ordered]
    found = np.empty_like(order)
    highest = _running_maximum(at, begins | begins_again)
    found[ordered] = (number - number[first]) * (1 + order.max()) + np.where(at == 0, highest, at)
    return found


def _differs_from_last(parts: pa.Array, ordered: Numbers, later: Mask, first: Numbers) -> Mask:
    """Return a mask of `later` changes with a part that differs from the last non-empty part in their group."""
    codes = encode_keys([parts], len(parts))[ordered]
    is_named = later & to_mask(pc.not_equal(parts, ""))[ordered]
    last = np.maximum.accumulate(np.where(is_named, np.arange(len(codes)), -1))
    last = np.r_[-1, last[:-1]]
    found: Mask = is_named & (last >= first) & (codes[np.maximum(last, 0)] != codes)
    return found


def _running_maximum(values: Numbers, begins: Mask) -> Numbers:
    above = (np.cumsum(begins) - 1) * (1 + values.max())
    highest: Numbers = np.maximum.accumulate(values + above) - above
    return highest


def find_unordered_deletes(changes: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of deletes without an order value. Their position in Kafka counts instead."""
    if rules.order_by is None:
        return np.zeros(changes.num_rows, np.bool_)
    deletes = pc.equal(column(changes, CHANGE), DELETE)
    return to_mask(pc.and_(deletes, column(changes, rules.order_by).is_null()))


def _find_last_unordered_deletes(
    unordered: Mask, keys: Numbers, partitions: Numbers, offsets: Numbers, times: Numbers
) -> Numbers:
    """Return, per change, the index of its key's last unordered delete, or `NOT_DELETED`."""
    last = np.flatnonzero(unordered)
    last = last[np.lexsort((offsets[last], partitions[last], keys[last]))]
    last = last[_run_ends(keys[last], partitions[last])]
    last = last[np.lexsort((partitions[last], times[last], keys[last]))]
    last = last[_run_ends(keys[last])]
    of_key = np.full(1 + keys.max(initial=0), NOT_DELETED)
    of_key[keys[last]] = last
    return of_key[keys]


def encode_partitions(changes: pa.Table) -> Numbers:
    """Return a number for each row's topic-partition, in the order of topics and partitions."""
    topics = column(changes, TOPIC).dictionary_encode()
    by_name = rank_values(topics.dictionary)[topics.indices.to_numpy()]
    partitions: Numbers = (by_name << 32) + column(changes, PARTITION).to_numpy().astype(np.int64)
    return partitions


def _run_ends(*groups: Numbers) -> Mask:
    """Return a mask of the last element of each run of equal values."""
    ends = np.zeros(len(groups[0]), np.bool_)
    for values in groups:
        ends |= np.r_[values[1:] != values[:-1], True][: len(values)]
    return ends


@dataclass(frozen=True, slots=True)
class _ChangesByKey:
    """All changes of a batch, ordered by key, partition and order value."""

    changes: pa.Table
    ordered: Numbers
    keys: Numbers
    partitions: Numbers

    def fill_missing(self, newest: NewestChanges, ids: Mapping[str, int]) -> NewestChanges:
        """Return the newest changes, with left-out columns filled from earlier changes."""
        rows, numbers = newest.rows, newest.numbers
        kept = (
            rows.column(OMITTED_COLUMNS).to_pylist() if rows.column(OMITTED_COLUMNS).null_count < rows.num_rows else []
        )
        incomplete = [row for row, missing in enumerate(kept) if missing]
        if not incomplete:
            return newest
        index_in_order = np.empty_like(self.ordered)
        index_in_order[self.ordered] = np.arange(len(self.ordered))
        sources = {field_id: numbers.copy() for field_id in ids.values()}
        for row in incomplete:
            kept[row] = self._fill(int(index_in_order[numbers[row]]), kept[row], sources, row)
        filled_by = {name: sources[i] for name, i in ids.items() if (sources[i] != numbers).any()}
        for name, indexes in filled_by.items():
            rows = replace_column(rows, name, self.changes.column(name).take(pa.array(indexes)))
        rows = replace_column(rows, OMITTED_COLUMNS, pa.array(kept, rows.schema.field(OMITTED_COLUMNS).type))
        return replace(newest, rows=rows, filled_by=filled_by)

    def _fill(self, at: int, missing: list[int], sources: Mapping[int, Numbers], row: int) -> list[int]:
        """Search backwards from `at` for missing values. Returns the field ids that are still missing."""
        of = self.ordered[at]
        left = set(missing)
        while left and at > 0:
            at -= 1
            before = self.ordered[at]
            if (self.keys[before], self.partitions[before]) != (self.keys[of], self.partitions[of]):
                break
            # A delete clears all columns except the key.
            deletes = self.changes.column(CHANGE)[int(before)].as_py() == DELETE
            unset = set() if deletes else set(self.changes.column(OMITTED_COLUMNS)[int(before)].as_py() or ())
            for field_id in left - unset:
                sources[field_id][row] = before
            left &= unset
        return sorted(left)


def column(rows: pa.Table, name: str) -> pa.Array:
    array = rows.column(name).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return unwrap_extension(array)


def encode_keys(columns: list[pa.Array], count: int) -> Numbers:
    """Return a number for each row; equal values in all columns have equal numbers. Null equals null."""
    codes = np.zeros(count, np.int64)
    for array in columns:
        encoded = array.dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes, return_inverse=True)
    return codes


def rank_values(array: pa.Array) -> Numbers:
    """Return each value's dense rank. Null has the lowest rank."""
    found: Numbers = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
    found[to_mask(array.is_null())] = 0
    return found


def replace_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


def to_mask(array: pa.Array) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return mask
