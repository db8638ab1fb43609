"""Finds the keys that a merge inserted, updated and deleted, from the files that it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.audit.claims import CommittedRange
from frazil.commit.journal import RuleHashes
from frazil.ingest.arrow_values import empty_table, to_mask
from frazil.merge.changes import TOPIC, Mask, are_values_equal, column
from frazil.merge.contract import MergeContext, MergeCounts, MergeResult, MergeRules, MergeTask
from frazil.merge.table_files import TableFileReader, nullable_arrow_schema
from frazil.offsets.spans import Span, TopicPartition, covered_offsets, iter_runs, join_spans
from frazil.table.landed_offsets import COORDINATES

MAX_LISTED_KEYS = 10
"""Maximum number of keys in a `KeyCount`."""
_NEW, _OLD = "_frazil_new", "_frazil_old"
"""Columns with the indexes of rows."""

Key = Mapping[str, Any]
"""Values by column, as stored: sensitive ones as hashes or tokens, bytes as hexadecimal."""


class KeyCount(NamedTuple):
    total: int = 0
    first: tuple[Key, ...] = ()
    """The first of the keys; empty if other programs wrote some of them twice."""


NO_KEYS = KeyCount()


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    inserted: KeyCount = NO_KEYS
    updated: KeyCount = NO_KEYS
    """Keys with a different value in a column that the current declaration reads as before."""
    redeclared: KeyCount = NO_KEYS
    """Other updated keys: an earlier declaration read all columns that differ."""
    redeclared_columns: tuple[str, ...] = ()
    """Columns with different values that an earlier declaration read, also of keys in `updated`."""
    undecided: KeyCount = NO_KEYS
    """Keys whose records an earlier declaration may have committed with other keys, order or deletes."""
    deleted: KeyCount = NO_KEYS
    others: int = 0
    """Number of changed keys with rows of topics that were not read. They are in no other count."""


class _Changes(NamedTuple):
    """How the rules of a committed range differ from the current rules."""

    columns: frozenset[str]
    deciding: bool
    overtaken: bool
    """Whether `deciding` holds for the range, or for a later commit that may have deleted or kept other keys."""


@dataclass(frozen=True, slots=True)
class ChangedRules:
    """Masks of rows whose records were last committed under other rules. The fields have the meaning of `_Changes`."""

    columns: Mapping[str, Mask]
    deciding: Mask
    overtaken: Mask


@dataclass(frozen=True)
class DeclaredRules:
    """The rules that read each column now, and the committed ranges with the rules of their batches."""

    current: RuleHashes
    ranges: Mapping[TopicPartition, Sequence[CommittedRange]]
    rejects: bool = False
    """Whether the current declaration rejects records that have no dead letter: any other rules then decide."""

    def changed(self, rows: pa.Table) -> ChangedRules:
        changed = ChangedRules(
            {name: np.zeros(rows.num_rows, np.bool_) for name in rows.column_names},
            *(np.zeros(rows.num_rows, np.bool_) for _ in range(2)),
        )
        of_changes = defaultdict[_Changes, dict[TopicPartition, list[Span]]](dict)
        replaces = {*COORDINATES} <= {*rows.column_names}
        for tp, ranges in self.ranges.items():
            for changes, spans in self._find_last_changes(ranges, replaces=replaces):
                of_changes[changes].setdefault(tp, []).extend(spans)
        for changes, by_tp in of_changes.items():
            masks = [changed.columns[name] for name in changes.columns & changed.columns.keys()]
            masks += [changed.deciding] if changes.deciding else []
            masks += [changed.overtaken] if changes.overtaken else []
            if masks:
                mask = _rows_in_spans(rows, by_tp)
                for each in masks:
                    each |= mask  # noqa: PLW2901 - changes the array
        return changed

    def undecided(self, tp: TopicPartition) -> BitMap64:
        """Return the offsets of the records that were last committed by other deciding rules."""
        found = self._find_last_changes(self.ranges.get(tp, ()), replaces=True)
        return covered_offsets(span for changes, spans in found if changes.deciding for span in spans)

    def _find_last_changes(
        self, ranges: Sequence[CommittedRange], *, replaces: bool
    ) -> Iterator[tuple[_Changes, Iterable[Span]]]:
        """Yield each range's changes, and the spans that no later batch has read again.

        Only batches replace the rows of their records. A backfill or a replay may have written a row, or not.
        """
        again = BitMap64()
        for r in sorted(ranges, key=lambda r: r.epoch or 0, reverse=True):
            columns, deciding = self._changed_columns(r), self._has_other_rules(r)
            first_epoch = r.published_in[0] - 1 if r.epoch is None else r.epoch
            changes = _Changes(columns, deciding, deciding or first_epoch < self._last_other_epoch)
            if r.epoch is None or not replaces:
                yield changes, [(r.start, r.end)]
            elif offsets := r.offsets - again:
                yield changes, iter_runs(offsets, (r.start, r.end))
                again |= r.offsets

    @cached_property
    def _last_other_epoch(self) -> int:
        """The epoch before which each commit precedes one with other rules. An epoch's batches have the same rules."""
        others = (r for parts in self.ranges.values() for r in parts if self._has_other_rules(r))
        return max((r.published_in[1] + 1 if r.epoch is None else r.epoch for r in others), default=-1)

    def _has_other_rules(self, r: CommittedRange) -> bool:
        return r.rules.deciding != self.current.deciding or (self.rejects and bool(self._changed_columns(r)))

    def _changed_columns(self, r: CommittedRange) -> frozenset[str]:
        return frozenset(name for name, rules in self.current.columns.items() if r.rules.columns.get(name) != rules)


