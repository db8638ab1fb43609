"""Commits the rows of a backfill or replay to the routed tables.

Rows wait in files next to the journals until their table has them. One commit per routed table adds the rows, and
records the backfill in the table's properties. The dead-letter table changes only after all routed tables.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter

from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate
from pyroaring import BitMap64

from frazil.commit.backfill_records import (
    BackfillMarker,
    is_last_backfill,
    list_given_up_targets,
    property_name,
    staging_stream,
)
from frazil.commit.commit_checks import files_fit
from frazil.commit.compare_and_swap import Change, Done, swap
from frazil.commit.followers import check_routed_not_rolled_back, require_marker
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, require_own_marker
from frazil.commit.merging import MERGING_MODES, MergeWriter
from frazil.commit.missing_rows import find_lagging_tables
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import rewrite_files
from frazil.errors import CommitUnavailable, Explanation, Fenced, RouteBehind, SchemaIncompatible, error_text
from frazil.host.supervision import start_hint
from frazil.ingest.contract import StageContext, StagedFile, Target, is_routed
from frazil.merge.contract import MergeRules
from frazil.offsets.spans import Spans, TopicPartition, to_bitmaps
from frazil.offsets.tally import OffsetTally, Tallies, get_offsets
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.stream.route_values import RouteValues
from frazil.stream.routed_tables import RoutedTables
from frazil.stream.stage_context import add_routed_targets
from frazil.table.catalogs import load_catalog, open_existing_catalog, translate_catalog_errors
from frazil.table.declared_tables import list_matching_names, load_route_tables
from frazil.table.landed_offsets import tally_files
from frazil.table.tables import check_rows_fit, data_location


def writer_for_older_files(tables: StreamTables, files: tuple[StagedFile, ...]) -> SnapshotWriter | MergeWriter:
    """Return a writer for files whose records may be older than the table's rows. It appends or merges the files."""
    merging = tables.merging
    if merging is None or not files or files[0].content not in MERGING_MODES:
        return SnapshotWriter(files)

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    older = dataclasses.replace(merging, rules=rules, parallelism=lambda: len(files))
    return MergeWriter(tables.stream, files, older, tables.landed)


def staged_files(journals: Iterable[Journal], target: Target) -> tuple[StagedFile, ...]:
    return tuple(file for journal in journals for file in journal.staged_for(target))


def backfill_summary(backfill: BackfillMarker) -> dict[str, str]:
    """Return the snapshot properties of a backfill or replay, without the live stream's `frazil.stream`."""
    return {
        "frazil.operation": "replay" if backfill.replays else "backfill",
        "frazil.backfill": backfill.id,
        "frazil.backfill-stream": backfill.stream,
    }


