"""Decides the outcome of each change whose key is in the table. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.ingest.arrow_values import select_where, unwrap_extension
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS
from frazil.ingest.source_log import newer_log_mask
from frazil.merge.changes import (
    NOT_DELETED,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    Mask,
    NewestChanges,
    Numbers,
    column,
    find_unordered_deletes,
    replace_column,
    to_mask,
)
from frazil.merge.contract import MergeRules


def find_stale_changes(changes: pa.Table, rows: pa.Table, rules: MergeRules, deletes: pa.Table | None) -> Mask:
    """Return a mask of changes older than the row at the same index. A later delete without order value wins."""
    orders = column(changes, rules.order_by) if rules.order_by else None
    old = _find_kept_rows(orders, changes, rows, rules)
    if deletes is None:
        return old
    gone = _find_earlier_rows(rows, deletes, rules, unknown=not rules.replays)
    never = to_mask(column(deletes, OFFSET).is_null())
    return np.where(never, old, ~gone & (old | find_unordered_deletes(changes, rules)))


def _find_kept_rows(orders: pa.Array | None, coordinates: pa.Table | None, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows that stay, given their changes. See `MergeRules.replays`."""
    kept = ~_find_earlier_rows(rows, coordinates, rules) if rules.replays else np.zeros(rows.num_rows, np.bool_)
    if rules.order_by is None:
        return kept
    old = column(rows, rules.order_by)
    return _is_below(orders, old, rules) | ~_is_below(old, orders, rules) & kept


def _is_below(new: pa.Array, old: pa.Array, rules: MergeRules) -> Mask:
    """Return a mask of new values below the old ones. Null is lowest; a value of a newer log is never below."""
    below: Mask = to_mask(pc.fill_null(pc.less(new.cast(old.type), old), False))
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
    before = pc.or_(pc.less(column(rows, OFFSET), column(coordinates, OFFSET)), _find_former_rows(rows, rules))
    sooner = pc.less(column(rows, TIMESTAMP), column(coordinates, TIMESTAMP))
    return to_mask(pc.fill_null(pc.if_else(same, before, sooner), unknown))


def _find_former_rows(rows: pa.Table, rules: MergeRules) -> pa.Array:
    """Return a mask of rows from a deleted topic, or from a part that a log lost; see `MergeRules.landed`."""
    if not rules.landed:
        return pa.array(np.zeros(rows.num_rows, np.bool_))
    names, ends = zip(*rules.landed, strict=True)
    text = pa.large_string()
    place = [column(rows, name).cast(text) for name in (TOPIC, PARTITION)]
    at = pc.index_in(pc.binary_join_element_wise(*place, pa.scalar("/", text)), pa.array(names, text))
    return pc.fill_null(pc.greater_equal(column(rows, OFFSET), pa.array(ends, pa.int64()).take(at)), False)


def find_unchanged_rows(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of upserts that equal their rows. Fill left-out columns before."""
    same = np.ones(changes.num_rows, np.bool_)
    for name in rows.column_names:
        if name not in rules.key and name not in rules.ignored and same.any():
            same &= are_values_equal(column(changes, name), column(rows, name))
    found: Mask = same & ~find_deletes(changes)
    return found


def find_renewed_rows(changes: pa.Table, rows: pa.Table, rules: MergeRules) -> Mask:
    """Return a mask of rows that take their changes' coordinates, even if no other value changes."""
    if rules.traced and rules.ignored:
        return _find_earlier_rows(rows, changes, rules)
    return np.zeros(changes.num_rows, np.bool_)


def find_deletes(changes: pa.Table) -> Mask:
    return to_mask(pc.equal(column(changes, CHANGE), DELETE))


def fill_left_out_columns(changes: pa.Table, rows: pa.Table, ids: dict[str, int]) -> pa.Table:
    """Return the changes, with left-out columns filled from the rows. `ids` maps names to field ids."""
    kept = column(changes, OMITTED_COLUMNS)
    left_out = pc.fill_null(pc.list_value_length(kept), 0).to_numpy(zero_copy_only=False)
    if not left_out.any():
        return changes
    parents, values = pc.list_parent_indices(kept).to_numpy(), kept.flatten().to_numpy()
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
            None if all_ is None else all_.take(pa.array(numbers[indexes]))
            for all_ in (newest.orders, newest.coordinates)
        )
        older = _find_kept_rows(orders, coordinates, rows, rules) & (numbers[indexes] != newest.numbers[indexes]) & ~cut
        if older.any():
            values = select_where(older, rows.column(name).combine_chunks(), changes.column(name).combine_chunks())
            changes = replace_column(changes, name, values)
    return changes


def are_values_equal(one: pa.Array, other: pa.Array) -> Mask:
    """Return a mask of equal values: null equals null, NaN equals NaN, -0.0 is not 0.0."""
    one, other = unwrap_extension(one), unwrap_extension(other)
    kind: Any = one.type
    if pa.types.is_struct(kind):
        same = np.ones(len(one), np.bool_)
        for index in range(kind.num_fields):
            same &= are_values_equal(pc.struct_field(one, index), pc.struct_field(other, index))
        same &= to_mask(one.is_null()) == to_mask(other.is_null())
        return same
    if pa.types.is_nested(kind):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((_are_equal_nested(a, b) for a, b in pairs), np.bool_, len(one))
    same = to_mask(pc.fill_null(pc.equal(one, other.cast(kind)), False))
    same |= to_mask(one.is_null()) & to_mask(other.is_null())
    if pa.types.is_floating(kind):
        same &= _sign_bits(one) == _sign_bits(other.cast(kind))
        same |= to_mask(pc.fill_null(pc.is_nan(one), False)) & to_mask(pc.fill_null(pc.is_nan(other), False))
    return same


def _are_equal_nested(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal_nested(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal_nested, one, other))
    if isinstance(one, float) and isinstance(other, float) and one == other:
        return math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def _sign_bits(numbers: pa.Array) -> Mask:
    found: Mask = np.signbit(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False))
    return found
