"""Reads a batch's changes, finds each key's newest change, and decides whether it applies to the table's row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.arrow_values import combine_chunks, select_where, to_mask, unwrap_extension
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS
from frazil.ingest.source_log import MIN_NEW_LOG_GAP_MS, PositionLogs, newer_log_mask, parse_logs
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

    def without(self, removed: Mask) -> NewestChanges:
        stays = ~removed
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
    distinct, of_times = np.unique(completed.ms, return_inverse=True)
    latest = distinct[_running_maximum(of_times[ordered], begins)]
    earlier_latest = np.where(begins, 0, np.r_[0, latest[:-1]])
    later = latest > earlier_latest
    moved = _differs_from_last(completed.name, ordered, later, first)
    moved = moved | _differs_from_last(completed.server, ordered, later, first)
    begins_again = later & (earlier_latest > 0) & (latest >= earlier_latest + np.where(moved, 1, MIN_NEW_LOG_GAP_MS))
    number, values = np.cumsum(begins_again), order[ordered]
    ranks = np.empty_like(order)
    highest = _running_maximum(values, begins | begins_again)
    ranks[ordered] = (number - number[first]) * (1 + order.max()) + np.where(values == 0, highest, values)
    return ranks


def _differs_from_last(parts: pa.Array, ordered: Numbers, later: Mask, first: Numbers) -> Mask:
    """Return a mask of `later` changes with a part that differs from the last non-empty part in their group."""
    codes = encode_keys([parts], len(parts))[ordered]
    is_named = later & to_mask(pc.not_equal(parts, ""))[ordered]
    last = np.maximum.accumulate(np.where(is_named, np.arange(len(codes)), -1))
    last = np.r_[-1, last[:-1]]
    differs: Mask = is_named & (last >= first) & (codes[np.maximum(last, 0)] != codes)
    return differs


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
        filled = (
            rows.column(OMITTED_COLUMNS).to_pylist() if rows.column(OMITTED_COLUMNS).null_count < rows.num_rows else []
        )
        incomplete = [row for row, missing in enumerate(filled) if missing]
        if not incomplete:
            return newest
        index_in_order = np.empty_like(self.ordered)
        index_in_order[self.ordered] = np.arange(len(self.ordered))
        sources = {field_id: numbers.copy() for field_id in ids.values()}
        for row in incomplete:
            filled[row] = self._fill(int(index_in_order[numbers[row]]), filled[row], sources, row)
        filled_by = {name: sources[i] for name, i in ids.items() if (sources[i] != numbers).any()}
        for name, indexes in filled_by.items():
            rows = replace_column(rows, name, self.changes.column(name).take(pa.array(indexes)))
        rows = replace_column(rows, OMITTED_COLUMNS, pa.array(filled, rows.schema.field(OMITTED_COLUMNS).type))
        return replace(newest, rows=rows, filled_by=filled_by)

    def _fill(self, index: int, missing: list[int], sources: Mapping[int, Numbers], row: int) -> list[int]:
        """Search backwards from `index` for missing values. Returns the field ids that are still missing."""
        change = self.ordered[index]
        missing_ids = set(missing)
        while missing_ids and index > 0:
            index -= 1
            before = self.ordered[index]
            if (self.keys[before], self.partitions[before]) != (self.keys[change], self.partitions[change]):
                break
            # A delete clears all columns except the key.
            deletes = self.changes.column(CHANGE)[int(before)].as_py() == DELETE
            unset = set() if deletes else set(self.changes.column(OMITTED_COLUMNS)[int(before)].as_py() or ())
            for field_id in missing_ids - unset:
                sources[field_id][row] = before
            missing_ids &= unset
        return sorted(missing_ids)


def column(rows: pa.Table, name: str) -> pa.Array:
    return unwrap_extension(combine_chunks(rows.column(name)))


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
    ranks: Numbers = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
    ranks[to_mask(array.is_null())] = 0
    return ranks


def replace_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


def find_stale_changes(changes: pa.Table, rows: pa.Table, rules: MergeRules, deletes: pa.Table | None) -> Mask:
    """Return a mask of changes older than the row at the same index. A later delete without order value wins."""
    orders = column(changes, rules.order_by) if rules.order_by else None
    old = _find_kept_rows(orders, changes, rows, rules)
    if deletes is None:
        return old
    is_deleted = _find_earlier_rows(rows, deletes, rules, unknown=not rules.replays)
    never = to_mask(column(deletes, OFFSET).is_null())
    return np.where(never, old, ~is_deleted & (old | find_unordered_deletes(changes, rules)))


def _find_kept_rows(orders: pa.Array | None, coordinates: pa.Table | None, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows that stay, given their changes. See `MergeRules.replays`."""
    is_kept = ~_find_earlier_rows(rows, coordinates, rules) if rules.replays else np.zeros(rows.num_rows, np.bool_)
    if rules.order_by is None:
        return is_kept
    old = column(rows, rules.order_by)
    return _is_below(orders, old, rules) | ~_is_below(old, orders, rules) & is_kept


def _is_below(new: pa.Array, old: pa.Array, rules: MergeRules) -> Mask:
    """Return a mask of new values below the old ones. Null is lowest; a value of a newer log is never below."""
    below: Mask = to_mask(pc.less(new.cast(old.type), old))
    below = below | (to_mask(new.is_null()) & to_mask(old.is_valid()))
    return below & ~newer_log_mask(new, old) if rules.by_position else below