def _rows_in_spans(rows: pa.Table, spans: Mapping[TopicPartition, Iterable[Span]]) -> Mask:
    """Return a mask of the rows with offsets in these spans. Without coordinates, the mask has all rows."""
    if not {*COORDINATES} <= {*rows.column_names}:
        return np.ones(rows.num_rows, np.bool_)
    found = np.zeros(rows.num_rows, np.bool_)
    partitions, offsets = (column(rows, name).to_numpy(zero_copy_only=False) for name in COORDINATES[1:3])
    for (topic, partition), parts in spans.items():
        positions = np.flatnonzero(to_mask(pc.equal(column(rows, TOPIC), topic)) & (partitions == partition))
        starts, ends = np.array(join_spans(parts), np.int64).reshape(-1, 2).T
        index = np.searchsorted(starts, offsets[positions], "right") - 1
        found[positions] = (index >= 0) & (offsets[positions] < ends[index])
    return found


def find_changed_keys(  # noqa: PLR0913 - each source is an argument
    done: Iterable[tuple[MergeTask, MergeResult]],
    reader: TableFileReader,
    context: MergeContext,
    topics: Collection[str],
    rules: DeclaredRules,
    *,
    shared: bool = False,
) -> ChangedKeys:
    """Return the first keys of `topics` that a merge-on-read merge changed. Other streams also write to a
    `shared` table.
    """
    names = list(context.rules.key)
    counts, new_rows, old_rows = _read_changed_rows(done, reader, context.target.schema)
    new, old = (_with_storage_types(rows.select(names)) for rows in (new_rows, old_rows))
    new = new.append_column(_NEW, pa.array(np.arange(len(new))))
    old = old.append_column(_OLD, pa.array(np.arange(len(old))))
    is_others = _rows_of_other_topics(old_rows, topics, is_shared=shared)
    others = old.filter(pa.array(is_others)).group_by(names).aggregate([])
    others_updated = others.join(new, names, join_type="left semi").num_rows
    new, old = (rows.join(others, names, join_type="left anti") for rows in (new, old))
    both = new.join(old, names, join_type="inner").group_by([*names, _NEW]).aggregate([(_OLD, "min")])
    absent, left = (rows.join(both, names, join_type="left anti") for rows in (new, old))
    new_changed, old_changed = rules.changed(new_rows), rules.changed(old_rows)
    absent, inserted = _split_rows(absent, new_changed.overtaken[absent[_NEW]])
    left, deleted = _split_rows(left, old_changed.overtaken[left[_OLD]])
    undecided = new_changed.deciding[both[_NEW]] | old_changed.deciding[both[f"{_OLD}_min"]]
    of_both = new_rows.take(both[_NEW]), old_rows.take(both[f"{_OLD}_min"])
    both, updated = _split_rows(both, undecided & ~_are_of_same_records(*of_both))
    taken = both[_NEW].to_numpy()
    other_rules, columns = _find_redeclared(
        new_rows.take(taken),
        old_rows.take(both[f"{_OLD}_min"]),
        context.rules,
        {name: mask[taken] for name, mask in new_changed.columns.items()},
    )
    both, redeclared = _split_rows(both, other_rules)
    first = partial(_first_keys, schema=new_rows.select(names).schema)
    differing = pa.concat_tables(rows.select(names) for rows in (inserted, updated, deleted))
    return ChangedKeys(
        first(absent, counts.inserted - len(inserted)),
        first(both, counts.updated - others_updated - len(redeclared) - len(updated)),
        first(redeclared, len(redeclared)),
        columns,
        first(differing, len(differing)),
        first(left, counts.deleted - (others.num_rows - others_updated) - len(deleted)),
        others.num_rows,
    )


