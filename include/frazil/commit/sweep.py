"""Deletes staged files that can never become part of a table.

A suspended writer may still write a journal, and a later epoch would commit the journal's files. Files are therefore
deleted only after the batch's key is closed (`JournalStore.void`), or a later batch is committed.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Summary

from frazil.commit.backfill_records import staging_stream
from frazil.commit.journal import Journal, UnusableJournal, bare_path, later_journals
from frazil.commit.marker import BatchKey, BatchOutcome, Marker, read_marker
from frazil.commit.merging import MERGING_MODES
from frazil.commit.stream_tables import StreamTables
from frazil.errors import error_text
from frazil.ingest.contract import StagedFile, Target, is_routed
from frazil.table.object_store import ObjectStore
from frazil.table.parallel import run_in_parallel
from frazil.table.tables import data_location

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SWEPT_EPOCHS = 16
"""A start sweeps only the newest epochs, because it lists each table's folder of each epoch. Orphan removal deletes
files of older epochs.
"""


def sweep(tables: StreamTables, *, below_epoch: int, keys: Sequence[BatchKey] | None = None) -> int:
    """Delete staged files of epochs below `below_epoch` that never became part of the tables. Returns their number.

    Call it only after `settle`: then no batch after the last committed one can be committed any longer. Skips batches
    that earlier sweeps covered. `keys` are the keys of unfolded journals, if already listed.
    """
    marker = tables.marker()
    if marker is None:
        return 0
    tables.dead_letters.forget()
    view = _SweepState(tables, marker, tables.journals.keys() if keys is None else keys)
    _delete_dead_journals(view, below_epoch)
    return _sweep_tables(view, tables.all, below_epoch, logging.INFO)


def sweep_routed(tables: StreamTables, *, below_epoch: int) -> int:
    """Sweep the routed tables in parallel, right after `settle`. Returns the number of deleted files."""
    marker = tables.marker()
    if marker is None or not tables.routed:
        return 0
    view = _SweepState(tables, marker, tables.journals.keys())
    return _sweep_tables(view, tables.routed, below_epoch, logging.WARNING)


def _attempt(tables: StreamTables, target: Target, step: Callable[[], T], level: int) -> T | None:
    """Run a step for one table. Logs a routed table's error, because the other tables' steps must continue."""
    try:
        return step()
    except Exception as error:  # catalogs' clients raise anything
        if not is_routed(target):
            raise
        text = "cannot delete files of failed batches of table %s; the next start tries again: %s"
        if isinstance(error, NoSuchTableError):
            text = "table %s was dropped or renamed, so failed batches leave files in its folder: see `frazil route %s`"
        log.log(level, text, target, tables.stream if isinstance(error, NoSuchTableError) else error_text(error))
        return None


def _sweep_tables(view: _SweepState, targets: Collection[Target], below_epoch: int, level: int) -> int:
    """Sweep batch after batch, because a journal has the files of all tables and is then read once."""
    # Only the default table and the journals decide whether a routed table's file is needed.
    epochs = range(max(0, below_epoch - MAX_SWEPT_EPOCHS), below_epoch)

    def list_folders(target: Target) -> list[_BatchFolder]:
        swept = _SweptTable(view.tables, target)
        listed = batch_folders(swept.store, swept.table, swept.stream, epochs=epochs)
        return [_BatchFolder(swept, *found) for found in listed if not _was_swept_before(view, found[0])]

    def sweep_folder(record: Journal | UnusableJournal, folder: _BatchFolder) -> int:
        def step() -> int:
            return folder.delete_others(_paths_to_keep(view, folder, record))

        return _attempt(view.tables, folder.swept.target, step, level) or 0

    listed = run_in_parallel(lambda t: _attempt(view.tables, t, lambda: list_folders(t), level) or [], sorted(targets))
    folders = defaultdict[BatchKey, list[_BatchFolder]](list)
    for folder in chain.from_iterable(listed):
        folders[folder.key].append(folder)
    swept = (
        run_in_parallel(partial(sweep_folder, view.entry(key)), found)
        for key, found in sorted(folders.items(), key=itemgetter(0))
    )
    return sum(chain.from_iterable(swept))


@dataclass
class _SweepState:
    tables: StreamTables
    marker: Marker
    keys: Sequence[BatchKey]

    @cached_property
    def oldest(self) -> BatchKey | None:
        return self.tables.journals.oldest(self.keys)

    def entry(self, key: BatchKey) -> Journal | UnusableJournal:
        uuid = str(self.tables.main.current().metadata.table_uuid)
        return self.tables.journals.entry(key, table_uuid=uuid, stream=self.tables.stream)

    def is_passed(self, key: BatchKey) -> bool:
        return self.marker.settled is not None and key <= self.marker.settled


class _SweptTable:
    def __init__(self, tables: StreamTables, target: Target) -> None:
        self.target, self.stream = target, tables.stream
        self.table, self.store = tables.handle(target).current(), tables.store_of(target)

    def folder(self, key: BatchKey) -> _BatchFolder:
        return _BatchFolder(self, key, batch_folder(self.table, self.stream, key))

    @cached_property
    def referenced_paths(self) -> Set[str]:
        return referenced_paths(self.table)

    @cached_property
    def marker(self) -> Marker | None:
        return read_marker(self.table.metadata.properties, self.stream)


@dataclass(frozen=True, slots=True)
class _BatchFolder:
    """The folder with one batch's staged files for one table."""

    swept: _SweptTable
    key: BatchKey
    path: str

    def delete_others(self, needed: Set[str] | None) -> int:
        """Delete all files except those with bare paths in `needed`; none if it is None. Returns their number."""
        return 0 if needed is None else _delete_others(self.swept.store, self.path, needed)

    def is_merged(self, record: Journal) -> bool:
        """Return whether the batch's files here are merged into the table, which then has few of them."""
        return any(file.content in MERGING_MODES for file in record.staged_in(self.path))

    def committed_files(self, record: Journal) -> Set[str] | None:
        """Return the bare paths to keep of a committed batch; None if another writer may still merge the batch."""
        if not self.is_merged(record):
            return _paths_of(record.staged_in(self.path))
        marker = self.swept.marker
        if is_routed(self.swept.target) and (marker is None or later_journals(marker, [record])):
            return None
        return self._merged_paths()

    def _merged_paths(self) -> Set[str]:
        """Return the paths of files that this batch's merge added; all the table's paths if its snapshot expired."""
        table = self.swept.table
        for snapshot in reversed(table.metadata.snapshots):
            summary = snapshot.summary
            if summary and summary.get("frazil.commit-record") and _is_commit_of(summary, self.swept.stream, self.key):
                manifests = (m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id)
                entries = (entry for m in manifests for entry in m.fetch_manifest_entry(table.io))
                return {bare_path(e.data_file.file_path) for e in entries if e.snapshot_id == snapshot.snapshot_id}
        return self.swept.referenced_paths

    def uncommitted_files(self) -> Set[str]:
        """Return the bare paths to keep of an uncommitted batch. Only its dead letters may already be committed."""
        marker = self.swept.marker
        is_outside = marker is not None and marker.outcome_of(self.key) is BatchOutcome.NOT_COMMITTED
        return frozenset() if self.swept.target != "dead-letters" or is_outside else self.swept.referenced_paths