def _find_earlier_rows(rows: pa.Table, coordinates: pa.Table, rules: MergeRules, *, unknown: bool = False) -> Mask:
    """Return a mask of rows older than the record at the same index; `unknown` for rows without coordinates."""
    if {TOPIC, PARTITION, OFFSET, TIMESTAMP} - {*rows.column_names}:
        return np.full(rows.num_rows, unknown)
    same = pc.and_(
        pc.equal(column(rows, TOPIC), column(coordinates, TOPIC)),
        pc.equal(column(rows, PARTITION), column(coordinates, PARTITION)),
    )
    is_earlier = pc.or_(pc.less(column(rows, OFFSET), column(coordinates, OFFSET)), _find_former_rows(rows, rules))
    sooner = pc.less(column(rows, TIMESTAMP), column(coordinates, TIMESTAMP))
    return to_mask(pc.fill_null(pc.if_else(same, is_earlier, sooner), unknown))


def _find_former_rows(rows: pa.Table, rules: MergeRules) -> pa.Array:
    """Return a mask of rows from a deleted topic, or from a part that a log lost; see `MergeRules.landed`."""
    if not rules.landed:
        return pa.array(np.zeros(rows.num_rows, np.bool_))
    names, ends = zip(*rules.landed, strict=True)
    text = pa.large_string()
    coordinates = [column(rows, name).cast(text) for name in (TOPIC, PARTITION)]
    indexes = pc.index_in(pc.binary_join_element_wise(*coordinates, pa.scalar("/", text)), pa.array(names, text))
    return pc.fill_null(pc.greater_equal(column(rows, OFFSET), pa.array(ends, pa.int64()).take(indexes)), False)


def find_unchanged_rows(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of upserts that equal their rows. Fill left-out columns before."""
    same = np.ones(changes.num_rows, np.bool_)
    for name in rows.column_names:
        if name not in rules.key and name not in rules.ignored and same.any():
            same &= are_values_equal(column(changes, name), column(rows, name))
    unchanged: Mask = same & ~find_deletes(changes)
    return unchanged


def find_own_rows(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows whose own record was read again, as the change at their index."""
    if not rules.replays or {TOPIC, PARTITION, OFFSET} - {*rows.column_names}:
        return np.zeros(rows.num_rows, np.bool_)
    is_own = ~to_mask(_find_former_rows(rows, rules))
    for name in (TOPIC, PARTITION, OFFSET):
        is_own &= are_values_equal(column(changes, name), column(rows, name))
    return is_own


def find_renewed_rows(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows that take their changes' coordinates, even if no other value changes."""
    if rules.traced and rules.ignored:
        return _find_earlier_rows(rows, changes, rules)
    return np.zeros(changes.num_rows, np.bool_)


def find_deletes(changes: pa.Table) -> Mask:
    return to_mask(pc.equal(column(changes, CHANGE), DELETE))


def fill_left_out_columns(changes: pa.Table, rows: pa.Table, ids: dict[str, int]) -> pa.Table:
    """Return the changes, with left-out columns filled from the rows. `ids` maps names to field ids."""
    omitted = column(changes, OMITTED_COLUMNS)
    left_out = pc.fill_null(pc.list_value_length(omitted), 0).to_numpy(zero_copy_only=False)
    if not left_out.any():
        return changes
    parents, values = pc.list_parent_indices(omitted).to_numpy(), omitted.flatten().to_numpy()
    for name, field_id in ids.items():
        mask = np.zeros(changes.num_rows, np.bool_)
        mask[parents[values == field_id]] = True
        if mask.any():
            merged = select_where(mask, rows.column(name).combine_chunks(), changes.column(name).combine_chunks())
            changes = replace_column(changes, name, merged)
    return changes


def keep_newer_row_values(
    changes: pa.Table, rows: pa.Table, indexes: Numbers, newest: NewestChanges, rules: MergeRules
) -> pa.Table:
    """Return the changes. A row's value replaces the batch's filled value if the row's value is newer."""
    cut = np.zeros(len(indexes), np.bool_) if newest.deleted_by is None else newest.deleted_by[indexes] != NOT_DELETED
    for name, numbers in newest.filled_by.items():
        orders, coordinates = (
            None if known is None else known.take(pa.array(numbers[indexes]))
            for known in (newest.orders, newest.coordinates)
        )
        older = _find_kept_rows(orders, coordinates, rows, rules) & (numbers[indexes] != newest.numbers[indexes]) & ~cut
        if older.any():
            values = select_where(older, rows.column(name).combine_chunks(), changes.column(name).combine_chunks())
            changes = replace_column(changes, name, values)
    return changes


def are_values_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return a mask of equal values: null equals null, NaN equals NaN, -0.0 is not 0.0."""
    left, right = unwrap_extension(left), unwrap_extension(right)
    kind: Any = left.type
    if pa.types.is_struct(kind):
        same = np.ones(len(left), np.bool_)
        for index in range(kind.num_fields):
            same &= are_values_equal(pc.struct_field(left, index), pc.struct_field(right, index))
        same &= to_mask(left.is_null()) == to_mask(right.is_null())
        return same
    if pa.types.is_nested(kind):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((_are_equal_nested(a, b) for a, b in pairs), np.bool_, len(left))
    same = to_mask(pc.equal(left, right.cast(kind)))
    same |= to_mask(left.is_null()) & to_mask(right.is_null())
    if pa.types.is_floating(kind):
        same &= _sign_bits(left) == _sign_bits(right.cast(kind))
        same |= to_mask(pc.is_nan(left)) & to_mask(pc.is_nan(right))
    return same


def _are_equal_nested(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_are_equal_nested(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_are_equal_nested, left, right))
    if isinstance(left, float) and isinstance(right, float) and left == right:
        return math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124 - NaN


def _sign_bits(numbers: pa.Array) -> Mask:
    negative: Mask = np.signbit(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False))
    return negative
