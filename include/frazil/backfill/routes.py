"""The routed tables of a backfill or a replay: which table gets the row of a record, and how the table gets it.

The default table's commit publishes the rows of all tables. Until a routed table has its rows, they wait next to the
journals. Each routed table gets its rows in one commit that also records the backfill in
the table's properties, so the rows land once. Then the dead letters of a replay leave the dead-letter table, and the
dead letters of a backfill enter it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.backfill.changes import merging_older
from frazil.backfill.rules import command_of
from frazil.commit.backfill_marker import BackfillMarker, has_rows_of, property_name, read_backfill, staging_stream
from frazil.commit.backfill_records import given_up
from frazil.commit.followers import check_routed_not_rolled_back
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.missing_rows import missing_rows
from frazil.commit.rules import files_fit
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import Change, Done, commit_snapshot
from frazil.commit.waiting_files import written_again
from frazil.errors import (
    AdoptionRequired,
    CommitUnavailable,
    Fenced,
    RouteBehind,
    SchemaIncompatible,
    words_of,
)
from frazil.ingest.contract import StageContext, StagedFile, Target, is_routed
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted
from frazil.stream.routed_tables import RoutedTables
from frazil.table.catalogs import load_catalog
from frazil.table.landed_offsets import tally_files
from frazil.table.tables import data_location

log = logging.getLogger(__name__)

SETTLES_S = 15.0
"""Timeout for a running writer to commit the default table's last batch to the routed tables."""
MAX_OPENED = 3


@dataclasses.dataclass(slots=True)
class BackfillRoute:
    """The route of a stream that is backfilled, or whose dead letters are replayed.

    Every table exists and is up to date.
    """

    tables: StreamTables
    routed: RoutedTables

    @classmethod
    def open(cls, spec: StreamSpec, tables: StreamTables) -> BackfillRoute | None:
        """Load the tables, and create those that are declared; None for a stream without a route.

        Raises RouteBehind while a table is missing or behind, and what `RoutedTables.open` raises.
        """
        if spec.route is None:
            return None
        for attempt in range(MAX_OPENED):
            routed = RoutedTables(spec, spec.route, load_catalog(spec.table.catalog), tables)
            try:
                routed.open(_settled(tables))
            except Fenced:  # a writer began meanwhile
                if attempt == MAX_OPENED - 1:
                    raise
                continue
            break
        found = cls(tables, routed)
        found._check_there()
        return found

    def make(self, values: Collection[str]) -> None:
        """Create tables for new values, as a writer does, up to the route's limit."""
        self.routed.make(values, _settled(self.tables))
        self._check_there()

    def _check_there(self) -> None:
        if self.routed.absent:
            target, reason = min(self.routed.absent.items())
            raise RouteBehind(_refused(self.tables.stream, f"table {target} is not there: {reason}"))

    def placed(self, context: StageContext, own: StreamTables, key: BatchKey) -> StageContext:
        """Return a chunk's context with the route; rows of routed tables wait next to the journals."""
        placed = self.routed.placed(context, key)
        folder, io = own.waiting_folder(key), placed.main.io
        waits = {t: dataclasses.replace(of, folder=folder, io=io) for t, of in placed.targets.items() if is_routed(t)}
        return dataclasses.replace(placed, targets={**placed.targets, **waits})


def _settled(tables: StreamTables) -> Marker:
    """Return the default table's marker once every routed table has the same batches. Raises RouteBehind."""
    retry_policy = tables.retry_policy
    deadline = retry_policy.clock() + SETTLES_S
    while True:
        default_marker = tables.marker()
        if default_marker is None:
            raise AdoptionRequired(f"stream {tables.stream!r} has no marker: nothing tells which records are its own")
        behind = missing_rows(tables, default_marker)
        if not behind:
            return default_marker
        if retry_policy.clock() >= deadline or retry_policy.wait(min(1.0, SETTLES_S)):
            raise RouteBehind(_refused(tables.stream, str(behind[0])))


def _refused(stream: str, why: str) -> str:
    return (
        f"stream {stream!r} is neither backfilled nor are its dead letters replayed: {why}. Fix the table first: "
        f"`frazil route {stream}` shows what is missing"
    )


