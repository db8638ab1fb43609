"""How staged files are committed: rows are appended, changes are upserted, or repeats are dropped. The files' content
type determines the mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from frazil.commit.merge_plan import MergePlan, plan_merge
from frazil.commit.repeats_plan import plan_repeats
from frazil.ingest.changes import change_schema
from frazil.ingest.contract import Content, TargetTable
from frazil.merge.contract import MergeCounts, MergeRules
from frazil.partitions.windows import Grain
from frazil.spec.column import COORDINATES
from frazil.spec.formats import POSITION, envelope_of
from frazil.spec.iceberg import find_current_name, parse_former_columns
from frazil.spec.model import StreamSpec
from frazil.spec.sinks import DEDUPLICATE, UPSERT
from frazil.table.renamed import find_aliases

PlanMerge = Callable[..., MergePlan]
METRICS_PREFIX = "write.metadata.metrics."
REPEATED_KEY = "frazil.repeated"


@dataclass(frozen=True, slots=True)
class MergingMode:
    content: Content
    declared: str
    """The declared setting that selects the mode."""
    staging_target: Callable[[TargetTable, tuple[str, ...]], TargetTable]
    """Returns the layout of staged files, for a table and its key."""
    plan: PlanMerge
    adds_staged_files: bool
    """Whether the commit adds staged files, except those that the merge rewrites."""
    summary_counts: Callable[[MergeCounts], Mapping[str, str]]


def _change_layout(table: TargetTable, key: tuple[str, ...]) -> TargetTable:
    """Return the layout of change files: unsorted, with bounds of the key columns only."""
    schema = change_schema(Schema.model_validate_json(table.schema_json), key)
    kept = {name: text for name, text in table.properties.items() if not name.startswith(METRICS_PREFIX)}
    bounds = {f"{METRICS_PREFIX}default": "none"} | {f"{METRICS_PREFIX}column.{name}": "full" for name in key}
    return dataclasses.replace(
        table,
        schema_json=schema.model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        properties=kept | bounds,
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


def merging_mode(spec: StreamSpec) -> MergingMode | None:
    return {UPSERT: UPSERT_MODE, DEDUPLICATE: DEDUPE_MODE}.get(spec.sinks.mode)


def build_merge_rules(spec: StreamSpec, table: Table) -> MergeRules:
    schema, other_names = table.schema(), find_aliases(table.schema(), parse_former_columns(table.properties))
    called, envelope = partial(current_column_name, schema, other_names), envelope_of(spec.source.format)
    return MergeRules(
        key=tuple(map(called, spec.sinks.key)),
        order_by=None if spec.order_by is None else called(spec.order_by),
        by_position=envelope is not None and envelope.metadata.get(spec.order_by or "") == POSITION,
        ignored=tuple(COORDINATES) if spec.coordinates else (),
        how=spec.merge,
        event_time=called(spec.event_time.column),
        window_us=None if spec.window is None else Grain(spec.window).us,
        within_us=None if spec.dedupe is None else spec.dedupe.within // timedelta(microseconds=1),
    )


def current_column_name(table: Schema, other_names: Mapping[str, int], name: str) -> str:
    return find_current_name(table, other_names.get(name)) or name
