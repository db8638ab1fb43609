"""Merges a batch's changes into a table in one snapshot.

If the table has changed, the next attempt plans the merge again, and runs only the tasks that differ. At the end,
result files are deleted, unless the table has them, or an attempt with these files may still land.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, Or
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import PrimitiveType

from frazil.commit.history import windows_summary
from frazil.commit.merge_plan import (
    MIN_SPLIT_BYTES,
    InsertTask,
    MergePlan,
    PartitionKeys,
    column_bounds,
    key_schema,
    make_table_file,
    plan_merge,
    sort_files,
    split_files,
)
from frazil.commit.snapshot import PreparedSnapshot, RewriteAttempt, SnapshotWriter, base_without_files
from frazil.commit.staging_targets import target_table
from frazil.errors import SchemaIncompatible
from frazil.ingest.changes import change_schema
from frazil.ingest.contract import Content, StagedFile, TargetTable, parse_schema
from frazil.merge.contract import MergeContext, MergeCounts, MergeResult, MergeRules, MergeTask, TableFile
from frazil.merge.task import run_merge_task
from frazil.partitions.windows import Grain
from frazil.spec.column import COORDINATES
from frazil.spec.formats import POSITION, envelope_of
from frazil.spec.iceberg import filter_between, find_current_name, parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.spec.sinks import DEDUPLICATE, UPSERT
from frazil.table.branches import head_of
from frazil.table.renamed_columns import find_aliases
from frazil.table.storage import open_store

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
    prior: MergePlan | None = None,  # noqa: ARG001 - each plan is its own
) -> MergePlan:
    """Plan the tasks that find repeats in the files of the table whose event times are near the batch's.

    A task of the first phase searches some of the table's files for the batch's keys. A task of the second phase
    rewrites some of the batch's files without their repeats. Raises SchemaIncompatible for missing key columns or
    unreadable deletes.
    """
    key_schema(table, rules.key)
    paths = tuple(file.path for file in sorted(staged, key=lambda file: file.path))
    files = _files_near(table, staged, rules)
    weight = sum(file.bytes for file in files)
    pieces = split_files(files, min(len(files), max(1, min(parallelism, weight // MIN_SPLIT_BYTES + 1))))
    tasks = tuple(MergeTask(n, paths, sort_files(piece), inserts=False) for n, piece in enumerate(pieces))
    task_indexes = tuple(task.index for task in tasks)
    count = max(1, min(parallelism, sum(f.bytes for f in staged) // TARGET_SHARE_BYTES + 1))
    shares = [tuple(sorted(f.path for f in share)) for share in split_files(staged, min(count, len(staged)))]
    last = tuple(InsertTask(len(tasks) + n, paths, task_indexes, share) for n, share in enumerate(shares))
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
        scans = list(table.scan(row_filter=near).plan_files())
    except ValueError as error:  # PyIceberg's error for equality deletes
        raise SchemaIncompatible(
            f"table {'.'.join(table.name())} has deletes that a stream with dedupe cannot apply: {error}. Compact "
            "the table with the engine that wrote them, then start again"
        ) from error
    return [make_table_file(scanned.file, scanned.delete_files, layouts, mode="dedupe") for scanned in scans]


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
        gaps = [right[0] - left[1] for left, right in pairwise(spans)]
        index = gaps.index(min(gaps))
        spans[index : index + 2] = [(spans[index][0], spans[index + 1][1])]
    return spans


def _column_bounds(table: Table, name: str, staged: Sequence[StagedFile]) -> tuple[Any, Any] | None:
    field = table.schema().find_field(name)
    assert isinstance(field.field_type, PrimitiveType)
    bounds = column_bounds(field.field_id, field.field_type, staged)
    return None if None in bounds else bounds


RunTasks = Callable[[MergeContext, Sequence[MergeTask]], Sequence[MergeResult]]
PlanMerge = Callable[..., MergePlan]
METRICS_PREFIX = "write.metadata.metrics."
REPEATED_KEY = "frazil.repeated"


@dataclass(frozen=True, slots=True)
class MergingMode:
    content: Content
    declared: str
    staging_target: Callable[[TargetTable, tuple[str, ...]], TargetTable]
    """Returns the layout of staged files, for a table and its key."""
    plan: PlanMerge
    adds_staged_files: bool
    """Whether the commit adds staged files, except those that the merge rewrites."""
    summary_counts: Callable[[MergeCounts], Mapping[str, str]]


@lru_cache(maxsize=64)
def _change_schema_json(schema_json: str, key: tuple[str, ...]) -> str:
    return change_schema(parse_schema(schema_json), key).model_dump_json()


def _change_layout(table: TargetTable, key: tuple[str, ...]) -> TargetTable:
    """Return the layout of change files: unsorted, with bounds of the key columns only."""
    properties = {name: text for name, text in table.properties.items() if not name.startswith(METRICS_PREFIX)}
    bounds = {f"{METRICS_PREFIX}default": "none"} | {f"{METRICS_PREFIX}column.{name}": "full" for name in key}
    return dataclasses.replace(
        table,
        schema_json=_change_schema_json(table.schema_json, key),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        properties=properties | bounds,
        content="changes",
    )


UPSERT_MODE = MergingMode(
    content="changes",
    declared="mode: upsert",
    staging_target=_change_layout,
    plan=plan_merge,
    adds_staged_files=False,
    summary_counts=lambda counts: {
        f"frazil.{name}": str(getattr(counts, name))
        for name in ("inserted", "updated", "deleted", "stale", "superseded", "unchanged")
    },
)
"""Staged files have changes of rows. The table has one row per key."""
DEDUPE_MODE = MergingMode(
    content="candidates",
    declared="dedupe",
    staging_target=lambda table, _: dataclasses.replace(table, content="candidates"),
    plan=plan_repeats,
    adds_staged_files=True,
    summary_counts=lambda counts: {REPEATED_KEY: str(counts.repeated)},
)
"""Staged files have rows. The commit drops repeated rows."""
MERGING_MODES: Mapping[Content, MergingMode] = {mode.content: mode for mode in (UPSERT_MODE, DEDUPE_MODE)}
"""Modes by content type of staged files. Files of other types are added unchanged."""


def build_merge_rules(spec: StreamSpec, table: Table) -> MergeRules:
    schema, other_names = table.schema(), find_aliases(table.schema(), parse_former_columns(table.properties))
    name_of, envelope = partial(current_column_name, schema, other_names), envelope_of(spec.source.format)
    return MergeRules(
        key=tuple(map(name_of, spec.sinks.key)),
        order_by=None if spec.order_by is None else name_of(spec.order_by),
        by_position=envelope is not None and envelope.metadata.get(spec.order_by or "") == POSITION,
        ignored=tuple(COORDINATES) if spec.coordinates else (),
        row_removal=spec.merge,
        event_time=name_of(spec.event_time.column),
        window_us=None if spec.window is None else Grain(spec.window).us,
        within_us=None if spec.dedupe is None else spec.dedupe.within // timedelta(microseconds=1),
    )


def current_column_name(table: Schema, other_names: Mapping[str, int], name: str) -> str:
    return find_current_name(table, other_names.get(name)) or name


def run_in_process(context: MergeContext, tasks: Sequence[MergeTask]) -> list[MergeResult]:
    return [run_merge_task(context, task) for task in tasks]


MERGED_FOLDER = "merged"
"""The folder of merged files, below their batch's change files."""