def tally_routed(table: Table, journals: Iterable[Journal]) -> dict[Target, dict[TopicPartition, OffsetTally]]:
    """Tally the offsets of the rows staged for routed tables.

    `table` is the default table, whose storage has these rows.
    """
    waiting = _waiting(journals)
    return {target: tally_files(table.io, (file.path for file in files)) for target, files in waiting.items()}


def _waiting(journals: Iterable[Journal]) -> dict[Target, list[StagedFile]]:
    found: dict[Target, list[StagedFile]] = defaultdict(list)
    for file in (f for journal in journals for f in journal.files if is_routed(f.target)):
        found[file.target].append(file)
    return found


def bring(tables: StreamTables, backfill: BackfillMarker, journals: Iterable[Journal]) -> None:
    """Commit the rows of a published backfill to the routed tables that miss them, except rows that an operator
    discarded.

    Raises CommitUnavailable for a table that cannot take its rows, after all other tables were tried.
    """
    gone = given_up(tables.journals, backfill.id)
    waiting = {target: files for target, files in _waiting(journals).items() if target not in gone}
    reason = behind = ""
    for target, files in sorted(waiting.items()):
        try:
            _follow(tables, backfill, target, files)
        except Fenced:
            raise
        except Exception as error:  # catalogs' clients raise anything, and the other tables must go on
            log.info("table %s is left behind", target, exc_info=True)
            behind = target
            reason = words_of(error)
    if behind:
        rows = counted(sum(file.records for file in waiting[behind]), "row", "waits|wait")
        raise CommitUnavailable(
            f"{'replay' if backfill.replays else 'backfill'} {backfill.id} of stream {backfill.stream!r} has landed, "
            f"and {rows} for table {behind}: {reason}. Its dead letters wait for that too. Fix the table, or let it "
            f"go on: `frazil route {backfill.stream} --give-up {behind}`; then run `{command_of(backfill)}` again"
        )


def _follow(tables: StreamTables, backfill: BackfillMarker, target: Target, files: list[StagedFile]) -> None:
    """Rewrite rows with the table's columns, and commit them in one update with the backfill's state."""
    handle = tables.handle(target)
    table = handle.refresh()
    if has_rows_of(table.metadata.properties, backfill):
        return
    _check_followed(table, tables.stream, target)
    folder = f"{data_location(table)}/{staging_stream(tables.stream, backfill.id)}/{backfill.epoch:08d}/{1:08d}"
    written = written_again(tables, table, files, target, folder=folder)
    writer = merging_older(tables, written)
    summary = {
        "frazil.operation": "replay" if backfill.replays else "backfill",
        "frazil.backfill": backfill.id,
        "frazil.backfill-stream": backfill.stream,
        "frazil.records": str(sum(file.records for file in written)),
    }

    def propose(table: Table) -> Done[None] | Change[None]:
        if has_rows_of(table.metadata.properties, backfill):
            return Done(None)
        _check_last(tables, backfill)
        _check_followed(table, tables.stream, target)
        if not files_fit(table.metadata, written):
            raise SchemaIncompatible(f"table {target} was changed meanwhile")
        prepared = writer.prepare(table, summary=summary, now_ms=tables.clock_ms())
        marked = SetPropertiesUpdate(updates={property_name(backfill.stream): backfill.to_property()})
        return Change(prepared.requirements, (*prepared.updates, marked), None)

    commit_snapshot(handle, propose, (writer,), retry_policy=tables.retry_policy)


def _check_last(tables: StreamTables, backfill: BackfillMarker) -> None:
    """Check that no later backfill has begun: a later one begins only after all tables have these rows. Raises
    Fenced.
    """
    found = read_backfill(tables.main.refresh().metadata.properties, tables.stream)
    if found is None or found.id != backfill.id:
        raise Fenced(f"another `{command_of(backfill)}` finished this one: this command changes nothing more")


def _check_followed(table: Table, stream: str, target: Target) -> None:
    marker = read_marker(table.metadata.properties, stream)
    if marker is None:
        raise CommitUnavailable(f"it has no marker of stream {stream!r}: it was dropped and made again")
    check_routed_not_rolled_back(table.metadata, marker, table=target)
