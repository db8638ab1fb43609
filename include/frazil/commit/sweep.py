"""Deletes staged files that can never become part of a table.

A suspended writer may still write a journal, and a later epoch would commit the journal's files. Files are therefore
deleted only after the batch's key is closed (`JournalStore.void`), or a later batch is committed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Protocol, TypeVar

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Summary

from frazil.commit.backfill_records import staging_stream
from frazil.commit.compare_and_swap import TableHandle
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

A = TypeVar("A")

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
    view = _SweepState(tables, marker, tables.journals.keys() if keys is None else keys)
    _delete_dead_journals(view, below_epoch)
    # Only the default table and the journals decide whether a routed table's file is needed.
    return _sweep_tables(view, [*_swept_tables(tables)], below_epoch)


def _swept_tables(tables: StreamTables) -> Iterator[_SweptTable]:
    for target, handle in tables.all.items():
        if not is_routed(target):
            yield _SweptTable(target, handle.refresh(), tables.stream)
        elif table := _try_load(target, handle):
            yield _SweptTable(target, table, tables.stream)


def _try_load(target: Target, handle: TableHandle) -> Table | None:
    try:
        return handle.current()
    except Exception as error:  # catalogs' clients raise anything, and the other tables must continue
        log.info("cannot clean up the folders of table %s; the next start tries again: %s", target, error_text(error))
        return None


def sweep_routed(tables: StreamTables, *, below_epoch: int) -> int:
    """Sweep the routed tables in parallel, right after `settle`. Returns the number of deleted files."""
    marker = tables.marker()
    if marker is None or not tables.routed:
        return 0
    view = _SweepState(tables, marker, tables.journals.keys())

    def attempt(target: Target, step: Callable[[], A]) -> A | None:
        try:
            return step()
        except NoSuchTableError:
            log.warning(
                "table %s was dropped or renamed, so failed batches leave files in its folder: see `frazil route %s`",
                target,
                tables.stream,
            )
        except Exception as error:  # catalogs' clients raise anything, and the other tables must continue
            log.warning(
                "cannot delete files of failed batches of table %s; the next start tries again: %s",
                target,
                error_text(error),
            )
        return None

    def load(target: Target) -> _SweptTable:
        return _SweptTable(target, tables.handle(target).current(), tables.stream)

    loaded = run_in_parallel(lambda target: attempt(target, partial(load, target)), sorted(tables.routed))
    return _sweep_tables(view, [table for table in loaded if table], below_epoch, attempt)


class _Attempt(Protocol):
    def __call__(self, target: Target, step: Callable[[], A], /) -> A | None:
        """Run a step for one table. Returns None if the step failed but the other tables' steps can continue."""


def _sweep_tables(
    view: _SweepState, tables: Sequence[_SweptTable], below_epoch: int, attempt: _Attempt = lambda _, step: step()
) -> int:
    """Sweep batch after batch, because a journal has the files of all tables and is then read once."""
    listed = run_in_parallel(lambda t: attempt(t.target, lambda: [*_unswept_folders(view, t, below_epoch)]), tables)
    folders: dict[BatchKey, list[tuple[_SweptTable, str]]] = {}
    for table, found in zip(tables, listed, strict=True):
        for key, folder in found or ():
            folders.setdefault(key, []).append((table, folder))
    deleted = 0
    for key, swept in sorted(folders.items(), key=itemgetter(0)):
        record = view.entry(key)
        steps = [(table.target, partial(_sweep_folder, view, table, key, record, folder)) for table, folder in swept]
        deleted += sum(run_in_parallel(lambda step: attempt(*step) or 0, steps))
    return deleted


def _unswept_folders(view: _SweepState, swept: _SweptTable, below_epoch: int) -> Iterator[tuple[BatchKey, str]]:
    store, first = view.tables.store_of(swept.target), max(0, below_epoch - MAX_SWEPT_EPOCHS)
    for key, folder in batch_folders(store, swept.table, view.tables.stream, epochs=range(first, below_epoch)):
        if not _was_swept_before(view, key):
            yield key, folder


