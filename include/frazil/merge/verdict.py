"""What becomes of a change whose key the table has: pure functions of both rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil.ingest.changes import CHANGE, DELETE, KEPT
from frazil.ingest.source_log import began_anew
from frazil.merge.changes import NEVER, OFFSET, PARTITION, TIMESTAMP, TOPIC, Newest, bare_deletes, column
from frazil.merge.contract import MergeRules


def stale(
    changes: pa.Table,
    rows: pa.Table,
    rules: MergeRules,
    deleted_at: NDArray[np.int64] | None,
    deleted_by: pa.Table | None = None,
) -> NDArray[np.bool_]:
    """The changes that are older than the rows beside them. Null is the oldest.

    A row that was there before a delete without an order is gone: no change after that is older. `deleted_at` is that
    of `Newest`, for these changes, and `deleted_by` has the places of its deletes.
    """
    if rules.replays:
        return _stale_letters(changes, rows, rules, deleted_at, deleted_by)
    if rules.order_by is None or not changes.num_rows:
        return np.zeros(changes.num_rows, np.bool_)
    below = _below(column(changes, rules.order_by), column(rows, rules.order_by), rules)
    if deleted_at is None:
        return below
    later = _later(rows, changes, deleted_at)
    return np.where(deleted_at == NEVER, below, later & (below | bare_deletes(changes, rules)))


def _stale_letters(
    changes: pa.Table,
    rows: pa.Table,
    rules: MergeRules,
    deleted_at: NDArray[np.int64] | None,
    deleted_by: pa.Table | None,
) -> NDArray[np.bool_]:
    """The dead letters that the rows beside them outlive: see `MergeRules.replays`."""
    orders = None if rules.order_by is None else column(changes, rules.order_by)
    outlived = _outlived(orders, changes, rows, rules)
    if deleted_at is None or deleted_by is None:
        return outlived
    gone = _earlier(rows, deleted_by)
    return np.where(deleted_at == NEVER, outlived, ~gone & (outlived | bare_deletes(changes, rules)))


def _outlived(orders: pa.Array | None, places: pa.Table, rows: pa.Table, rules: MergeRules) -> NDArray[np.bool_]:
    """Where letters with these orders and places do not replace the rows beside them."""
    kept = ~_earlier(rows, places)
    if orders is None or rules.order_by is None:
        return kept
    old = column(rows, rules.order_by)
    return _below(orders, old, rules) | ~_below(old, orders, rules) & kept


def _below(new: pa.Array, old: pa.Array, rules: MergeRules) -> NDArray[np.bool_]:
    """Where the first order is below the second; null is the lowest. See `MergeRules.by_position`."""
    below: NDArray[np.bool_] = _mask(pc.fill_null(pc.less(new.cast(old.type), old), False)) | (
        _mask(new.is_null()) & _mask(old.is_valid())
    )
    return below & ~began_anew(new, old) if rules.by_position else below


def _earlier(rows: pa.Table, places: pa.Table) -> NDArray[np.bool_]:
    """The rows of which their record tells that it came before that at the same index of `places`."""
    if not {TOPIC, PARTITION, OFFSET, TIMESTAMP} <= {*rows.column_names}:
        return np.zeros(rows.num_rows, np.bool_)
    same = pc.and_(
        pc.equal(column(rows, TOPIC), column(places, TOPIC)),
        pc.equal(column(rows, PARTITION), column(places, PARTITION)),
    )
    before = pc.less(column(rows, OFFSET), column(places, OFFSET))
    sooner = pc.less(column(rows, TIMESTAMP), column(places, TIMESTAMP))
    return _mask(pc.fill_null(pc.if_else(same, before, sooner), False))


def _later(rows: pa.Table, changes: pa.Table, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The rows of which the changes' topic-partition says that they came after these offsets."""
    if not {TOPIC, PARTITION, OFFSET} <= {*rows.column_names}:
        return np.zeros(rows.num_rows, np.bool_)
    same = pc.and_(
        pc.equal(column(rows, TOPIC), column(changes, TOPIC)),
        pc.equal(column(rows, PARTITION), column(changes, PARTITION)),
    )
    after = pc.greater(column(rows, OFFSET), pa.array(offsets))
    return _mask(pc.fill_null(pc.and_(same, after), False))


