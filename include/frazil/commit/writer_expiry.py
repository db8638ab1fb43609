"""Expires main's oldest snapshots with the writer's own commits.

With a commit each second, snapshots would pile up between two runs of maintenance. A thread plans the expiry by the
same rules as maintenance, and deletes files that the metadata no longer names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from frazil.commit.expiry import Pins, expirable_by_writers, plan_expiry
from frazil.commit.history import ancestors, count_ancestors
from frazil.commit.manifest_lists import manifest_paths
from frazil.commit.marker import open_branch_name
from frazil.spec.maintenance import Expiry
from frazil.table.branches import MAIN
from frazil.table.storage import open_store
from frazil.table.tables import may_delete_files

log = logging.getLogger(__name__)

DELETE_DELAY_MS = 900_000
"""Time from a snapshot's expiry to the deletion of its files. A reader may have loaded the snapshot earlier."""
END_TIMEOUT_S = 10.0
"""Seconds that an ending writer waits for a thread that reads, writes or deletes files."""


@dataclass(frozen=True, slots=True)
class _Removal:
    snapshots: tuple[Snapshot, ...]
    refs: Mapping[str, int]

    def is_outdated(self, metadata: TableMetadata) -> bool:
        """Return whether a branch or tag was created, dropped, or moved to a snapshot as old as the planned ones."""
        refs, newest = _refs(metadata), max(s.sequence_number or 0 for s in self.snapshots)
        moved = {snapshot_id for name, snapshot_id in refs.items() if self.refs.get(name) != snapshot_id}
        numbers = [s.sequence_number or 0 for s in metadata.snapshots if s.snapshot_id in moved]
        return refs.keys() != self.refs.keys() or min(numbers, default=newest + 1) <= newest


def start_thread(work: Callable[[], None], name: str = "expiry") -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def has_ended(thread: threading.Thread | None) -> bool:
    """Wait for a thread at the end of the process. Return whether the thread has ended: its storage may not respond."""
    if thread is not None:
        thread.join(END_TIMEOUT_S)
    if thread is None or not thread.is_alive():
        return True
    log.warning("the writer ends without its thread %r: the storage does not respond", thread.name)
    return False


