"""Finds the routed tables that miss rows of the default table, by loading the tables; for readers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.backfill_marker import BackfillMarker, has_rows_of, unsettled
from frazil.commit.backfill_records import chunks, given_up
from frazil.commit.followers import (
    Behind,
    Followers,
    Gone,
    behind_of,
    check_routed_not_rolled_back,
    decided_journals,
    error_sentence,
    missing_journals,
    present_marker,
)
from frazil.commit.journal import Journal, later_journals
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.members import never_had
from frazil.commit.stream_tables import StreamTables
from frazil.commit.waiting_files import all_beside, note_of
from frazil.errors import TableLost
from frazil.ingest.contract import Target
from frazil.table.parallel import in_parallel

Remedy = Callable[[Target], "str | None"]
"""Returns a sentence that says what happened to a table that is missing in the catalog, and what to do; None if
unknown.
"""


def missing_rows(tables: StreamTables, default_marker: Marker, remedy: Remedy = lambda _: None) -> list[Behind]:
    """Return the routed tables that miss rows, ordered by name. Loads the tables and commits nothing."""
    return missing_rows_of(tables, default_marker, Followers.of(tables, default_marker).waiting, remedy)


def missing_rows_of(
    tables: StreamTables, default_marker: Marker, waiting: Mapping[Target, list[Journal]], remedy: Remedy
) -> list[Behind]:
    """Return which tables with waiting batches miss rows. Loads these tables in parallel."""

    def step(item: tuple[Target, list[Journal]]) -> Behind | None:
        return _missing_rows(tables, default_marker, *item, remedy)

    return [found for found in in_parallel(step, sorted(waiting.items())) if found] if waiting else []


def _missing_rows(
    tables: StreamTables, default_marker: Marker, target: Target, waiting: list[Journal], remedy: Remedy
) -> Behind | None:
    journals, reason = waiting, "its writer commits them with the next batch, or reports why that fails"
    is_well, gone = False, None
    try:
        table = tables.handle(target).refresh()
        marker = present_marker(read_marker(table.metadata.properties, tables.stream), table, tables.stream)
        check_routed_not_rolled_back(table.metadata, marker, table=target)
        journals, is_well = later_journals(marker, waiting), True
    except Exception as error:  # catalogs' clients raise anything
        note = note_of(tables, target) if all_beside(tables, waiting, target) else None
        reason = error_sentence(error, tables.stream, target) if note is None else note.reason
        if isinstance(error, NoSuchTableError):
            gone = Gone.MISSING
            if note is None:
                reason = remedy(target) or reason
            journals = [*never_had(tables, target, waiting)]
    if not journals:
        return None
    only_last = is_well and [journal.key for journal in journals] == [default_marker.settled]
    return dataclasses.replace(behind_of(target, journals, reason), only_last=only_last, gone=gone)


def missing_backfilled(tables: StreamTables, there: Mapping[Target, Table]) -> list[Behind]:
    """Return the tables without the rows of the last published backfill or replay. Commits nothing.

    `there` has tables that are loaded already. Costs nothing once the dead-letter table has ended it too: all tables
    have its rows then.
    """
    backfill = unsettled(tables.main.current().properties, _dead_letter_properties(tables), tables.stream)
    if backfill is None:
        return []
    gone = given_up(tables.journals, backfill.id)
    staged = defaultdict[Target, list[Journal]](list)
    for journal in chunks(tables.journals, backfill):
        for target in journal.routed - gone:
            staged[target].append(journal)
    command = f"frazil {'dlq replay' if backfill.replays else 'backfill'} {tables.stream}"
    reason = f"the default table has them; `{command}` brings them, or shows why it cannot"
    return [
        dataclasses.replace(behind_of(target, journals, reason), backfill=backfill.id)
        for target, journals in sorted(staged.items())
        if not _has_rows_of(tables, there.get(target), target, backfill)
    ]


def _dead_letter_properties(tables: StreamTables) -> Mapping[str, str]:
    """Return the dead-letter table's properties; empty if that table is lost.

    Without these properties, each routed table itself shows whether it has the rows.
    """
    try:
        return tables.dead_letters.current().properties
    except TableLost:
        return {}


def _has_rows_of(tables: StreamTables, table: Table | None, target: Target, backfill: BackfillMarker) -> bool:
    try:
        return has_rows_of((table or tables.handle(target).refresh()).properties, backfill)
    except Exception:  # as above: what cannot be loaded is not known to have them
        return False


def missing_since(tables: StreamTables, default_marker: Marker) -> BatchKey | None:
    """Return the first batch that a routed table does not have; None if all tables have all batches. Loads the
    tables.
    """
    found = list[Journal]()
    for target, journals in Followers.of(tables, default_marker).waiting.items():
        try:
            found += missing_journals(tables, tables.handle(target).refresh(), journals)
        except NoSuchTableError:
            found += journals
    return min((journal.key for journal in found), default=None)


def first_missing(tables: StreamTables, default_marker: Marker, target: Target, marker: Marker) -> BatchKey | None:
    """Return the first batch whose rows a table misses; None if it misses none.

    Compares the table's `marker` with the default table's marker.
    """
    ahead = marker.settled is not None and (default_marker.settled is None or marker.settled >= default_marker.settled)
    if ahead or default_marker.routed is None or default_marker.routed == default_marker.settled:
        return None
    waiting = [journal for journal in decided_journals(tables, default_marker) if target in journal.routed]
    return min((journal.key for journal in later_journals(marker, waiting)), default=None)
