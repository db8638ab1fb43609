"""Deletes orphan files below a table's folders. `frazil.maintenance.orphans` explains why this is safe."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.errors import MarkerUnreadable
from frazil.maintenance.measure import load_maintained
from frazil.maintenance.orphan_references import (
    Resolver,
    find_apart_metadata,
    find_foreign_metadata,
    find_undecided_manifests,
    load_all_tables,
    read_new_references,
    read_references,
    table_folders,
)
from frazil.maintenance.orphans import (
    Evaluation,
    ListedFile,
    OrphanMemory,
    OrphanRun,
    Progress,
    References,
    StorePath,
    TableFolders,
    UndecidedFiles,
    classify_files,
    find_deletable,
    find_shared_folder,
    listing_problem,
    select_own_files,
)
from frazil.maintenance.outcomes import MAINTENANCE_FOLDER, ORPHAN_CLEANUP, Ending, PastOutcome, store_outcomes
from frazil.maintenance.tables import MaintainedTable
from frazil.spec.maintenance import Orphans
from frazil.spec.units import format_count
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.lost_tables import absent_table_error
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store
from frazil.table.tables import may_delete_files, state_location

log = logging.getLogger(__name__)

FILES_PER_DELETION = 1_000
"""Number of files deleted before the table is loaded again."""
MAX_READ_ATTEMPTS = 3
"""Maximum number of attempts to read metadata during an expiry."""
MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """A cleanup's result. Each listed file is referenced, registered, young or a candidate."""

    table: str
    dry_run: bool
    listed: int = 0
    referenced: int = 0
    registered: int = 0
    """Files that a writer or a backfill may still commit."""
    young: int = 0
    candidates: int = 0
    """Orphans that are old enough to be deleted."""
    candidate_bytes: int = 0
    waiting: int = 0
    """Candidates that are kept for a later run."""
    deleted: int = 0
    deleted_bytes: int = 0
    examples: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def sentence(self) -> str:
        counts = (
            f"{format_count(self.listed, 'file')} listed: {self.referenced:,} referenced, {self.registered:,} that may "
            f"still be committed, {self.young:,} too young, {format_count(self.candidates, 'orphan')} of "
            f"{self.candidate_bytes:,} bytes"
        )
        deletions = f"{self.deleted:,} deleted ({self.deleted_bytes:,} bytes)"
        if self.refused:
            return f"{self.table}: {'stopped' if self.deleted else 'refused'}: {self.refused}. {counts}; {deletions}"
        waiting_text = f"; {self.waiting:,} wait for a run at least an hour later, after the table's next commit"
        return f"{self.table}: {counts}; {deletions}{waiting_text if self.waiting else ''}"


class _CleanupRefused(Exception):
    """No file may be deleted; the message is the reason."""


def clean_orphans(
    catalog: Catalog,
    table: MaintainedTable,
    *,
    now_ms: int,
    dry_run: bool = False,
    neighbours: Sequence[TableFolders] | None = None,
) -> OrphanReport:
    """Delete the orphan files that an earlier run also found. A dry run changes nothing.

    `neighbours` is a result of `load_all_folders`. It may be an hour old, because files that other tables got since
    are too young to be deleted. Raises SpecError if the table does not exist, TableLost if only its files exist,
    NotMadeByRoute, and any error before the first deletion.
    """
    report = OrphanReport(table.identifier, dry_run)
    with translate_catalog_errors(catalog.name):
        try:
            loaded = load_maintained(catalog, table)
        except NoSuchTableError as error:
            raise absent_table_error(table.identifier, table.streams) from error
    cleanup = _Cleanup(catalog, table.settings.orphans, loaded, now_ms, neighbours)
    try:
        report = cleanup.run(report)
    except _CleanupRefused as refusal:
        report = replace(report, refused=str(refusal))
    log.log(logging.WARNING if report.refused else logging.INFO, "%s", report.sentence)
    if not dry_run:
        ending = Ending.REFUSED if report.refused else Ending.DONE
        numbers = {"files-removed": report.deleted, "bytes": report.deleted_bytes}
        outcome = PastOutcome(now_ms, ORPHAN_CLEANUP, ending, report.refused or report.sentence, numbers)
        store_outcomes(loaded, [outcome], now_ms=now_ms)
    return report