def _are_of_same_records(new: pa.Table, old: pa.Table) -> Mask:
    """Return a mask of the rows with equal coordinates; no rows without coordinates."""
    if not {*COORDINATES} <= {*new.column_names}:
        return np.zeros(len(new), np.bool_)
    equal = (are_values_equal(column(new, name), column(old, name)) for name in COORDINATES)
    return reduce(np.logical_and, equal)


def _split_rows(rows: pa.Table, mask: Mask) -> tuple[pa.Table, pa.Table]:
    """Return the rows outside the mask, and the rows of the mask."""
    return rows.filter(pa.array(~mask)), rows.filter(pa.array(mask))


def _read_changed_rows(
    done: Iterable[tuple[MergeTask, MergeResult]], reader: TableFileReader, schema: Schema
) -> tuple[MergeCounts, pa.Table, pa.Table]:
    """Return the counts, the written rows (inserts and updates), and the removed rows (updates and deletes)."""
    counts, empty = MergeCounts(), empty_table(nullable_arrow_schema(schema))
    written, removed = [empty], [empty]
    for task, result in done:
        counts += result.counts
        written += [reader.read_rows(file.path, schema) for file in result.files if file.content == "data"]
        removed += _removed_rows(task, result, reader, schema)
    return counts, pa.concat_tables(written), pa.concat_tables(removed)


def _find_redeclared(
    new: pa.Table, old: pa.Table, rules: MergeRules, changed: Mapping[str, Mask]
) -> tuple[Mask, tuple[str, ...]]:
    """Return a mask of the rows that differ only in columns with changed rules, and the names of these columns."""
    columns = []
    unexplained, former = (np.zeros(len(new), np.bool_) for _ in range(2))
    for name in new.column_names:
        if name in rules.key or name in rules.ignored:
            continue
        differs = ~are_values_equal(column(new, name), column(old, name))
        unexplained |= differs & ~changed[name]
        former |= differs & changed[name]
        if (differs & changed[name]).any():
            columns.append(name)
    return former & ~unexplained, tuple(columns)


def _rows_of_other_topics(rows: pa.Table, topics: Collection[str], *, is_shared: bool) -> Mask:
    """Return a mask of the rows of other topics. Without coordinates: all of a `is_shared` table, otherwise none."""
    if TOPIC not in rows.column_names:
        return np.full(len(rows), is_shared)
    return ~to_mask(pc.is_in(column(rows, TOPIC), pa.array([*topics, None], pa.string())))


def _removed_rows(task: MergeTask, result: MergeResult, reader: TableFileReader, keys: Schema) -> Iterable[pa.Table]:
    by_path = {file.path: file for file in task.files}
    reader.keep_constants(task.files)
    for path in result.replaced:
        with reader.open(path) as data:
            removed = np.arange(data.starts[-1])
            yield data.rows_at(keys, np.setdiff1d(removed, reader.deleted_positions(by_path[path])))
    for file in result.files:
        if file.content == "position-deletes":
            for path, removed in reader.deletes(file.path).items():
                with reader.open(path) as data:
                    yield data.rows_at(keys, np.setdiff1d(removed, reader.deleted_positions(by_path[path])))


def _with_storage_types(rows: pa.Table) -> pa.Table:
    """Cast extension types, such as UUIDs, to their storage types, for joins."""
    storage = [f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in rows.schema]
    return rows.cast(pa.schema([f.with_type(kind) for f, kind in zip(rows.schema, storage, strict=True)]))


def _first_keys(rows: pa.Table, count: int, *, schema: pa.Schema) -> KeyCount:
    """Return the number of keys and the first keys, in order; no keys if the number of rows is not `count`."""
    if rows.num_rows != count:
        return KeyCount(count)
    ordered = rows.sort_by([(name, "ascending") for name in schema.names]).slice(0, MAX_LISTED_KEYS)
    keys = ordered.select(schema.names).cast(schema).to_pylist()
    return KeyCount(count, tuple({n: v.hex() if isinstance(v, bytes) else v for n, v in key.items()} for key in keys))