def _sweep_folder(
    view: _SweepState, swept: _SweptTable, key: BatchKey, record: Journal | UnusableJournal, folder: str
) -> int:
    kept = _paths_to_keep(view, swept, key, record, folder)
    return 0 if kept is None else _delete_others(view.tables.store_of(swept.target), folder, kept)


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


@dataclass
class _SweptTable:
    target: Target
    table: Table
    stream: str

    @cached_property
    def referenced_paths(self) -> Set[str]:
        return referenced_paths(self.table)

    @cached_property
    def marker(self) -> Marker | None:
        return read_marker(self.table.metadata.properties, self.stream)

    def merged_paths(self, key: BatchKey) -> Set[str]:
        """Return the paths of files that this batch's merge added; all the table's paths if its snapshot expired."""
        for snapshot in reversed(self.table.metadata.snapshots):
            summary = snapshot.summary
            if summary and summary.get("frazil.commit-record") and _is_commit_of(summary, self.stream, key):
                manifests = (
                    m for m in snapshot.manifests(self.table.io) if m.added_snapshot_id == snapshot.snapshot_id
                )
                entries = (entry for m in manifests for entry in m.fetch_manifest_entry(self.table.io))
                return {bare_path(e.data_file.file_path) for e in entries if e.snapshot_id == snapshot.snapshot_id}
        return self.referenced_paths


def _is_commit_of(summary: Summary, stream: str, key: BatchKey) -> bool:
    """Return whether a snapshot's summary names this batch. For a backfill, `stream` is its staging name."""
    found = BatchKey(int(summary.get("frazil.epoch") or 0), int(summary.get("frazil.batch-id") or 0))
    backfill = staging_stream(summary.get("frazil.backfill-stream") or "", summary.get("frazil.backfill") or "")
    return (summary.get("frazil.stream"), found) == (stream, key) or backfill == stream


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


def _paths_to_keep(
    view: _SweepState, swept: _SweptTable, key: BatchKey, record: Journal | UnusableJournal, folder: str
) -> Set[str] | None:
    """Return the bare paths to keep in a batch's folder of one table; None to keep all."""
    outcome = view.marker.outcome_of(key)
    if record is UnusableJournal.OTHER_TABLE:
        return None
    if outcome is BatchOutcome.NOT_COMMITTED:
        return _paths_without_batch(swept, key) if _ensure_closed(view, key, record) else None
    if isinstance(record, Journal):
        return _committed_files_to_keep(record, swept, folder)
    if is_routed(swept.target):
        return None  # its files may wait
    if view.oldest is not None and key < view.oldest:
        return None
    # Without a record, only the table shows the batch's files. After a take-over, the loaded table is up to date.
    return swept.referenced_paths


def _committed_files_to_keep(record: Journal, swept: _SweptTable, folder: str) -> Set[str] | None:
    """Return the bare paths of a committed batch's files to keep; None if another writer may still merge the batch."""
    if not _is_merged(record, folder):
        return _paths_of(record.staged_in(folder))
    if is_routed(swept.target) and (swept.marker is None or later_journals(swept.marker, [record])):
        return None
    return swept.merged_paths(record.key)


def _ensure_closed(view: _SweepState, key: BatchKey, record: Journal | UnusableJournal) -> bool:
    """Return True if no writer can commit this batch any longer. Closes the key of a batch without a journal."""
    if view.is_passed(key):
        return True
    if record is UnusableJournal.ABSENT:
        return view.tables.journals.void_if_absent(key)
    return isinstance(record, UnusableJournal)


def _paths_without_batch(swept: _SweptTable, key: BatchKey) -> Set[str]:
    """Return the paths to keep of an uncommitted batch. Only its dead letters may already be committed."""
    if swept.target != "dead-letters" or (
        swept.marker is not None and swept.marker.outcome_of(key) is BatchOutcome.NOT_COMMITTED
    ):
        return frozenset()
    return swept.referenced_paths