def tally_files_to_merge(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """Collect the offsets of the records in the staged files that must be merged into the default table."""
    return tally_files(table.io, (f.path for f in staged_files(journals, "main") if f.content in MERGING_MODES))


def offsets_without_dead_letters(spans: Spans, dead_letters: Tallies) -> dict[TopicPartition, BitMap64]:
    return {tp: offsets - get_offsets(dead_letters, tp) for tp, offsets in to_bitmaps(spans).items()}


def tally_former_dead_letters(rows: Tallies, dead_letters: Tallies) -> Tallies:
    """Return the offsets of staged rows with records that are no longer dead letters."""
    remaining = {tp: tally.seen - get_offsets(dead_letters, tp) for tp, tally in rows.items()}
    return {tp: OffsetTally([*offsets]) for tp, offsets in remaining.items() if offsets}


log = logging.getLogger(__name__)

ROUTED_TABLES_TIMEOUT_S = 15.0
"""Seconds to wait until a running writer has committed the last batch to the routed tables."""
MAX_OPEN_ATTEMPTS = 3
"""Maximum number of attempts to open the routed tables, in case a writer is just starting."""


@dataclasses.dataclass(slots=True)
class BackfillRoute:
    """The route of a stream during a backfill or a replay. Each of its tables exists and has all batches."""

    tables: StreamTables
    routed: RoutedTables

    @classmethod
    def open(cls, spec: StreamSpec, tables: StreamTables) -> BackfillRoute | None:
        """Load the tables, and create declared ones; None without a route. Raises RouteBehind, and SchemaIncompatible
        if the stream's own tables are not as declared: a running writer may not know the newer declaration.
        """
        if (route := spec.route) is None:
            return None
        check_rows_fit(tables.main.refresh(), tables.dead_letters.refresh(), spec, start_hint=start_hint)
        for attempt in range(MAX_OPEN_ATTEMPTS):
            routed = RoutedTables(spec, route, load_catalog(spec.table.catalog), tables)
            try:
                routed.open(wait_for_routed_tables(tables))
            except Fenced:  # a writer has begun in the meantime
                if attempt == MAX_OPEN_ATTEMPTS - 1:
                    raise
                continue
            break
        opened = cls(tables, routed)
        opened._check_tables_exist()
        return opened

    def create_tables(self, values: Collection[str]) -> None:
        """Create tables for new routing values, up to the route's limit, as a writer does."""
        self.routed.create_tables(values, wait_for_routed_tables(self.tables))
        self._check_tables_exist()

    def _check_tables_exist(self) -> None:
        if self.routed.absent:
            _, explanation = min(self.routed.absent.items(), key=itemgetter(0))
            raise _refusal(self.tables.stream, explanation)

    def add_targets(self, context: StageContext, staging: StreamTables, key: BatchKey) -> StageContext:
        """Return the chunk's context with the route's tables. Their files are staged in the waiting folder."""
        context = self.routed.add_targets(context, key)
        folder, io = staging.waiting_folder(key), context.main.io
        targets = {
            target: dataclasses.replace(table, folder=folder, io=io) if is_routed(target) else table
            for target, table in context.targets.items()
        }
        return dataclasses.replace(context, targets=targets)


@dataclasses.dataclass(slots=True)
class PredictedRoute(RouteValues):
    """The route of a stream in a dry run, which creates no tables. Missing tables get the default table's layout."""

    found: Mapping[Target, Table]
    foreign: Collection[str]
    """Tables whose names match the template, although the template did not create them."""

    @classmethod
    def open(cls, spec: StreamSpec) -> PredictedRoute | None:
        if (route := spec.route) is None:
            return None
        catalog, sinks = open_existing_catalog(spec.table.catalog), spec.sinks
        with translate_catalog_errors(catalog.name):
            tables = load_route_tables(catalog, sinks)
            foreign = {*list_matching_names(catalog, sinks)} - tables.keys()
        values = {name: sinks.find_value(name, table.properties) for name, table in tables.items()}
        opened = cls(spec, route, tables, foreign)
        opened.targets.update({value: name for name, value in values.items() if value is not None})
        opened.targets.update(sinks.by_value)
        return opened

    def create_tables(self, values: Collection[str]) -> None:
        """Add targets for new routing values, up to the route's limit."""
        for value in self.find_new(values):
            target = self.route.derive_table_name(value)
            if target in self.foreign:
                self.refuse_foreign(value, target)
            else:
                self.targets[value] = target

    def add_targets(self, context: StageContext) -> StageContext:
        return add_routed_targets(context, self.spec, self.found, self.destinations())


def wait_for_routed_tables(tables: StreamTables) -> Marker:
    """Wait until the routed tables have all batches, and return the default table's marker. Raises RouteBehind."""
    retry_policy = tables.retry_policy
    deadline = retry_policy.clock() + ROUTED_TABLES_TIMEOUT_S
    while True:
        default_marker = require_own_marker(tables.stream, tables.marker())
        if not (behind := find_lagging_tables(tables, default_marker)):
            return default_marker
        if retry_policy.clock() >= deadline or retry_policy.wait(min(1.0, ROUTED_TABLES_TIMEOUT_S)):
            raise _refusal(tables.stream, behind[0].explain())


def _refusal(stream: str, explanation: Explanation) -> RouteBehind:
    remedy = explanation.remedy or f"Fix the table first: `frazil route {stream}` shows how"
    return RouteBehind(f"no backfill or replay of stream {stream!r} can start: {explanation.reason}", remedy=remedy)


def tally_routed(table: Table, journals: Iterable[Journal]) -> dict[Target, dict[TopicPartition, OffsetTally]]:
    """Collect the offsets of staged rows by routed table. The default table's storage has the files."""
    waiting = _group_waiting_files(journals)
    return {target: tally_files(table.io, (file.path for file in files)) for target, files in waiting.items()}


def _group_waiting_files(journals: Iterable[Journal]) -> dict[Target, list[StagedFile]]:
    files: dict[Target, list[StagedFile]] = defaultdict(list)
    for file in (f for journal in journals for f in journal.files if is_routed(f.target)):
        files[file.target].append(file)
    return files


def commit_to_routed_tables(tables: StreamTables, backfill: BackfillMarker, journals: Iterable[Journal]) -> None:
    """Commit the rows of a published backfill to the routed tables that are missing them.

    Omits rows that an operator discarded. Tries all tables, and then raises CommitUnavailable if a commit failed.
    """
    discarded = list_given_up_targets(tables.journals, backfill.id)
    waiting = {target: files for target, files in _group_waiting_files(journals).items() if target not in discarded}
    reason = behind = ""
    for target, files in sorted(waiting.items()):
        try:
            _commit_to_table(tables, backfill, target, files)
        except Fenced:
            raise
        except Exception as error:  # catalogs' clients raise anything, and the other tables must continue
            log.info("the commit to table %s failed", target, exc_info=True)
            behind, reason = target, error_text(error)
    if behind:
        rows = format_count(sum(file.records for file in waiting[behind]), "row")
        raise CommitUnavailable(
            f"{'replay' if backfill.replays else 'backfill'} {backfill.id} of stream {backfill.stream!r} is published, "
            f"but table {behind} does not have {rows} yet: {reason}. Its dead letters wait too. Fix the table, or "
            "discard the rows: "
            f"`frazil route {backfill.stream} --give-up {behind}`; then run `{backfill.command}` again"
        )


def _commit_to_table(tables: StreamTables, backfill: BackfillMarker, target: Target, files: list[StagedFile]) -> None:
    handle = tables.handle(target)
    table = handle.refresh()
    if is_last_backfill(table.metadata.properties, backfill):
        return
    check_routed_not_rolled_back(table.metadata, require_marker(table, tables.stream), table=target)
    folder = f"{data_location(table)}/{staging_stream(tables.stream, backfill.id)}/{backfill.epoch:08d}/{1:08d}"
    written = rewrite_files(tables, table, files, target, folder=folder)
    writer = writer_for_older_files(tables, written)
    summary = backfill_summary(backfill) | {"frazil.records": str(sum(file.records for file in written))}

    def propose(table: Table) -> Done[None] | Change[None]:
        if is_last_backfill(table.metadata.properties, backfill):
            return Done(None)
        last = tables.last_backfill()
        if last is None or last.id != backfill.id:
            raise Fenced(
                f"another `{backfill.command}` has finished this backfill or replay: this command makes no "
                "further changes"
            )
        check_routed_not_rolled_back(table.metadata, require_marker(table, tables.stream), table=target)
        if not files_fit(table.metadata, written):
            raise SchemaIncompatible(
                f"the schema or partition spec of table {target} changed while rows were written for it; run "
                f"`{backfill.command}` again"
            )
        prepared = writer.prepare(table, summary=summary, now_ms=tables.clock_ms())
        marked = SetPropertiesUpdate(updates={property_name(backfill.stream): backfill.to_property()})
        return Change(prepared.requirements, (*prepared.updates, marked), None)

    swap(handle, propose, (writer,), retry_policy=tables.retry_policy)
