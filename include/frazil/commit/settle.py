"""Settles the journals of earlier epochs: commits journals that continue the marker, and discards all others.

Runs after the take-over, when earlier epochs can no longer commit.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.backfill_records import is_last_backfill, read_backfill
from frazil.commit.commit_checks import check_fence, check_same_source, forgotten_epoch
from frazil.commit.committer import Committer
from frazil.commit.journal import NO_DEAD_LETTERS, Journal, bare_path
from frazil.commit.marked_update import commit_marker
from frazil.commit.marker import BatchKey, BatchOutcome, Marker, read_marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import sweep
from frazil.commit.waiting_files import find_missing_files
from frazil.errors import StaleBatch, TopicRecreated
from frazil.ingest.contract import is_routed
from frazil.spec.units import format_count
from frazil.table.branches import summary_value
from frazil.table.tables import data_location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SettleResult:
    committed: tuple[Journal, ...] = ()
    discarded: tuple[BatchKey, ...] = ()
    deleted_files: int = 0

    def __str__(self) -> str:
        parts = [
            f"batches {word}: {', '.join(map(str, keys))}"
            for word, keys in (("committed", [j.key for j in self.committed]), ("discarded", self.discarded))
            if keys
        ]
        swept = [f"{format_count(self.deleted_files, 'orphaned file')} deleted"] if self.deleted_files else []
        return "; ".join([*parts, *swept]) or "no unfinished batch"


def settle(tables: StreamTables, committer: Committer) -> SettleResult:
    """Commit the journals that continue the marker, and discard all others. Uses neither Kafka nor new files."""
    marker = check_fence(tables.marker(), stream=tables.stream, epoch=committer.epoch)
    _restore_dead_letters(tables, committer, marker)
    committed: list[Journal] = []
    discarded: list[BatchKey] = []
    keys = tables.journals.keys()
    uuid = str(tables.main.current().metadata.table_uuid)
    for journal in tables.journals.after(marker.settled, keys, table_uuid=uuid, stream=tables.stream):
        if journal.key.epoch >= marker.key.epoch or marker.outcome_of(journal.key) is not BatchOutcome.NOT_COMMITTED:
            continue
        try:
            _commit_waiting(committer, journal, tables)
        except (StaleBatch, TopicRecreated) as reason:
            discarded.append(journal.key)
            tables.journals.void(journal.key)
            log.info("discarded: %s", reason)
        else:
            committed.append(journal)
            log.info("batch %s of an earlier epoch was committed from its journal", journal.key)
    if discarded:
        # A later epoch may have read a journal before it was discarded. Cached metadata would not show that epoch.
        def decide(_: Table, current: Marker | None) -> Marker:
            marker = check_fence(current, stream=tables.stream, epoch=committer.epoch)
            return dataclasses.replace(marker, key=BatchKey(committer.epoch, marker.key.batch + 1))

        commit_marker(tables, tables.main, decide, summary={"frazil.operation": "settle"})
    deleted = sweep(tables, below_epoch=committer.epoch, keys=keys)
    return SettleResult(tuple(committed), tuple(discarded), deleted)


def _restore_dead_letters(tables: StreamTables, committer: Committer, marker: Marker) -> None:
    """Commit dead letters again that the catalog has lost, although the default table has their batches."""
    table = tables.dead_letters.current()
    known = read_marker(table.metadata.properties, tables.stream)
    if not known or not marker.dead_letters or known.outcome_of(marker.dead_letters) is not BatchOutcome.NOT_COMMITTED:
        return
    for journal in _find_lost_dead_letters(tables, table, known, marker):
        where = f"the catalog has lost the dead letters of batch {journal.key} in {tables.dead_letters.identifier}"
        try:
            _check_restorable(tables, table, known, journal)
            committer.commit_dead_letters(journal)
        except (StaleBatch, TopicRecreated) as reason:
            log.warning("%s. They cannot be committed again: %s", where, reason)
            return
        log.warning("%s. They were committed again", where)


def _find_lost_dead_letters(tables: StreamTables, table: Table, known: Marker, marker: Marker) -> list[Journal]:
    """Return the committed batches whose dead letters belong after those that the table has, in order."""
    folder, uuid = f"{bare_path(data_location(table))}/", tables.main.current().metadata.table_uuid
    last = known.settled or NO_DEAD_LETTERS
    later = takewhile(lambda j: j.key > last, tables.journals.records(newest_first=True, table_uuid=uuid))
    lost = []
    for journal in later:
        files = journal.staged_for("dead-letters") if marker.has_committed(journal.key) else ()
        if files and all(bare_path(file.path).startswith(folder) for file in files):
            lost.append(journal)
    return lost[::-1]


def _check_restorable(tables: StreamTables, table: Table, known: Marker, journal: Journal) -> None:
    """Raise StaleBatch or TopicRecreated if a batch's dead letters are no longer staged, or may be outdated."""
    check_same_source(known.source, journal.source, stream=tables.stream)
    if missing := find_missing_files(tables, journal.staged_for("dead-letters")):
        raise StaleBatch(f"these files no longer exist: {missing}")
    last = read_backfill(tables.main.current().metadata.properties, tables.stream)
    if last and last.replays and not is_last_backfill(table.metadata.properties, last):
        raise StaleBatch(f"replay {last.id}, which the catalog has also lost, may have turned them into rows")


def _commit_waiting(committer: Committer, journal: Journal, tables: StreamTables) -> None:
    if missing := find_missing_files(tables, (f for f in journal.files if not is_routed(f.target))):
        raise StaleBatch(f"batch {journal.key} of stream {journal.stream!r} is missing staged files: {missing}")
    if committer.commit(journal).settled != journal.key:  # for example after a reset
        raise StaleBatch(f"the marker of stream {journal.stream!r} is already past batch {journal.key}")


def highest_epoch(tables: StreamTables) -> int:
    """Return the highest epoch ever used, or 0. Epochs never repeat, even after `forget`."""
    marker = read_marker(tables.main.current().metadata.properties, tables.stream)
    # An epoch is in the marker before it writes journals, so journals matter only if the marker does not exist.
    epochs = {marker.key.epoch if marker else tables.journals.highest_epoch()}
    for target, handle in tables.targets.items():
        table = handle.current()
        marker = read_marker(table.metadata.properties, tables.stream)
        epochs |= {marker.key.epoch} if marker else {forgotten_epoch(table.metadata.properties, tables.stream)}
        epochs |= epochs_in_summaries(table.metadata.snapshots, tables.stream)
        folders = tables.store_of(target).list_folders(f"{data_location(table)}/{tables.stream}")
        names = (folder.rstrip("/").rsplit("/", 1)[-1] for folder in folders)
        epochs |= {int(name) for name in names if name.isdigit()}
    return max(epochs, default=0)


def epochs_in_summaries(snapshots: Iterable[Snapshot], stream: str) -> set[int]:
    commits = (snapshot for snapshot in snapshots if summary_value(snapshot, "frazil.stream") == stream)
    return {int(summary_value(snapshot, "frazil.epoch") or 0) for snapshot in commits}