def _is_commit_of(summary: Summary, stream: str, key: BatchKey) -> bool:
    """Return whether a snapshot's summary names this batch. For a backfill, `stream` is its staging name."""
    commit_key = BatchKey(int(summary.get("frazil.epoch") or 0), int(summary.get("frazil.batch-id") or 0))
    backfill = staging_stream(summary.get("frazil.backfill-stream") or "", summary.get("frazil.backfill") or "")
    return (summary.get("frazil.stream"), commit_key) == (stream, key) or backfill == stream


def _delete_dead_journals(view: _SweepState, below_epoch: int) -> None:
    """Delete fenced writers' journals and closed keys, if their batches can no longer be committed."""
    dead = [
        key
        for key in view.keys
        if key.epoch < below_epoch
        and view.is_passed(key)
        and view.marker.outcome_of(key) is BatchOutcome.NOT_COMMITTED
        and view.entry(key) not in (UnusableJournal.FOREIGN, UnusableJournal.OTHER_TABLE)
    ]
    view.tables.journals.delete(dead)


def _was_swept_before(view: _SweepState, key: BatchKey) -> bool:
    """Return whether earlier sweeps covered a batch. An epoch's last two batches may get files later."""
    outcome, last = view.marker.outcome_of(key), view.marker.batches.get(key.epoch)
    return outcome is BatchOutcome.UNKNOWN or (
        outcome is BatchOutcome.COMMITTED and (last is None or key.batch < last - 1)
    )


def _paths_to_keep(view: _SweepState, folder: _BatchFolder, record: Journal | UnusableJournal) -> Set[str] | None:
    """Return the bare paths to keep in a batch's folder of one table; None to keep all."""
    if record is UnusableJournal.OTHER_TABLE:
        return None
    if view.marker.outcome_of(folder.key) is BatchOutcome.NOT_COMMITTED:
        return folder.uncommitted_files() if _ensure_closed(view, folder.key, record) else None
    if isinstance(record, Journal):
        return folder.committed_files(record)
    if is_routed(folder.swept.target):
        return None  # its files may wait
    if view.oldest is not None and folder.key < view.oldest:
        return None
    # Without a record, only the table shows the batch's files. After a take-over, the loaded table is up to date.
    return folder.swept.referenced_paths


