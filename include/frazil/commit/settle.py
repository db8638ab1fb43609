"""What a new epoch does with the traces of earlier ones: commit their last journal, or discard it with its files.

Runs only after the take-over has landed in both tables: from then on no earlier epoch can commit a file that is
deleted here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial

from pyiceberg.table import Table

from frazil.commit.committer import Committer, StreamTables
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, read_marker
from frazil.errors import StaleBatch
from frazil.table.storage import ObjectStore
from frazil.table.tables import data_location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of the journals of earlier epochs."""

    committed: tuple[BatchKey, ...] = ()
    discarded: tuple[BatchKey, ...] = ()
    deleted_files: int = 0


def settle(tables: StreamTables, committer: Committer, store: ObjectStore) -> Settled:
    """Commit each journal that continues the marker, without reading Kafka or writing Parquet; discard the others."""
    marker = tables.marker()
    if marker is None:
        return Settled()
    uuid = str(tables.main.current().metadata.table_uuid)
    committed: list[BatchKey] = []
    discarded: list[BatchKey] = []
    for journal in tables.journals.after(marker.settled, table_uuid=uuid, stream=tables.stream):
        if journal.key.epoch >= committer.epoch:
            continue
        try:
            committer.commit(journal)
            committed.append(journal.key)
            log.info("batch %s of an earlier epoch was committed from its journal", journal.key)
        except StaleBatch as reason:
            discarded.append(journal.key)
            log.info("discarded: %s", reason)
    tables.journals.delete(discarded)
    deleted = sweep(tables, store, below_epoch=committer.epoch)
    return Settled(tuple(committed), tuple(discarded), deleted)


def sweep(tables: StreamTables, store: ObjectStore, *, below_epoch: int) -> int:
    """Delete staged files of earlier epochs that never became part of the tables; the number deleted.

    Folders older than the oldest commit record were swept while their records stood, and are left alone.
    """
    keys = tables.journals.keys()
    deleted = 0
    for handle in (tables.main, tables.dead_letters):
        table = handle.refresh()
        marker = read_marker(table.metadata.properties, tables.stream)
        references = cache(partial(referenced, table))
        for key, folder in batch_folders(store, table, tables.stream):
            if key.epoch >= below_epoch or (keys and key < keys[0]):
                continue
            record = tables.journals.get(key)
            never_committed = marker is not None and marker.settled is not None and key > marker.settled
            # Without a record, and not provably uncommitted, only the table itself can tell.
            kept = _files_of(record) if record or never_committed else references()
            deleted += _delete_others(store, folder, kept)
    return deleted


def sweep_batch(tables: StreamTables, store: ObjectStore, journal: Journal) -> int:
    """Delete what failed attempts of a committed batch left in its folders; the number deleted."""
    return sum(
        _delete_others(store, batch_folder(handle.current(), journal.stream, journal.key), _files_of(journal))
        for handle in (tables.main, tables.dead_letters)
    )


def batch_folder(table: Table, stream: str, key: BatchKey) -> str:
    """Where a batch stages its files of one table."""
    return f"{data_location(table)}/{stream}/{key.epoch:08d}/{key.batch:08d}"


def batch_folders(store: ObjectStore, table: Table, stream: str) -> Iterable[tuple[BatchKey, str]]:
    """Every batch folder of a stream under a table's data location."""
    for epoch_folder in store.list_folders(f"{data_location(table)}/{stream}"):
        epoch = epoch_folder.rstrip("/").rsplit("/", 1)[-1]
        for folder in store.list_folders(epoch_folder) if epoch.isdigit() else ():
            batch = folder.rstrip("/").rsplit("/", 1)[-1]
            if batch.isdigit():
                yield BatchKey(int(epoch), int(batch)), folder


def _files_of(record: Journal | None) -> set[str]:
    return {bare_path(f.path) for f in record.files} if record else set()


def _delete_others(store: ObjectStore, folder: str, kept: set[str]) -> int:
    waste = [f.path for f in store.list_files(folder) if bare_path(f.path) not in kept]
    store.delete(waste)
    return len(waste)


def referenced(table: Table) -> set[str]:
    """Bare paths of all data files that any snapshot of the table references: reads every manifest once."""
    seen: set[str] = set()
    paths: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                paths |= {bare_path(e.data_file.file_path) for e in manifest.fetch_manifest_entry(table.io)}
    return paths


def bare_path(path: str) -> str:
    """A path without `file://`: the same local file is written both ways."""
    return path.removeprefix("file://")


def highest_epoch(tables: StreamTables, store: ObjectStore) -> int:
    """The highest epoch that ever staged a file for the stream; 0 for none. Epochs are never used twice."""
    folders = [
        folder.rstrip("/").rsplit("/", 1)[-1]
        for handle in (tables.main, tables.dead_letters)
        for folder in store.list_folders(f"{data_location(handle.current())}/{tables.stream}")
    ]
    return max((int(name) for name in folders if name.isdigit()), default=0)
