"""How a table takes the records that are staged for it: it appends rows, upserts changes, or drops repeated rows.

A mode is known by what its staged files hold, so a journal alone tells how its files are committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from frazil.commit.merge_plan import MergePlan, plan_merge
from frazil.commit.repeats_plan import plan_repeats
from frazil.ingest.changes import change_schema
from frazil.ingest.contract import Content, StagedFile, TargetTable
from frazil.merge.contract import Counts, MergeRules
from frazil.partitions.windows import Grain
from frazil.spec.coordinates import COORDINATES
from frazil.spec.formats import POSITION, envelope_of
from frazil.spec.model import StreamSpec
from frazil.table.renamed import aliases, current_name, former_columns

METRICS = "write.metadata.metrics."
REPEATED = "frazil.repeated"
"""The summary's key for the number of a batch's rows that were dropped because they repeat others."""


class MergingMode(Protocol):
    """A mode whose staged files are merged into the table when they are committed."""

    content: Content
    """What a staged file holds."""
    declared: str
    """How a stream declares it."""

    def staged(self, table: TargetTable, key: tuple[str, ...]) -> TargetTable:
        """How files are staged for a table."""

    def plan(
        self,
        table: Table,
        staged: Sequence[StagedFile],
        rules: MergeRules,
        *,
        parallelism: int,
        before: MergePlan | None = None,
    ) -> MergePlan:
        """The tasks that merge staged files into the table's head. Raises SchemaIncompatible."""

    def added(self, staged: Sequence[StagedFile], replaced: Collection[str]) -> tuple[StagedFile, ...]:
        """The staged files that become the table's own, unless the merge replaced them."""

    def removed(self, replaced: set[str]) -> set[str]:
        """Which of the files that the merge replaced leave the table."""

    def counted(self, counts: Counts) -> Mapping[str, str]:
        """What a commit's summary reports."""


class Upsert:
    """Staged files hold changes of rows. The table has one row for each key."""

    content: Content = "changes"
    declared = "mode: upsert"

    def staged(self, table: TargetTable, key: tuple[str, ...]) -> TargetTable:
        """Change files have no order, bounds of the key alone, and the table's partitions."""
        schema = change_schema(Schema.model_validate_json(table.schema_json), key)
        kept = {name: text for name, text in table.properties.items() if not name.startswith(METRICS)}
        bounds = {f"{METRICS}default": "none"} | {f"{METRICS}column.{name}": "full" for name in key}
        return dataclasses.replace(
            table,
            schema_json=schema.model_dump_json(),
            sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
            properties=kept | bounds,
            content=self.content,
        )

    def plan(
        self,
        table: Table,
        staged: Sequence[StagedFile],
        rules: MergeRules,
        *,
        parallelism: int,
        before: MergePlan | None = None,
    ) -> MergePlan:
        return plan_merge(table, staged, rules.key, parallelism=parallelism, before=before)

    def added(self, staged: Sequence[StagedFile], replaced: Collection[str]) -> tuple[StagedFile, ...]:  # noqa: ARG002
        return ()

    def removed(self, replaced: set[str]) -> set[str]:
        return replaced

    def counted(self, counts: Counts) -> Mapping[str, str]:
        return {
            "frazil.inserted": str(counts.inserted),
            "frazil.updated": str(counts.updated),
            "frazil.deleted": str(counts.deleted),
            "frazil.stale": str(counts.stale),
            "frazil.superseded": str(counts.superseded),
            "frazil.unchanged": str(counts.unchanged),
        }


class Deduplicate:
    """Staged files hold rows. Those that repeat others are dropped when they are committed."""

    content: Content = "candidates"
    declared = "dedupe"

    def staged(self, table: TargetTable, key: tuple[str, ...]) -> TargetTable:  # noqa: ARG002 - staged like rows
        return dataclasses.replace(table, content=self.content)

    def plan(
        self,
        table: Table,
        staged: Sequence[StagedFile],
        rules: MergeRules,
        *,
        parallelism: int,
        before: MergePlan | None = None,  # noqa: ARG002 - each plan is its own
    ) -> MergePlan:
        return plan_repeats(table, staged, rules, parallelism=parallelism)

    def added(self, staged: Sequence[StagedFile], replaced: Collection[str]) -> tuple[StagedFile, ...]:
        return tuple(dataclasses.replace(f, content="data") for f in staged if f.path not in replaced)

    def removed(self, replaced: set[str]) -> set[str]:  # noqa: ARG002 - none of them was in the table
        return set()

    def counted(self, counts: Counts) -> Mapping[str, str]:
        return {REPEATED: str(counts.repeated)}


MERGED: Mapping[Content, MergingMode] = {mode.content: mode for mode in (Upsert(), Deduplicate())}
"""The modes that merge, by what their staged files hold. Files of any other content are the table's as they are."""


def merging_mode(spec: StreamSpec) -> MergingMode | None:
    """The mode of a stream's tables; None if they append."""
    return Deduplicate() if spec.dedupe else Upsert() if spec.mode == "upsert" else None


def merge_rules(spec: StreamSpec, table: Table) -> MergeRules:
    """How changes of the stream are merged into the table as it is now, or which of its rows repeat others."""
    schema, other_names = table.schema(), aliases(table.schema(), former_columns(table.properties))
    called, envelope = partial(called_now, schema, other_names), envelope_of(spec.source.format)
    return MergeRules(
        key=tuple(map(called, spec.dedupe.key if spec.dedupe else spec.key)),
        order_by=None if spec.order_by is None else called(spec.order_by),
        by_position=envelope is not None and envelope.metadata.get(spec.order_by or "") == POSITION,
        ignored=tuple(COORDINATES) if spec.coordinates else (),
        how=spec.merge,
        event_time=called(spec.event_time.column),
        window_us=None if spec.window is None else Grain(spec.window).us,
        within_us=None if spec.dedupe is None else spec.dedupe.within // timedelta(microseconds=1),
    )


def called_now(table: Schema, other_names: Mapping[str, int], name: str) -> str:
    """The name that a declared column has in a table, which may have been renamed."""
    return current_name(table, other_names.get(name)) or name
