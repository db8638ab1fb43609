"""Finds routed tables that are missing rows of the default table, by loading the tables. Commits nothing."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.backfill_records import (
    BackfillMarker,
    committed_chunks,
    is_last_backfill,
    list_given_up_targets,
    unsettled_backfill,
)
from frazil.commit.followers import (
    Followers,
    LaggingTable,
    TableAbsence,
    check_routed_not_rolled_back,
    explain_error,
    make_lagging_table,
    missing_journals,
    require_marker,
)
from frazil.commit.journal import Journal, later_journals
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.routed_table_records import journals_never_committed
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import all_files_wait, load_missing_table_note
from frazil.errors import Explanation, TableLost
from frazil.ingest.contract import Target
from frazil.table.parallel import run_in_parallel

ExplainMissingTable = Callable[[Target], "Explanation | None"]
"""Returns why a table is missing in the catalog and what to do, if known."""


def find_lagging_tables(
    tables: StreamTables,
    default_marker: Marker,
    waiting: Mapping[Target, list[Journal]] | None = None,
    explain: ExplainMissingTable = lambda _: None,
) -> list[LaggingTable]:
    """Return the routed tables that are missing rows of `waiting` batches (default: of any batch), sorted by name."""
    if waiting is None:
        waiting = Followers.load(tables, default_marker).waiting

    checks = run_in_parallel(lambda item: _check_table(tables, default_marker, *item, explain), sorted(waiting.items()))
    return [behind for behind in checks if behind]


def _check_table(
    tables: StreamTables, default_marker: Marker, target: Target, waiting: list[Journal], explain: ExplainMissingTable
) -> LaggingTable | None:
    journals = waiting
    explanation = Explanation("the writer commits these rows with the next batch, or reports why it cannot")
    is_loaded, absence = False, None
    try:
        table = tables.handle(target).refresh()
        marker = require_marker(table, tables.stream)
        check_routed_not_rolled_back(table.metadata, marker, table=target)
        journals, is_loaded = later_journals(marker, waiting), True
    except Exception as error:  # catalogs' clients raise anything
        note = load_missing_table_note(tables, target) if all_files_wait(tables, waiting, target) else None
        explanation = note.explanation if note else explain_error(error, tables.stream, target)
        if isinstance(error, NoSuchTableError):
            absence = TableAbsence.MISSING
            if note is None:
                explanation = explain(target) or explanation
            journals = [*journals_never_committed(tables, target, waiting)]
    if not journals:
        return None
    only_last = is_loaded and [journal.key for journal in journals] == [default_marker.settled]
    return dataclasses.replace(make_lagging_table(target, journals, explanation), only_last=only_last, absence=absence)


def find_tables_missing_backfill(tables: StreamTables, loaded: Mapping[Target, Table]) -> list[LaggingTable]:
    """Return the routed tables that are missing rows of the last published backfill; none once its end is recorded."""
    backfill = unsettled_backfill(tables.main.current().properties, _dead_letter_properties(tables), tables.stream)
    if backfill is None:
        return []
    discarded = list_given_up_targets(tables.journals, backfill.id)
    staged = defaultdict[Target, list[Journal]](list)
    for journal in committed_chunks(tables.journals, backfill):
        for target in journal.routed - discarded:
            staged[target].append(journal)
    remedy = f"Run `{backfill.command}` to add them here, or to see why that fails"
    explanation = Explanation("the default table has these rows", remedy)
    return [
        dataclasses.replace(make_lagging_table(target, journals, explanation), backfill=backfill.id)
        for target, journals in sorted(staged.items())
        if not _has_rows_of(tables, loaded.get(target), target, backfill)
    ]


def _dead_letter_properties(tables: StreamTables) -> Mapping[str, str]:
    try:
        return tables.dead_letters.current().properties
    except TableLost:
        return {}


def _has_rows_of(tables: StreamTables, table: Table | None, target: Target, backfill: BackfillMarker) -> bool:
    try:
        return is_last_backfill((table or tables.handle(target).refresh()).properties, backfill)
    except Exception:  # as above: a table that cannot be loaded counts as missing the rows
        return False


def first_batch_missing_anywhere(tables: StreamTables, default_marker: Marker) -> BatchKey | None:
    missing = list[Journal]()
    for target, journals in Followers.load(tables, default_marker).waiting.items():
        try:
            missing += missing_journals(tables, tables.handle(target).refresh(), journals)
        except NoSuchTableError:
            missing += journals
    return min((journal.key for journal in missing), default=None)
