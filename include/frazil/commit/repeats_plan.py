"""Plans the search for repeats (`dedupe`) in those files of the table whose event times are near the batch's.

A task of the first phase searches some of the table's files for the batch's keys. A task of the second phase rewrites
some of the batch's files without their repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, Or
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import PrimitiveType

from frazil.commit.merge_plan import (
    MIN_SPLIT_BYTES,
    InsertTask,
    MergePlan,
    PartitionKeys,
    check_readable,
    column_bounds,
    key_schema,
    make_table_file,
    sort_files,
    split_files,
)
from frazil.errors import SchemaIncompatible
from frazil.ingest.contract import StagedFile
from frazil.merge.contract import MergeRules, MergeTask, TableFile
from frazil.spec.iceberg import filter_between
from frazil.table.branches import head_of

MAX_SPANS = 16
"""Maximum number of event-time spans in one scan. Above this number, the nearest spans are joined."""
TARGET_SHARE_BYTES = 32 * 2**20

Span = tuple[int, int]


def plan_repeats(
    table: Table,
    staged: Sequence[StagedFile],
    rules: MergeRules,
    *,
    parallelism: int,
    before: MergePlan | None = None,  # noqa: ARG001 - each plan is its own
) -> MergePlan:
    """Plan the tasks that find repeats. Raises SchemaIncompatible for missing key columns or unreadable deletes."""
    key_schema(table, rules.key)
    paths = tuple(file.path for file in sorted(staged, key=lambda file: file.path))
    files = _files_near(table, staged, rules)
    weight = sum(file.bytes for file in files)
    pieces = split_files(files, min(len(files), max(1, min(parallelism, weight // MIN_SPLIT_BYTES + 1))))
    tasks = tuple(MergeTask(n, paths, sort_files(piece), inserts=False) for n, piece in enumerate(pieces))
    after = tuple(task.index for task in tasks)
    count = max(1, min(parallelism, sum(f.bytes for f in staged) // TARGET_SHARE_BYTES + 1))
    shares = [tuple(sorted(f.path for f in share)) for share in split_files(staged, min(count, len(staged)))]
    last = tuple(InsertTask(len(tasks) + n, paths, after, share) for n, share in enumerate(shares))
    return MergePlan(tasks, last, {}, (), {})


def _files_near(table: Table, staged: Sequence[StagedFile], rules: MergeRules) -> list[TableFile]:
    if head_of(table.metadata) is None:
        return []
    layouts = PartitionKeys(table)
    try:
        assert rules.event_time is not None
        spans = _spans(
            [bounds for file in staged if (bounds := _column_bounds(table, rules.event_time, [file]))], rules
        )
        event_time = table.schema().find_field(rules.event_time)
        near = reduce(Or, (filter_between(event_time, *span) for span in spans)) if spans else AlwaysTrue()
        for name in rules.key:
            if bounds := _column_bounds(table, name, staged):
                near = And(near, filter_between(table.schema().find_field(name), *bounds))
        found = list(table.scan(row_filter=near).plan_files())
    except ValueError as error:  # PyIceberg's error for equality deletes
        raise SchemaIncompatible(
            f"table {'.'.join(table.name())} has deletes that a stream with dedupe cannot apply: {error}. Compact "
            "the table with the engine that wrote them, then start again"
        ) from error
    return [_table_file(scanned, layouts) for scanned in found]


def _spans(bounds: Iterable[Span], rules: MergeRules) -> list[Span]:
    """Return the disjoint spans of event time (microseconds) that may contain repeats, in order."""
    within = rules.within_us or 0
    spans: list[Span] = []
    for smallest, greatest in sorted((a - within, b + within) for a, b in bounds):
        if spans and smallest <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], greatest))
        else:
            spans.append((smallest, greatest))
    while len(spans) > MAX_SPANS:
        gaps = [after[0] - before[1] for before, after in pairwise(spans)]
        index = gaps.index(min(gaps))
        spans[index : index + 2] = [(spans[index][0], spans[index + 1][1])]
    return spans


def _column_bounds(table: Table, name: str, staged: Sequence[StagedFile]) -> tuple[Any, Any] | None:
    field = table.schema().find_field(name)
    assert isinstance(field.field_type, PrimitiveType)
    bounds = column_bounds(field.field_id, field.field_type, staged)
    return None if None in bounds else bounds


def _table_file(scanned: FileScanTask, layouts: PartitionKeys) -> TableFile:
    file = scanned.file
    for one in (file, *scanned.delete_files):
        check_readable(one, mode="dedupe")
    return make_table_file(file, scanned.delete_files, layouts)
