"""Counts the rows that a snapshot has in given windows.

Reads event times only in files that span several windows or have deleted rows. For all other files, manifests have the
counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, PrimitiveType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window
from frazil.spec.iceberg import filter_between


def count_rows(table: Table, windows: Collection[Window], *, column: str, snapshot_id: int) -> dict[Window, int]:
    """Return the number of rows in each window, by event time in `column`. All windows must have the same grain."""
    counts: Counter[int] = Counter()
    field = table.schema().find_field(column)
    for first, last in _window_runs(sorted(windows)):
        within = filter_between(field, first.start_us, last.end_us - 1)
        scan = table.scan(row_filter=within, selected_fields=(column,), snapshot_id=snapshot_id)
        counts.update(_count_files(table, scan.plan_files(), within, field, first.grain))
    return {window: counts[window.start_us] for window in windows}


def count_by_window(table: Table, *, column: str, grain: Grain, snapshot_id: int) -> dict[int, int]:
    """Return the number of rows of a snapshot by window start. Omits rows without an event time."""
    field, scan = table.schema().find_field(column), table.scan(selected_fields=(column,), snapshot_id=snapshot_id)
    return dict(sorted(_count_files(table, scan.plan_files(), AlwaysTrue(), field, grain).items()))


def earliest_us(table: Table, *, column: str) -> int | None:
    """Return the lowest event time in the table's files (us since 1970), from manifest entries, if known."""
    field = table.schema().find_field(column)
    bounds = (_time_bounds(task.file, field) for task in table.scan().plan_files())
    return min((each[0] for each in bounds if each is not None), default=None)


def count_added_rows(table: Table, snapshot: Snapshot, cursor: Cursor, *, column: str) -> Counter[int]:
    """Return the number of rows that a snapshot added to the cursor's windows, by window start."""
    field = table.schema().find_field(column)
    within = filter_between(field, cursor.from_us, cursor.through_us - 1)
    tasks = (
        FileScanTask(entry.data_file)
        for manifest in snapshot.manifests(table.io)
        if manifest.content is ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status is ManifestEntryStatus.ADDED and _may_overlap(entry.data_file, field, cursor)
    )
    return _count_files(table, tasks, within, field, cursor.grain)


def _may_overlap(file: DataFile, field: NestedField, cursor: Cursor) -> bool:
    bounds = _time_bounds(file, field)
    return bounds is None or (bounds[0] < cursor.through_us and bounds[1] >= cursor.from_us)


def _window_runs(windows: list[Window]) -> Iterator[tuple[Window, Window]]:
    """Yield the first and last window of each run of adjacent windows."""
    start = 0
    for i, window in enumerate(windows):
        if i + 1 == len(windows) or windows[i + 1].start_us != window.end_us:
            yield windows[start], window
            start = i + 1


def _count_files(
    table: Table, tasks: Iterable[FileScanTask], within: BooleanExpression, field: NestedField, grain: Grain
) -> Counter[int]:
    """Return the number of rows by window start. Reads a file only if its manifest entry does not suffice."""
    counts: Counter[int] = Counter()
    unclear = []
    for task in tasks:
        from_entry = _count_from_entry(task, field, grain)
        if from_entry is None:
            unclear.append(task)
        else:
            counts.update(from_entry)
    if unclear:
        reader = ArrowScan(table.metadata, table.io, table.schema().select(field.name), within)
        for batch in reader.to_record_batches(unclear):
            times = batch.column(0).drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
            starts, rows = np.unique(times // grain.us * grain.us, return_counts=True)
            counts.update(dict(zip(starts.tolist(), rows.tolist(), strict=True)))
    return +counts


def _count_from_entry(task: FileScanTask, field: NestedField, grain: Grain) -> dict[int, int] | None:
    """Return a file's number of rows by window start; None if its manifest entry does not suffice."""
    file = task.file
    nulls = (file.null_value_counts or {}).get(field.field_id)
    bounds = _time_bounds(file, field)
    if task.delete_files or nulls is None or bounds is None:
        return None
    lower, upper = map(grain.floor, bounds)
    return {lower: file.record_count - nulls} if lower == upper else None


def _time_bounds(file: DataFile, field: NestedField) -> tuple[int, int] | None:
    lower = (file.lower_bounds or {}).get(field.field_id)
    upper = (file.upper_bounds or {}).get(field.field_id)
    kind = field.field_type
    if lower is None or upper is None or not isinstance(kind, PrimitiveType):
        return None
    return int(from_bytes(kind, lower)), int(from_bytes(kind, upper))
