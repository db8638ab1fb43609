"""Finds the routed tables that are behind the default table, by the tables themselves, for readers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.beside_home import all_beside, note_of
from frazil.commit.followers import (
    Behind,
    Followers,
    Gone,
    behind_of,
    check_routed_not_rolled_back,
    decided_journals,
    lacked,
    present_marker,
    told_error,
)
from frazil.commit.journal import Journal, later_journals
from frazil.commit.lane import Lane, has_lane, unsettled
from frazil.commit.lane_records import chunks, given_up
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.members import never_had
from frazil.commit.stream_tables import StreamTables
from frazil.errors import TableLost
from frazil.ingest.contract import Target
from frazil.table.parallel import in_parallel

Mending = Callable[[Target], "str | None"]
"""Returns what happened to a table that is not in the catalog, and what to do, as a sentence; None if unknown."""


def lacking(tables: StreamTables, home: Marker, mending: Mending = lambda _: None) -> list[Behind]:
    """Return the tables that are behind, by the tables themselves, ordered by name. Commits nothing."""
    return lacking_of(tables, home, Followers.of(tables, home).waiting, mending)


def lacking_of(
    tables: StreamTables, home: Marker, waiting: Mapping[Target, list[Journal]], mending: Mending
) -> list[Behind]:
    """Return which tables with waiting batches are behind. Loads each, in parallel."""

    def step(item: tuple[Target, list[Journal]]) -> Behind | None:
        return _lacks(tables, home, *item, mending)

    return [found for found in in_parallel(step, sorted(waiting.items())) if found] if waiting else []


def _lacks(
    tables: StreamTables, home: Marker, target: Target, waiting: list[Journal], mending: Mending
) -> Behind | None:
    journals, reason = waiting, "its writer commits them with the next batch, or says why it cannot"
    is_well, gone = False, None
    try:
        table = tables.handle(target).refresh()
        marker = present_marker(read_marker(table.metadata.properties, tables.stream), table, tables.stream)
        check_routed_not_rolled_back(table.metadata, marker, table=target)
        journals, is_well = later_journals(marker, waiting), True
    except Exception as error:  # catalogs' clients raise anything
        note = note_of(tables, target) if all_beside(tables, waiting, target) else None
        reason = told_error(error, tables.stream, target) if note is None else note.reason
        if isinstance(error, NoSuchTableError):
            gone = Gone.MISSING
            if note is None:
                reason = mending(target) or reason
            journals = [*never_had(tables, target, waiting)]
    if not journals:
        return None
    only_last = is_well and [journal.key for journal in journals] == [home.settled]
    return dataclasses.replace(behind_of(target, journals, reason), only_last=only_last, gone=gone)


def lacking_backfilled(tables: StreamTables, there: Mapping[Target, Table]) -> list[Behind]:
    """Return the tables without the rows of the last published backfill or replay. Commits nothing.

    `there` has tables that are loaded already. Costs nothing once the dead-letter table has ended it too: all tables
    have its rows then.
    """
    lane = unsettled(tables.main.current().properties, _letters_properties(tables), tables.stream)
    if lane is None:
        return []
    gone = given_up(tables.journals, lane.id)
    staged = defaultdict[Target, list[Journal]](list)
    for journal in chunks(tables.journals, lane):
        for target in journal.routed - gone:
            staged[target].append(journal)
    command = f"frazil {'dlq replay' if lane.replays else 'backfill'} {tables.stream}"
    reason = f"the default table has them; `{command}` brings them, or shows why it cannot"
    return [
        dataclasses.replace(behind_of(target, journals, reason), backfill=lane.id)
        for target, journals in sorted(staged.items())
        if not _has_lane(tables, there.get(target), target, lane)
    ]


def _letters_properties(tables: StreamTables) -> Mapping[str, str]:
    """Return the dead-letter table's properties; empty if it is lost.

    Each table itself shows whether it has the rows.
    """
    try:
        return tables.dead_letters.current().properties
    except TableLost:
        return {}


def _has_lane(tables: StreamTables, table: Table | None, target: Target, lane: Lane) -> bool:
    try:
        return has_lane((table or tables.handle(target).refresh()).properties, lane)
    except Exception:  # as above: what cannot be loaded is not known to have them
        return False


def lacking_since(tables: StreamTables, home: Marker) -> BatchKey | None:
    """Return the first batch that a routed table does not have, by the tables themselves; None if all have all."""
    found = list[Journal]()
    for target, journals in Followers.of(tables, home).waiting.items():
        try:
            found += lacked(tables, tables.handle(target).refresh(), journals)
        except NoSuchTableError:
            found += journals
    return min((journal.key for journal in found), default=None)


def first_lacked(tables: StreamTables, home: Marker, target: Target, marker: Marker) -> BatchKey | None:
    """Return the first batch whose rows a table is missing, by its `marker` and `home`'s; None without one."""
    ahead = marker.settled is not None and (home.settled is None or marker.settled >= home.settled)
    if ahead or home.routed is None or home.routed == home.settled:
        return None
    waiting = [journal for journal in decided_journals(tables, home) if target in journal.routed]
    return min((journal.key for journal in later_journals(marker, waiting)), default=None)