def load_all_folders(catalog: Catalog, resolve: Resolver | None = None) -> list[TableFolders]:
    """Load all tables in the catalog, and return their folders."""
    resolve = resolve or Resolver()
    with translate_catalog_errors(catalog.name):
        return [table_folders(table, resolve) for table in load_all_tables(catalog)]


@dataclass(slots=True)
class _Cleanup:
    catalog: Catalog
    settings: Orphans
    before: Table
    now_ms: int
    neighbours: Sequence[TableFolders] | None = None
    resolve: Resolver = field(default_factory=Resolver)

    def run(self, report: OrphanReport) -> OrphanReport:
        folder = state_location(self.before, MAINTENANCE_FOLDER)
        store, path = self._store(folder), f"{folder}/orphans.json.gz"
        _check_own_files(self.before)
        if not report.dry_run:
            if not self.settings.enabled:
                raise _CleanupRefused("maintenance.orphans is off for this table")
            self._check_clock(store, path)
        memory = OrphanMemory.read(store.get(path), table_uuid=str(self.before.metadata.table_uuid))
        table, references, evaluation = self._evaluate()
        report = replace(
            report,
            listed=evaluation.listed,
            referenced=evaluation.referenced,
            registered=evaluation.registered,
            young=evaluation.young,
            candidates=len(evaluation.candidates),
            candidate_bytes=evaluation.candidate_bytes,
            examples=tuple(file.info.path for file in evaluation.candidates[:MAX_EXAMPLES]),
        )
        if evaluation.refused:
            return replace(report, refused=evaluation.refused)
        progress = Progress.of(table.metadata)
        ready = find_deletable(evaluation.candidates, memory.runs, now_ms=self.now_ms, progress=progress)
        if report.dry_run:
            return replace(report, waiting=report.candidates - len(ready))
        deleted, stop_reason = self._delete(ready, references)
        remaining = {file.info.path for file in evaluation.candidates}.difference(file.info.path for file in deleted)
        store.put(path, memory.after(OrphanRun(self.now_ms, progress, tuple(remaining))).to_bytes())
        size = sum(file.info.bytes for file in deleted)
        return replace(report, deleted=len(deleted), deleted_bytes=size, waiting=len(remaining), refused=stop_reason)

    def _evaluate(self) -> tuple[Table, References, Evaluation]:
        """Return the table (loaded after the listing), its references, and the classified files."""
        other_folders, roots = self._load_other_folders(), self._find_roots()
        listing = self._list_files(roots)
        table, references = self._load_references()
        if lost := listing_problem({file.resolved.path for file in listing}, references, roots):
            raise _CleanupRefused(lost)
        files = select_own_files(listing, roots=roots, other_folders=other_folders)
        if apart := find_apart_metadata(files, table, self.resolve):
            raise _CleanupRefused(
                f"another table's files are in this table's folder: {apart}. Move one of the tables, or declare "
                f"`maintenance: {{orphans: off}}`"
            )
        undecided = _read_undecided(table)
        evaluation = classify_files(files, references, undecided, settings=self.settings, now_ms=self.now_ms)
        if foreign := find_foreign_metadata(evaluation.candidates, table):
            raise _CleanupRefused(
                f"{foreign} is the metadata of another table in the same folder: if that table was dropped, delete its "
                "metadata yourself"
            )
        return table, references, evaluation.without(find_undecided_manifests(evaluation.candidates, table, undecided))

    def _store(self, location: str) -> ObjectStore:
        return open_store(location, self.before.io.properties)

    def _check_clock(self, store: ObjectStore, path: str) -> None:
        """Refuse to delete if this host's clock differs too much from the storage's. Writes one object."""
        store.put(path, store.get(path) or OrphanMemory(str(self.before.metadata.table_uuid)).to_bytes())
        folder = path.rsplit("/", 1)[0]
        at_ms = next(file.modified_ms for file in store.list_files(folder) if file.path == path)
        off = timedelta(milliseconds=abs(self.now_ms - at_ms))
        if off > self.settings.older_than / 3:
            raise _CleanupRefused(
                f"this host's clock differs by {off} from the storage's clock, so file ages are unknown. Set the clock"
            )

    def _load_other_folders(self) -> list[TableFolders]:
        """Return all other tables' folders. Refuses the cleanup if one is shared with this table."""
        name = ".".join(self.before.name())
        other_folders = load_all_folders(self.catalog, self.resolve) if self.neighbours is None else self.neighbours
        other_folders = [folders for folders in other_folders if folders.identifier != name]
        if shared := find_shared_folder(table_folders(self.before, self.resolve), other_folders):
            raise _CleanupRefused(f"{shared}, so the owner of its files is unknown")
        return other_folders

    def _find_roots(self) -> dict[StorePath, str]:
        """Return the folders to list: the table's location, and data and metadata folders elsewhere."""
        folders, properties = table_folders(self.before, self.resolve), self.before.properties
        roots = {folders.location: self.before.location()}
        for name, folder in (("write.data.path", folders.data), ("write.metadata.path", folders.metadata)):
            if not any(folder.is_inside(root) for root in roots):
                roots[folder] = properties[name]
        return roots

    def _list_files(self, roots: dict[StorePath, str]) -> list[ListedFile]:
        """List the files in these folders. Refuses the cleanup if there are more than `max-listed`."""
        listing: list[ListedFile] = []
        for root in roots.values():
            listing += [ListedFile(file, self.resolve(file.path)) for file in self._store(root).list_files(root)]
            if len(listing) > self.settings.max_listed:
                raise _CleanupRefused(
                    f"{len(listing):,} files are listed, more than max-listed {self.settings.max_listed:,}: declare "
                    "a larger maintenance.orphans.max-listed if the table is that large"
                )
        return listing

    def _load_references(self) -> tuple[Table, References]:
        """Load the table, and return it with the files that it references. Call this after the listing."""
        for _ in range(MAX_READ_ATTEMPTS):
            table = self._reload()
            try:
                references = read_references(table, self.resolve, loaded=self.before)
            except FileNotFoundError as error:
                log.info("%s: a snapshot expired while it was read, reading again: %s", table.name(), error)
                continue
            if references.live:
                return table, references
        raise _CleanupRefused("snapshots expired while the table was read: the next run tries again")

    def _reload(self) -> Table:
        """Load the table again. Refuses the cleanup if it was recreated."""
        with translate_catalog_errors(self.catalog.name):
            table = self.catalog.load_table(self.before.name())
        if table.metadata.table_uuid != self.before.metadata.table_uuid:
            raise _CleanupRefused("the table was recreated during the cleanup")
        _check_own_files(table)
        return table

    def _delete(self, ready: Sequence[ListedFile], references: References) -> tuple[list[ListedFile], str | None]:
        """Delete the files in batches, between reloads. Return the deleted files, and any reason why the deletion
        stopped.
        """
        deleted_files: list[ListedFile] = []
        for _, group in groupby(ready, key=lambda file: file.resolved.store):
            files = list(group)
            for batch in (
                files[start : start + FILES_PER_DELETION] for start in range(0, len(files), FILES_PER_DELETION)
            ):
                try:
                    table = self._reload()
                    needed, undecided = read_new_references(table, references, self.resolve), _read_undecided(table)
                    waste = [f for f in batch if f.resolved.path not in needed and not undecided.holds(f.resolved.path)]
                    failed = self._store(batch[0].info.path).delete_each(f.info.path for f in waste)
                except Exception as error:  # catalogs and storages raise anything
                    return deleted_files, _error_text(error)
                deleted = [file for file in waste if file.info.path not in failed]
                log.debug("deleted orphans: %s", [file.info.path for file in deleted])
                deleted_files += deleted
                if failed:
                    more_text = f", and {len(failed) - 1} more files" if len(failed) > 1 else ""
                    return deleted_files, f"{_error_text(next(iter(failed.values())))}{more_text}"
        return deleted_files, None


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__.strip('_')}: {error}"


def _check_own_files(table: Table) -> None:
    if not may_delete_files(table.properties):
        raise _CleanupRefused("the table has `gc.enabled=false`, so another table may share its files")


def _read_undecided(table: Table) -> UndecidedFiles:
    try:
        return UndecidedFiles.of(table.properties)
    except MarkerUnreadable as error:
        raise _CleanupRefused(f"cannot determine which files may still be committed: {error}") from error
