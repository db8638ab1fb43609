"""Folds the small files that a writer appends, so that queries of an open partition read few files.

A thread writes the rows of several files again as one file. Between two batches, the writer then replaces these files
with one commit. Maintenance rewrites all other files, such as files of an earlier process.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from frazil.commit.compare_and_swap import TableHandle
from frazil.commit.history import FOLD_OPERATION
from frazil.commit.manifest_lists import live_manifests
from frazil.commit.manifest_writing import (
    ManifestLayout,
    NewManifest,
    WrittenEntries,
    metadata_folder,
    recently_written,
    write_merged,
)
from frazil.commit.snapshot import BaseManifests, SnapshotWriter, to_data_file
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.writer_expiry import has_ended, start_thread
from frazil.ingest.contract import PartitionKey, StagedFile
from frazil.merge.table_files import rewrite_files
from frazil.spec.maintenance import Compaction
from frazil.table.branches import head_of
from frazil.table.storage import open_store
from frazil.table.tables import data_location

log = logging.getLogger(__name__)

FOLDED_FOLDER = "folded"
MAX_FOLDED_BYTES = 4 * 2**20
"""Maximum size of a file that is folded. With larger files, reading the rows costs much more than opening the file."""
MAX_WAITING_FILES = 4_096
"""Maximum number of files that wait for more files of their partition. Above it, the oldest files are not folded."""
MAX_FOLD_AGE_MS = 1_800_000
"""Maximum age of new files that wait for the next batch. The orphan cleanup may delete files that are an hour old."""

Tier = tuple[int, int, int, PartitionKey]
"""Files that are folded together: how often they were folded, their schema and spec ids, and their partition."""


@dataclass(frozen=True, slots=True)
class _Fold:
    tier: Tier
    files: tuple[StagedFile, ...]
    made: tuple[StagedFile, ...]
    began_ms: int
    """Time before the first new file was made, in ms since 1970."""


@dataclass(slots=True)
class WriterFolding:
    """Rewrites `fan_in` small files of a partition as one, and `fan_in` of the results as a larger one.

    Does not change tables with deletes, or of format version 3, whose rows have ids.
    """

    stream: str
    handle: TableHandle
    fan_in: int
    clock_ms: Callable[[], int]
    start: Callable[[Callable[[], None]], threading.Thread | None] = lambda work: start_thread(work, "folding")
    _waiting: dict[Tier, list[StagedFile]] = field(default_factory=dict)
    _rewritten: _Fold | None = None
    _running: threading.Thread | None = None

    @classmethod
    def open(cls, settings: Compaction, tables: StreamTables) -> WriterFolding | None:
        if not (settings.enabled and settings.fold_files) or tables.merging is not None or tables.align is not None:
            return None
        return cls(tables.stream, tables.main, settings.fold_files, tables.clock_ms)

    def continue_after(self, files: Iterable[StagedFile]) -> None:
        """Commit a finished fold, and start the next one in the thread, if due. Call this after a commit of `files`."""
        for file in files:
            self._add(file, level=0)
        if self._running and self._running.is_alive():
            return
        try:
            self._continue()
        except Exception as error:  # catalogs and storages raise anything, and batches must continue
            log.warning("cannot fold files of table %s: %r", self.handle.identifier, error)

    def _continue(self) -> None:
        fold, self._rewritten = self._rewritten, None
        if fold is not None:
            self._commit(fold)
        full = next((tier for tier, tier_files in self._waiting.items() if len(tier_files) >= self.fan_in), None)
        if full is not None:
            waiting, table = self._waiting.pop(full), self.handle.current()
            # Only files in manifests whose entries are in memory can be replaced.
            manifests = live_manifests(head_of(table.metadata), table.io)
            written = filter(None, (recently_written.get(manifest.manifest_path) for manifest in manifests))
            recent_paths = {entry.data_file.file_path for remembered in written for entry in remembered.entries}
            tier_files = tuple(file for file in waiting if file.path in recent_paths)
            if len(tier_files) >= self.fan_in and _can_fold(table, full):
                self._running = self.start(lambda: self._rewrite(table, full, tier_files))

    def end(self) -> None:
        """Wait for the thread, up to a timeout. The orphan cleanup deletes files that were not committed."""
        has_ended(self._running)

    def _add(self, file: StagedFile, *, level: int) -> None:
        if file.content == "data" and file.bytes <= MAX_FOLDED_BYTES:
            tier = (level, file.schema_id, file.spec_id, file.partition)
            self._waiting.setdefault(tier, []).append(file)
            while sum(map(len, self._waiting.values())) > MAX_WAITING_FILES:
                self._waiting.pop(next(iter(self._waiting)))

    def _rewrite(self, table: Table, tier: Tier, files: tuple[StagedFile, ...]) -> None:
        began_ms = self.clock_ms()
        try:
            folder = f"{data_location(table)}/{FOLDED_FOLDER}/{self.stream}"
            files_written = rewrite_files(target_table(table, folder=folder), [file.path for file in files])
            # They must survive a loss of power, as the files that they replace do.
            open_store(folder, table.io.properties).sync_files([file.path for file in files_written])
        except Exception as error:  # storages raise anything, and maintenance compacts what is left
            log.warning("cannot fold %d files of table %s: %r", len(files), self.handle.identifier, error)
            return
        self._rewritten = _Fold(tier, files, files_written, began_ms)

    def _commit(self, fold: _Fold) -> None:
        """Replace the files in one attempt. If another commit came first, that commit wins."""
        table, name = self.handle.current(), self.handle.identifier
        if self.clock_ms() - fold.began_ms > MAX_FOLD_AGE_MS:
            log.info("%d files of table %s were not folded: the next batch came too late", len(fold.files), name)
            self._delete(fold.made, table)
            return
        replacement = prepare_replacement(table, fold.files, fold.made) if _can_fold(table, fold.tier) else None
        if replacement is None:
            log.info("%d files of table %s were not folded: another program changed them", len(fold.files), name)
            self._delete(fold.made, table)
            return
        writer = replacement.writer
        try:
            prepared = writer.prepare(table, summary={"frazil.operation": FOLD_OPERATION}, now_ms=self.clock_ms())
            self.handle.commit(table, requirements=prepared.requirements, updates=prepared.updates)
        except CommitFailedException as error:
            # A client that repeats a request, such as AWS's, reports a conflict with its own first request.
            if self.handle.refresh().metadata.snapshot_by_id(prepared.snapshot.snapshot_id) is not None:
                self._add_made(fold, replacement)
                return
            log.info("%d files of table %s were not folded: %s", len(fold.files), name, error)
            self._delete(fold.made, table, writer)
            _forget(replacement.added)
        except Exception as error:  # it may have landed, so that nothing is deleted
            log.warning("the outcome of folding %d files of table %s is unknown: %r", len(fold.files), name, error)
        else:
            self._add_made(fold, replacement)

    def _add_made(self, fold: _Fold, replacement: Replacement) -> None:
        _forget(replacement.removed)
        log.info("folded %d files of table %s into %d", len(fold.files), self.handle.identifier, len(fold.made))
        for file in fold.made:
            self._add(file, level=fold.tier[0] + 1)

    def _delete(self, files: Sequence[StagedFile], table: Table, writer: SnapshotWriter | None = None) -> None:
        try:
            open_store(table.location(), table.io.properties).delete([file.path for file in files])
            if writer is not None:
                writer.delete_unused(self.handle.current())
        except Exception as error:
            log.info("cannot delete files of a fold that failed; the orphan cleanup deletes them: %r", error)


def _forget(manifests: Collection[str]) -> None:
    for path in manifests:
        recently_written.forget(path)


def _can_fold(table: Table, tier: Tier) -> bool:
    metadata, (_, schema_id, spec_id, _) = table.metadata, tier
    is_current = (schema_id, spec_id) == (metadata.current_schema_id, metadata.default_spec_id)
    # A summary need not count delete files.
    has_deletes = any(m.content is ManifestContent.DELETES for m in live_manifests(head_of(metadata), table.io))
    return is_current and metadata.format_version == 2 and not has_deletes


@dataclass(frozen=True, slots=True)
class Replacement:
    """A snapshot of main that has the rows of some files in other files."""

    writer: SnapshotWriter
    removed: Collection[str]
    """The paths of the manifests that the snapshot rewrites."""
    added: Collection[str]
    """The paths of the new manifests."""


def prepare_replacement(table: Table, files: Sequence[StagedFile], added: Sequence[StagedFile]) -> Replacement | None:
    """Return main's snapshot with `files` replaced by `added`, which have the same rows.

    Returns None unless this process wrote all manifests of these files, and still has the manifests' entries in memory.
    """
    metadata = table.metadata
    head, folded = head_of(metadata), {file.path for file in files}
    manifests = live_manifests(head, table.io)
    groups = defaultdict[object, dict[ManifestFile, WrittenEntries]](dict)
    paths = set[str]()
    for manifest in manifests:
        written = recently_written.get(manifest.manifest_path)
        listed = folded.intersection(entry.data_file.file_path for entry in written.entries) if written else ()
        if written and listed:
            groups[manifest.partition_spec_id, written.copied.kind][manifest] = written
            paths.update(listed)
    if paths != folded or head is None:
        return None
    snapshot_id, folder = metadata.new_snapshot_id(), metadata_folder(metadata)
    rewritten = [
        write_merged(group, NewManifest(f"{folder}/{uuid.uuid4()}-m0.avro", table, snapshot_id), removed=folded)
        for group in groups.values()
    ]
    replaced = {manifest.manifest_path for group in groups.values() for manifest in group}
    stays = [*rewritten, *(manifest for manifest in manifests if manifest.manifest_path not in replaced)]
    layout = ManifestLayout.for_staged_file(files[0], metadata)
    leaving = [to_data_file(file, spec=layout.spec, schema=layout.schema) for file in files]
    base = BaseManifests(stays, leaving, head.summary, rewritten)
    writer = SnapshotWriter(added, base=base, snapshot_id=snapshot_id, operation=Operation.REPLACE)
    return Replacement(writer, replaced, [manifest.manifest_path for manifest in rewritten])