def sweep_batch(tables: StreamTables, journal: Journal, *, is_merged: bool = True) -> int:
    """Delete a committed batch's files of failed attempts, and its merged change files. Returns their number."""
    handles = {**tables.targets, **{target: tables.handle(target) for target in journal.routed}}
    return _sweep_folders(tables, handles, journal.key, record=journal, is_merged=is_merged)


def sweep_merged(tables: StreamTables, journals: Iterable[Journal], target: Target) -> None:
    """Delete merged change files of batches that had waited for a table. Never raises."""
    try:
        swept, store = _SweptTable(target, tables.handle(target).current(), tables.stream), tables.store_of(target)
        for journal in journals:
            folder = batch_folder(swept.table, tables.stream, journal.key)
            if _is_merged(journal, folder) and (kept := _committed_files_to_keep(journal, swept, folder)) is not None:
                _delete_others(store, folder, kept)
    except Exception as error:  # storages raise anything, and the rows are where they belong
        log.info(
            "cannot delete merged change files of table %s; the next start tries again: %s", target, error_text(error)
        )


def discard_batch(tables: StreamTables, key: BatchKey) -> int:
    return _sweep_folders(tables, tables.all, key, record=None, is_merged=False)


def delete_fenced_batch(tables: StreamTables, key: BatchKey) -> int:
    """Delete a fenced writer's last batch if it can no longer be committed. Returns the number of files."""
    marker = tables.marker()
    if marker is None or marker.at.epoch <= key.epoch or marker.outcome_of(key) is not BatchOutcome.NOT_COMMITTED:
        return 0
    view = _SweepState(tables, marker, (key,))
    if not view.is_passed(key) and view.entry(key) is not UnusableJournal.VOID:
        return 0
    _delete_dead_journals(view, below_epoch=marker.at.epoch)
    deleted = 0
    for swept in _swept_tables(tables):
        kept = _paths_without_batch(swept, key)
        deleted += _delete_others(tables.store_of(swept.target), batch_folder(swept.table, tables.stream, key), kept)
    return deleted + _delete_others(tables.store, tables.waiting_folder(key), frozenset())


def _sweep_folders(
    tables: StreamTables,
    handles: Mapping[Target, TableHandle],
    key: BatchKey,
    *,
    record: Journal | None,
    is_merged: bool,
) -> int:
    deleted = 0
    files: Set[str] = _paths_of(record.files) if record else frozenset()
    if record is None or record.routed:  # only rows of routed tables wait in files
        deleted = _delete_others(tables.store, tables.waiting_folder(key), files)
    for target, handle in handles.items():
        table = _try_load(target, handle) if is_routed(target) else handle.current()
        if table is not None:
            swept, folder = _SweptTable(target, table, tables.stream), batch_folder(table, tables.stream, key)
            kept = _committed_files_to_keep(record, swept, folder) if record and is_merged else files
            if kept is not None:
                deleted += _delete_others(tables.store_of(target), folder, kept)
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


def _is_merged(record: Journal, folder: str) -> bool:
    """Return whether a batch's files in the folder are merged into its table, which then has few of them."""
    return any(file.content in MERGING_MODES for file in record.staged_in(folder))


def _paths_of(files: Iterable[StagedFile]) -> set[str]:
    return {bare_path(f.path) for f in files}


def _delete_others(store: ObjectStore, folder: str, kept: Set[str]) -> int:
    waste = [f.path for f in store.list_files(folder) if bare_path(f.path) not in kept]
    store.delete(waste)
    return len(waste)


def referenced_paths(table: Table) -> set[str]:
    """Return the bare paths of all data files that any snapshot references. Reads every manifest once."""
    manifests = {m.manifest_path: m for snapshot in table.metadata.snapshots for m in snapshot.manifests(table.io)}
    entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(table.io))
    return {bare_path(entry.data_file.file_path) for entry in entries}