def unchanged(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> NDArray[np.bool_]:
    """The upserts that have the same values as the rows beside them; kept values are filled in already."""
    same = np.ones(changes.num_rows, np.bool_)
    for name in rows.column_names:
        if name not in rules.key and name not in rules.ignored and same.any():
            same &= equal(column(changes, name), column(rows, name))
    found: NDArray[np.bool_] = same & ~deletes(changes)
    return found


def renewed(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> NDArray[np.bool_]:
    """The rows that take the coordinates of changes which leave them as they were otherwise."""
    return _earlier(rows, changes) if rules.traced and rules.ignored else np.zeros(changes.num_rows, np.bool_)


def deletes(changes: pa.Table) -> NDArray[np.bool_]:
    return _mask(pc.equal(column(changes, CHANGE), DELETE))


def filled(changes: pa.Table, rows: pa.Table, ids: dict[str, int]) -> pa.Table:
    """The changes with the values of the rows beside them in columns that they do not tell. `ids` by column name."""
    kept = column(changes, KEPT)
    told = pc.fill_null(pc.list_value_length(kept), 0).to_numpy(zero_copy_only=False)
    if not told.any():
        return changes
    parents, values = pc.list_parent_indices(kept).to_numpy(), kept.flatten().to_numpy()
    for name, field_id in ids.items():
        mask = np.zeros(changes.num_rows, np.bool_)
        mask[parents[values == field_id]] = True
        if mask.any():
            at = changes.schema.get_field_index(name)
            old = rows.column(name).combine_chunks()
            new = changes.column(name).combine_chunks().cast(old.type)
            changes = changes.set_column(at, name, chosen(pa.array(mask), old, new))
    return changes


def fresh(changes: pa.Table, rows: pa.Table, of: NDArray[np.int64], newest: Newest, rules: MergeRules) -> pa.Table:
    """The changes, rows `of` of the newest, with the values of the rows beside them where a stale change told more."""
    if newest.orders is None and newest.places is None:
        return changes
    cut = np.zeros(len(of), np.bool_) if newest.deleted_at is None else newest.deleted_at[of] != NEVER
    for name, numbers in newest.told_by.items():
        older = _told_before(newest, numbers[of], rows, rules)
        older &= (numbers[of] != newest.numbers[of]) & ~cut
        if older.any():
            at, old = changes.schema.get_field_index(name), rows.column(name).combine_chunks()
            new = changes.column(name).combine_chunks().cast(old.type)
            changes = changes.set_column(at, name, chosen(pa.array(older), old, new))
    return changes


def _told_before(newest: Newest, numbers: NDArray[np.int64], rows: pa.Table, rules: MergeRules) -> NDArray[np.bool_]:
    """Where the rows are newer than the changes with these numbers."""
    told = None if newest.orders is None else newest.orders.take(pa.array(numbers))
    if newest.places is not None:
        return _outlived(told, newest.places.take(pa.array(numbers)), rows, rules)
    if told is None or rules.order_by is None:
        return np.zeros(len(numbers), np.bool_)
    return _below(told, column(rows, rules.order_by), rules)


def chosen(mask: pa.Array, first: pa.Array, second: pa.Array) -> pa.Array:
    """The first value where the mask is true, else the second; of any type."""
    places = np.where(_mask(mask), np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([first, second]).take(pa.array(places))


def equal(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Where two arrays have equal values: null equals null, and NaN equals NaN."""
    one, other = _plain(one), _plain(other)
    kind: Any = one.type
    if pa.types.is_struct(kind):
        same = np.ones(len(one), np.bool_)
        for index in range(kind.num_fields):
            same &= equal(pc.struct_field(one, index), pc.struct_field(other, index))
        same &= _mask(one.is_null()) == _mask(other.is_null())
        return same
    if pa.types.is_nested(kind):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((_alike(a, b) for a, b in pairs), np.bool_, len(one))
    same = _mask(pc.fill_null(pc.equal(one, other.cast(kind)), False))
    same |= _mask(one.is_null()) & _mask(other.is_null())
    if pa.types.is_floating(kind):
        same |= _mask(pc.fill_null(pc.is_nan(one), False)) & _mask(pc.fill_null(pc.is_nan(other), False))
    return same


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def _plain(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return found