def _ensure_closed(view: _SweepState, key: BatchKey, record: Journal | UnusableJournal) -> bool:
    """Return True if no writer can commit this batch any longer. Closes the key of a batch without a journal."""
    if view.is_passed(key):
        return True
    if record is UnusableJournal.ABSENT:
        return view.tables.journals.void_if_absent(key)
    return isinstance(record, UnusableJournal)


def sweep_batch(tables: StreamTables, journal: Journal, *, is_merged: bool = True) -> int:
    """Delete a committed batch's files of failed attempts, and its merged change files. Returns their number."""
    staged = _paths_of(journal.files)
    waiting = tables.waiting_folder(journal.key)
    deleted = _delete_others(tables.store, waiting, staged) if journal.routed else 0
    return deleted + _clean_folders(
        tables,
        {*tables.targets, *journal.routed},
        journal.key,
        lambda folder: folder.committed_files(journal) if is_merged else staged,
    )


def sweep_merged(tables: StreamTables, journals: Iterable[Journal], target: Target) -> None:
    """Delete merged change files of batches that had waited for a routed table. Never raises."""

    def step() -> None:
        swept = _SweptTable(tables, target)
        for journal in journals:
            folder = swept.folder(journal.key)
            if folder.is_merged(journal):
                folder.delete_others(folder.committed_files(journal))

    _attempt(tables, target, step, logging.INFO)


def discard_batch(tables: StreamTables, key: BatchKey) -> int:
    deleted = _delete_others(tables.store, tables.waiting_folder(key), frozenset())
    return deleted + _clean_folders(tables, tables.all, key, lambda _: frozenset())


def delete_fenced_batch(tables: StreamTables, key: BatchKey) -> int:
    """Delete a fenced writer's last batch if it can no longer be committed. Returns the number of files."""
    marker = tables.marker()
    if marker is None or marker.key.epoch <= key.epoch or marker.outcome_of(key) is not BatchOutcome.NOT_COMMITTED:
        return 0
    view = _SweepState(tables, marker, (key,))
    if not view.is_passed(key) and view.entry(key) is not UnusableJournal.VOID:
        return 0
    _delete_dead_journals(view, below_epoch=marker.key.epoch)
    tables.dead_letters.forget()
    deleted = _clean_folders(tables, tables.all, key, _BatchFolder.uncommitted_files)
    return deleted + _delete_others(tables.store, tables.waiting_folder(key), frozenset())


def _clean_folders(
    tables: StreamTables, targets: Iterable[Target], key: BatchKey, keep: Callable[[_BatchFolder], Set[str] | None]
) -> int:
    """Delete the files in a batch's folders of these tables, except those that `keep` returns for each folder."""
    deleted = 0
    for target in targets:
        # Without its table, a routed table's folder is unknown.
        swept = _attempt(tables, target, partial(_SweptTable, tables, target), logging.INFO)
        if swept:
            folder = swept.folder(key)
            deleted += folder.delete_others(keep(folder))
    return deleted


def batch_folder(table: Table, stream: str, key: BatchKey) -> str:
    return f"{data_location(table)}/{stream}/{key.epoch:08d}/{key.batch:08d}"


def batch_folders(
    store: ObjectStore, table: Table, stream: str, *, epochs: Container[int] = range(sys.maxsize)
) -> Iterable[tuple[BatchKey, str]]:
    for epoch_folder in store.list_folders(f"{data_location(table)}/{stream}"):
        epoch = epoch_folder.rstrip("/").rsplit("/", 1)[-1]
        for folder in store.list_folders(epoch_folder) if epoch.isdigit() and int(epoch) in epochs else ():
            batch = folder.rstrip("/").rsplit("/", 1)[-1]
            if batch.isdigit():
                yield BatchKey(int(epoch), int(batch)), folder


def _paths_of(files: Iterable[StagedFile]) -> set[str]:
    return {bare_path(f.path) for f in files}


def _delete_others(store: ObjectStore, folder: str, needed: Set[str]) -> int:
    waste = [f.path for f in store.list_files(folder) if bare_path(f.path) not in needed]
    store.delete(waste)
    return len(waste)


def referenced_paths(table: Table) -> set[str]:
    """Return the bare paths of all data files that any snapshot references. Reads every manifest once."""
    manifests = {m.manifest_path: m for snapshot in table.metadata.snapshots for m in snapshot.manifests(table.io)}
    entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(table.io))
    return {bare_path(entry.data_file.file_path) for entry in entries}