@dataclass(frozen=True, slots=True)
class MergeConfig:
    rules: Callable[[Table], MergeRules]
    run: RunTasks = run_in_process
    parallelism: Callable[[], int] = lambda: 1
    mode: MergingMode = UPSERT_MODE

    def staging_target(self, table: Table, *, folder: str) -> TargetTable:
        return self.mode.staging_target(target_table(table, folder=folder), self.rules(table).key)


def merge_config(
    spec: StreamSpec, run: RunTasks = run_in_process, parallelism: Callable[[], int] = lambda: 1
) -> MergeConfig | None:
    """Return how a stream's staged files are merged; None if they are appended."""
    mode = {UPSERT: UPSERT_MODE, DEDUPLICATE: DEDUPE_MODE}.get(spec.sinks.mode)
    return None if mode is None else MergeConfig(partial(build_merge_rules, spec), run, parallelism, mode)


@dataclass(slots=True)
class MergeWriter:
    stream: str
    changes: tuple[StagedFile, ...]
    """Staged files (at least one) of changes (`mode: upsert`) or candidate rows (`dedupe`)."""
    merging: MergeConfig
    landed: Callable[[Table], tuple[tuple[str, int], ...]]
    traced: bool = True
    attempts: list[RewriteAttempt] = field(default_factory=list)
    _results: dict[tuple[str, MergeTask], MergeResult] = field(default_factory=dict)
    _folders: dict[tuple[Hashable, ...], str] = field(default_factory=dict)
    """The folder of merged files, by merge rules, table metadata and properties."""
    _plan: MergePlan | None = None

    @property
    def may_have_unused_files(self) -> bool:
        return bool(self._results) or any(attempt.writer.may_have_unused_files for attempt in self.attempts)

    def prepare(self, table: Table, *, summary: Mapping[str, str], now_ms: int) -> PreparedSnapshot:
        """Return the next attempt. Its snapshot is empty if nothing changes. Raises the errors of merge tasks."""
        head, last = head_of(table.metadata), self.attempts[-1] if self.attempts else None
        rules, target = self.merging.rules(table), target_table(table, folder="")
        rules = dataclasses.replace(rules, traced=self.traced, landed=self.landed(table))
        properties = tuple(sorted(target.properties.items()))
        metadata = (target.format_version, target.schema_json, target.spec_json, target.sort_order_json)
        key = (rules, *metadata, properties)
        if key not in self._folders:
            self._folders[key] = f"{self.changes[0].path.rsplit('/', 1)[0]}/{MERGED_FOLDER}/{uuid.uuid4()}"
        target = dataclasses.replace(target, folder=self._folders[key])
        context = MergeContext(self.stream, rules, self.merging.mode.staging_target(target, rules.key), target)
        if not (last and last.is_repeatable(head, context.target.folder)):
            last = self._merge(table, context, head)
        return last.writer.prepare(table, summary={**summary, **last.reported}, now_ms=now_ms)

    def _merge(self, table: Table, context: MergeContext, head: Snapshot | None) -> RewriteAttempt:
        mode, parallelism = self.merging.mode, self.merging.parallelism()
        self._plan = plan = mode.plan(table, self.changes, context.rules, parallelism=parallelism, prior=self._plan)
        results = self._run(context, plan.tasks)
        results += self._run(context, plan.make_insert_tasks(results))
        files = tuple(file for result in results for file in result.files)
        if files:  # they must survive a loss of power, as the marker does
            open_store(files[0].path, table.io.properties).sync_files([file.path for file in files])
        removed = {path for result in results for path in (*result.replaced, *result.dropped_deletes)}
        if mode.adds_staged_files:
            files += tuple(dataclasses.replace(f, content="data") for f in self.changes if f.path not in removed)
            removed = set()  # none of them was in the table
        snapshot_id, base = table.metadata.new_snapshot_id(), None
        if removed:
            base = base_without_files(removed, plan.manifests, plan.live_entries, table=table, snapshot_id=snapshot_id)
        writer = SnapshotWriter(files, base=base, snapshot_id=snapshot_id)
        counts = sum((result.counts for result in results), MergeCounts())
        windows: Counter[int] = Counter()
        for result in results:
            windows.update(result.windows)
        by_window = {} if context.rules.window_us is None else windows_summary(windows)
        reported = {**self.merging.mode.summary_counts(counts), **by_window}
        attempt = RewriteAttempt(writer, {file.path for file in files}, head, reported, context.target.folder)
        self.attempts.append(attempt)
        return attempt

    def _run(self, context: MergeContext, tasks: Sequence[MergeTask]) -> list[MergeResult]:
        folder = context.target.folder
        missing = [task for task in tasks if (folder, task) not in self._results]
        if missing:
            results = self.merging.run(context, missing)
            self._results.update({(folder, task): result for task, result in zip(missing, results, strict=True)})
        return [self._results[folder, task] for task in tasks]

    def delete_unused(self, table: Table) -> None:
        for attempt in self.attempts:
            attempt.writer.delete_unused(table)
        needed = {path for attempt in self.attempts if attempt.writer.may_have_unused_files for path in attempt.files}
        waste = {file.path for result in self._results.values() for file in result.files} - needed
        if waste:
            heads = [attempt.head for attempt in self.attempts]
            first = min((1 + (head.sequence_number or 0) if head else 1 for head in heads), default=0)
            manifests = {
                manifest.manifest_path: manifest
                for snapshot in table.metadata.snapshots
                if (snapshot.sequence_number or 0) >= first
                for manifest in snapshot.manifests(table.io)
                if manifest.sequence_number >= first
            }
            waste -= {e.data_file.file_path for m in manifests.values() for e in m.fetch_manifest_entry(table.io)}
        if waste:
            open_store(min(waste), table.io.properties).delete(sorted(waste))
        self._results = {}
