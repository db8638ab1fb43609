"""Counts the rows that a reader of a snapshot would find in given windows.

A file whose rows all belong to one window is counted from its manifest entry. A file is read only if it spans several
windows or has deleted rows, and then only its event-time column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, PrimitiveType

from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window
from frazil.spec.type_ends import rows_between


def count_rows(table: Table, windows: Collection[Window], *, column: str, snapshot_id: int) -> dict[Window, int]:
    """Return the number of rows in each window, by event time in `column`. All windows must have the same grain."""
    counts: Counter[int] = Counter()
    for first, last in _window_runs(sorted(windows)):
        counts.update(_count_run(table, first, last, column=column, snapshot_id=snapshot_id))
    return {window: counts[window.start_us] for window in windows}


def count_added_rows(table: Table, snapshot: Snapshot, cursor: Cursor, *, column: str) -> Counter[int]:
    """Return the number of rows that a snapshot added to windows covered by the cursor, by window start."""
    field = table.schema().find_field(column)
    within = rows_between(field, cursor.from_us, cursor.through_us - 1)
    counts: Counter[int] = Counter()
    unclear = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content is not ManifestContent.DATA or manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status is not ManifestEntryStatus.ADDED:
                continue
            task = FileScanTask(entry.data_file)
            known = _count_from_entry(task, field, cursor.grain)
            if known is not None:
                counts.update(known)
            elif _may_overlap(entry.data_file, field, cursor):
                unclear.append(task)
    return counts + _count_by_reading(table, unclear, within, column, cursor.grain)


def _may_overlap(file: DataFile, field: NestedField, cursor: Cursor) -> bool:
    bounds = _bounds(file, field)
    return bounds is None or (bounds[0] < cursor.through_us and bounds[1] >= cursor.from_us)


def _window_runs(windows: list[Window]) -> Iterator[tuple[Window, Window]]:
    """Yield the first and last window of each run of adjacent windows."""
    start = 0
    for i, window in enumerate(windows):
        if i + 1 == len(windows) or windows[i + 1].start_us != window.end_us:
            yield windows[start], window
            start = i + 1


def _count_run(table: Table, first: Window, last: Window, *, column: str, snapshot_id: int) -> Counter[int]:
    field = table.schema().find_field(column)
    within = rows_between(field, first.start_us, last.end_us - 1)
    scan = table.scan(row_filter=within, selected_fields=(column,), snapshot_id=snapshot_id)
    counts: Counter[int] = Counter()
    unclear = []
    for task in scan.plan_files():
        known = _count_from_entry(task, field, first.grain)
        if known is None:
            unclear.append(task)
        else:
            counts.update(known)
    return counts + _count_by_reading(table, unclear, within, column, first.grain)


def _count_by_reading(
    table: Table, tasks: list[FileScanTask], within: BooleanExpression, column: str, grain: Grain
) -> Counter[int]:
    counts: Counter[int] = Counter()
    for times in _read_times(table, tasks, within, column):
        starts, rows = np.unique(times // grain.us * grain.us, return_counts=True)
        counts.update(dict(zip(starts.tolist(), rows.tolist(), strict=True)))
    return counts


def _count_from_entry(task: FileScanTask, field: NestedField, grain: Grain) -> dict[int, int] | None:
    """Return a file's rows by window start, from its manifest entry; None if the entry does not suffice."""
    file = task.file
    nulls = (file.null_value_counts or {}).get(field.field_id)
    bounds = _bounds(file, field)
    if task.delete_files or nulls is None or bounds is None:
        return None
    lower, upper = map(grain.floor, bounds)
    return {lower: file.record_count - nulls} if lower == upper else None


def _bounds(file: DataFile, field: NestedField) -> tuple[int, int] | None:
    lower = (file.lower_bounds or {}).get(field.field_id)
    upper = (file.upper_bounds or {}).get(field.field_id)
    kind = field.field_type
    if lower is None or upper is None or not isinstance(kind, PrimitiveType):
        return None
    return int(from_bytes(kind, lower)), int(from_bytes(kind, upper))


def _read_times(
    table: Table, tasks: list[FileScanTask], within: BooleanExpression, column: str
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Yield the event times of the files in microseconds, batch by batch."""
    if not tasks:
        return
    reader = ArrowScan(table.metadata, table.io, table.schema().select(column), within)
    for batch in reader.to_record_batches(tasks):
        times = batch.column(0).drop_null()
        yield times.cast(pa.int64()).to_numpy(zero_copy_only=False)
