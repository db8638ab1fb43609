"""Runs one task of a merge: merges the newest changes into some of the table's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from frazil.ingest.arrow_values import empty_table
from frazil.merge.changes import (
    Mask,
    NewestChanges,
    Numbers,
    column,
    fill_left_out_columns,
    find_deletes,
    find_newest_changes,
    find_own_rows,
    find_renewed_rows,
    find_stale_changes,
    find_unchanged_rows,
    keep_newer_row_values,
)
from frazil.merge.contract import MergeContext, MergeCounts, MergeResult, MergeTask, RowRemoval, TableFile
from frazil.merge.repeats import KeyIndex, LocatedRows, RepeatsRun, locate_rows
from frazil.merge.table_files import TaskRun, nullable_arrow_schema, write_deletes

NO_EVENT_TIME = np.iinfo(np.int64).min


def run_merge_task(
    context: MergeContext, task: MergeTask, *, on_progress: Callable[[int], None] = lambda _: None
) -> MergeResult:
    """Run the task. `on_progress` receives the number of rows read so far; an error that it raises ends the task."""
    kind = RepeatsRun if context.changes.content == "candidates" else _MergeRun
    return kind(context, task, on_progress).run()


@dataclass(slots=True)
class _RemovedRows:
    located: LocatedRows
    positions: Numbers


class _MergeRun(TaskRun):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.ids = {field.name: field.field_id for field in self.schema.fields}
        self.counts = MergeCounts()

    def result(self) -> MergeResult:
        rules, task = self.context.rules, self.task
        changes_schema = self.context.changes.schema
        empty = empty_table(nullable_arrow_schema(changes_schema))
        changes = pa.concat_tables([empty, *(self.reader.read_rows(path, changes_schema) for path in task.changes)])
        newest = find_newest_changes(changes, rules, self.ids)
        del changes
        last = task.inserts or not task.files
        self._count(superseded=newest.superseded if last else 0)
        if not task.files and task.matched:
            newest = newest.without(np.isin(newest.numbers, np.array(BitMap64.deserialize(task.matched), np.int64)))
        matched = np.zeros(newest.rows.num_rows, np.bool_)
        leaving = list(self._match_files(newest, matched))
        if last:
            rows = newest.without(matched).rows
            deletes = find_deletes(rows)
            self._count(unchanged=int(deletes.sum()), inserted=int((~deletes).sum()))
            self._write_counted(rows.filter(pa.array(~deletes)))
        replaced, dropped = self._remove_rows(leaving)
        numbers = b"" if last else BitMap64(newest.numbers[matched].tolist()).serialize()
        files = (*self.writer.finish(), *self.staged)
        return MergeResult(files, replaced, dropped, self.counts, numbers, dict(self.windows))

    def _match_files(self, newest: NewestChanges, matched: Mask) -> Iterator[_RemovedRows]:
        """Write new versions of rows, add their changes to `matched`, and yield the rows to remove from each file."""
        rules = self.context.rules
        index = KeyIndex(newest, rules.key)
        keys = self.schema.select(*rules.key)
        for located in locate_rows(self.reader, self.task.files, index, keys):
            first = ~matched[located.changes]  # a key that other programs wrote twice is updated once
            is_unique = np.zeros(len(first), np.bool_)
            is_unique[np.unique(located.changes, return_index=True)[1]] = True
            first &= is_unique
            matched[located.changes] = True
            leaves = self._apply_changes(newest, located, first) if len(located.positions) else located.positions
            yield _RemovedRows(located, leaves)

    def _apply_changes(self, newest: NewestChanges, located: LocatedRows, first: Mask) -> Numbers:
        """Write new versions of rows. Return the positions of the rows to remove from the file."""
        rules = self.context.rules
        with self.reader.open(located.file.path) as data:
            rows = data.rows_at(self.schema, located.positions)
        changes = newest.rows.take(pa.array(located.changes))
        changes = fill_left_out_columns(
            keep_newer_row_values(changes, rows, located.changes, newest, rules), rows, self.ids
        )
        old = find_stale_changes(changes, rows, rules, newest.delete_coordinates(located.changes))
        same = find_unchanged_rows(changes, rows, rules)
        read_again = old & (same | find_own_rows(changes, rows, rules))
        deleted = find_deletes(changes) & ~old
        new = ~old & ~same & ~deleted
        renews = same & ~old & find_renewed_rows(changes, rows, rules)
        masks = {"stale": old & ~read_again, "unchanged": same | read_again, "deleted": deleted, "updated": new}
        self._count(**{name: int((mask & first).sum()) for name, mask in masks.items()})
        self._write_counted(changes.filter(pa.array(new & first)))
        self.write(changes.filter(pa.array(renews & first)))
        self._count_rows(rows.filter(pa.array(first & (deleted | new & self._changes_window(rows, changes)))))
        # If other programs wrote a key twice, one row stays.
        return located.positions[(deleted | new | renews) & first | ~old & ~first]

    def _changes_window(self, rows: pa.Table, changes: pa.Table) -> Mask:
        """Return a mask of rows that move to another window. Both windows then change."""
        rules = self.context.rules
        if rules.event_time is None or rules.window_us is None:
            return np.zeros(rows.num_rows, np.bool_)
        old_windows, new_windows = (
            pc.fill_null(column(table, rules.event_time).cast(pa.int64()), NO_EVENT_TIME).to_numpy() // rules.window_us
            for table in (rows, changes)
        )
        moved: Mask = old_windows != new_windows
        return moved

    def _write_counted(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._count_rows(self.write(rows))

    def _count_rows(self, rows: pa.Table) -> None:
        event_time = self.context.rules.event_time
        if event_time is not None and rows.num_rows:
            self.count_windows(column(rows, event_time).drop_null().cast(pa.int64()).to_numpy())

    def _remove_rows(self, leaving: list[_RemovedRows]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Rewrite data files, or write delete files. Returns the data and delete files to remove."""
        replaced: list[str] = []
        dropped: list[str] = []
        new_rows = self.counts.inserted + self.counts.updated
        groups: dict[tuple[object, ...], list[_RemovedRows]] = {}
        for removed in leaving:
            groups.setdefault((removed.located.file.spec_id, removed.located.file.partition), []).append(removed)
        for group in groups.values():
            counts = ((removed.located, len(removed.positions)) for removed in group if len(removed.positions))
            leaving_rows = {located.file: count + len(located.deleted) for located, count in counts}
            files = [removed.located.file for removed in group]
            share = max(1, new_rows * len(files) // max(1, len(leaving)))
            removal, added = self.context.rules.row_removal, share if new_rows else 0
            rewritten_paths = files_to_rewrite(removal, leaving_rows, files, new_rows=added)
            for removed in group:
                file, positions = removed.located.file, np.union1d(removed.positions, removed.located.deleted)
                if file.path in rewritten_paths:
                    if len(positions) < file.records:
                        self.copy(file.path, positions)
                    replaced.append(file.path)
                elif len(removed.positions):
                    self.staged.append(write_deletes(self.io, file, positions, target=self.context.target))
                else:
                    continue
                dropped += [key for delete in file.deletes if (key := delete.removable_key)]
        return tuple(replaced), tuple(dropped)

    def _count(self, **counts: int) -> None:
        self.counts += MergeCounts(**counts)


MAX_DELETED_SHARE = 0.2
"""Share of a file's deleted rows above which `auto` rewrites the file."""
MAX_TIER_RATIO = 4
"""Maximum size of a file that is rewritten with new rows, as a multiple of the new file's size."""
MIN_JOINED_FILES = 4
"""Minimum number of files that are rewritten together with new rows, in one file."""
MIN_FILE_BYTES = 64 * 2**10
"""Minimum size that is assumed for the new file."""
SMALL_FILE_BYTES = 2**20
"""Size below which a smaller share of deleted rows suffices to rewrite a file."""
DEFAULT_ROW_BYTES = 50
"""Assumed size of a row, if unknown."""


def files_to_rewrite(
    row_removal: RowRemoval, leaving: Mapping[TableFile, int], files: Sequence[TableFile], *, new_rows: int
) -> set[str]:
    """Return the data files to rewrite. `leaving` counts the rows to remove, with already deleted ones."""
    if row_removal == "copy-on-write":
        return {file.path for file in leaving}
    if row_removal == "merge-on-read":
        return {file.path for file, rows in leaving.items() if rows == file.records}
    shares = {file: MAX_DELETED_SHARE * min(1.0, file.bytes / SMALL_FILE_BYTES) for file in leaving}
    rewritten = {file.path for file, rows in leaving.items() if rows > shares[file] * file.records}
    return rewritten | _files_to_join(files, rewritten, leaving, new_rows)


def _files_to_join(
    files: Sequence[TableFile], rewritten: set[str], leaving: Mapping[TableFile, int], new_rows: int
) -> set[str]:
    copied = sum(file.bytes * (1 - leaving[file] / file.records) for file in files if file.path in rewritten)
    records = sum(file.records for file in files)
    row_bytes = sum(file.bytes for file in files) / records if records else DEFAULT_ROW_BYTES
    size = max(MIN_FILE_BYTES, new_rows * row_bytes + copied)
    remaining = sorted((file for file in files if file.path not in rewritten), key=lambda file: file.bytes)
    joined: set[str] = set()
    while True:
        tier = [file for file in remaining if file.bytes <= MAX_TIER_RATIO * size]
        if len(tier) < MIN_JOINED_FILES:
            return joined
        joined |= {file.path for file in tier}
        size += sum(file.bytes for file in tier)
        remaining = remaining[len(tier) :]