@dataclass(slots=True)
class WriterExpiry:
    """Expires an eighth of `at-most` snapshots at a time. With a backlog, expires up to `at-most` at a time."""

    settings: Expiry
    read_pins: Callable[[], Pins]
    clock_ms: Callable[[], int]
    start: Callable[[Callable[[], None]], threading.Thread | None] = start_thread
    delete_delay_ms: int = DELETE_DELAY_MS
    _planned: _Removal | None = None
    _proposed: tuple[Snapshot, ...] = ()
    _in_attempt: bool = False
    _expired: list[tuple[int, Snapshot]] = field(default_factory=list)
    """Expired snapshots whose files still exist, each with the time (ms) of its expiry."""
    _expired_by_others: list[tuple[int, Snapshot]] = field(default_factory=list)
    """Snapshots that another program expired recently. It may still read their manifests, to find data files."""
    _former: list[str] = field(default_factory=list)
    _running: threading.Thread | None = None
    _due: int = 0
    """Number of snapshots in main's history at which the next removal is planned."""
    _last: Table | None = None

    def __post_init__(self) -> None:
        self._due = self.settings.at_most + self._step

    @property
    def _step(self) -> int:
        return max(self.settings.at_most // 8, 1)

    def take_updates(self, load: Callable[[], Table]) -> tuple[TableUpdate, ...]:
        """Return the planned removal once. If branches or tags have changed since, drops the plan."""
        planned, self._planned, self._in_attempt = self._planned, None, False
        if planned is None:
            return ()
        try:
            metadata = load().metadata
        except Exception as error:  # catalogs raise anything, and the commit itself must decide
            log.info("expiry of %d snapshots is postponed: %r", len(planned.snapshots), error)
            return ()
        if planned.is_outdated(metadata) or not may_delete_files(metadata.properties):
            return ()
        present = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        self._proposed = tuple(s for s in planned.snapshots if s.snapshot_id in present)
        ids = [snapshot.snapshot_id for snapshot in self._proposed]
        self._in_attempt = bool(ids)
        return (RemoveSnapshotsUpdate(snapshot_ids=ids),) if ids else ()

    def withdraw(self) -> bool:
        """Withdraw a refused attempt. If it expired snapshots, pause until main has `at-most` more of them."""
        withdrawn, self._in_attempt = self._in_attempt, False
        if withdrawn and self._last is not None:
            self._due = count_ancestors(self._last.metadata) + self.settings.at_most
        return withdrawn

    def continue_after(self, table: Table) -> None:
        """Start the thread if files or snapshots are due for removal. Does not wait. Call this after a commit."""
        last, self._last = self._last, table
        proposed, self._proposed = self._proposed, ()
        if last is not None:
            ours, now_ms = {s.snapshot_id for s in proposed}, self.clock_ms()
            for snapshot in _removed_snapshots(last.metadata, table.metadata):
                expired = self._expired if snapshot.snapshot_id in ours else self._expired_by_others
                expired.append((now_ms, snapshot))
        deletes = table.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, "false").lower() == "true"
        if deletes and last is not None and last.metadata.table_uuid == table.metadata.table_uuid:
            self._former += _versions(last) - _versions(table)
        has_waste = bool(self._expired_before(self._delete_before_ms)) or len(self._former) >= self._step
        # The number of all snapshots costs nothing, and main has no more.
        may_be_due = self._planned is None and len(table.metadata.snapshots) >= self._due
        is_due = may_be_due and count_ancestors(table.metadata) >= self._due
        if (has_waste or is_due) and not (self._running and self._running.is_alive()):
            delete_before_ms = self._delete_before_ms
            self._running = self.start(lambda: self._run(table, delete_before_ms, is_due=is_due))

    def end(self) -> None:
        """Delete the files that are due, up to a timeout. The orphan cleanup deletes the rest."""
        if has_ended(self._running) and (last := self._last) is not None:
            has_ended(self.start(lambda: self._run(last, self._delete_before_ms, is_due=False)))

    @property
    def _delete_before_ms(self) -> int:
        return self.clock_ms() - self.delete_delay_ms + 1

    def _expired_before(self, at_ms: int) -> list[Snapshot]:
        return [snapshot for _, snapshot in takewhile(lambda entry: entry[0] < at_ms, self._expired)]

    def _run(self, table: Table, delete_before_ms: int, *, is_due: bool) -> None:
        name = ".".join(table.name())
        if is_due:
            try:
                self._plan(table)
            except Exception as error:  # catalogs and storages raise anything, and commits must continue
                log.warning("cannot expire snapshots of table %s: %r; maintenance expires them", name, error)
                self._due += self._step
        try:
            self._delete_files(table, delete_before_ms)
        except Exception as error:
            log.warning(
                "cannot delete metadata of expired snapshots of table %s: %r; the orphan cleanup deletes it",
                name,
                error,
            )

    def _plan(self, table: Table) -> None:
        pins, metadata = self.read_pins(), table.metadata
        plan = plan_expiry(metadata, self.settings, pins, table=".".join(table.name()), now_ms=self.clock_ms())
        old = tuple(expirable_by_writers(plan, metadata))
        expired = old[-self.settings.at_most :]  # more would make one commit slow
        if expired:
            self._planned = _Removal(expired, _refs(metadata))
        step = self._step if len(expired) == len(old) else 0
        self._due = count_ancestors(metadata) - len(expired) + step
        log.debug("%s, %d by this writer", plan.sentence, len(expired))

    def _delete_files(self, table: Table, before_ms: int) -> None:
        """Delete the files of snapshots that expired before `before_ms`. The orphan cleanup handles failures."""
        expired, former = self._expired_before(before_ms), self._former[:]
        del self._expired[: len(expired)], self._former[: len(former)]
        del self._expired_by_others[: sum(at_ms < before_ms for at_ms, _ in self._expired_by_others)]
        later = [snapshot for _, snapshot in (*self._expired, *self._expired_by_others)]
        waste = sorted({*_unused_files(expired, later, table), *former})
        if waste and may_delete_files(table.properties):
            open_store(waste[0], table.io.properties).delete(waste)


def _unused_files(expired: Sequence[Snapshot], later: Sequence[Snapshot], table: Table) -> set[str]:
    """Return the files that only expired snapshots use. Snapshots in `later` still need their manifests."""
    main = list(ancestors(table.metadata))
    newer = {snapshot.snapshot_id for snapshot in main[:-1]}  # main's oldest snapshot has all their older manifests
    manifests = _left_manifests(expired, table)
    if manifests:
        retained = (snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in newer)
        manifests -= {path for snapshot in retained for path in manifest_paths(snapshot, table.io)}
        manifests -= _left_manifests(later, table)
    return manifests | {snapshot.manifest_list for snapshot in expired}


def _left_manifests(expired: Iterable[Snapshot], table: Table) -> set[str]:
    """Return the manifests of expired snapshots. Omits snapshots whose files another program has deleted."""
    manifests = set[str]()
    for snapshot in expired:
        with suppress(FileNotFoundError):
            manifests.update(manifest_paths(snapshot, table.io))
    return manifests


def _removed_snapshots(previous: TableMetadata, current: TableMetadata) -> list[Snapshot]:
    """Return the snapshots that only `previous` has. Compares all of them only if some may have been removed."""
    added = current.next_sequence_number() - previous.next_sequence_number()  # at least one for each new snapshot
    if len(current.snapshots) - len(previous.snapshots) == added:
        return []
    present = {snapshot.snapshot_id for snapshot in current.snapshots}
    return [snapshot for snapshot in previous.snapshots if snapshot.snapshot_id not in present]


def _versions(table: Table) -> set[str]:
    return {entry.metadata_file for entry in table.metadata.metadata_log}


def _refs(metadata: TableMetadata) -> dict[str, int]:
    """Return the snapshot ids of branches and tags by name. Omits branches that move with each commit."""
    branches = {name: ref for name, ref in metadata.refs.items() if name != MAIN}
    return {name: ref.snapshot_id for name, ref in branches.items() if not name.startswith(open_branch_name(""))}
