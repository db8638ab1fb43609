"""Performs a compare-and-swap on one or several tables, until its outcome is certain. After a conflict, it proposes the
change again on new metadata. After other failures, it first checks whether the commit has landed. Finally, it deletes
files of attempts that cannot land. Orphan removal deletes other unused files.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from frazil.commit.failed_attempts import Outage, Refusals, Step, TableNames, classify_error, may_refuse_one_update
from frazil.errors import FrazilError
from frazil.table.atomic_catalogs import CommitTables, TableChange
from frazil.table.branches import head_of
from frazil.table.catalog_errors import retry_after_s
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.object_store import ObjectStore
from frazil.table.parallel import run_in_parallel
from frazil.table.storage import open_store

if TYPE_CHECKING:
    from frazil.commit.writer_expiry import WriterExpiry

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RETRY_AFTER_S = 60.0
"""Maximum wait that a server's `Retry-After` can request, in case the server's clock is wrong."""


class TableHandle:
    """One table of a catalog, with the newest metadata that was loaded or committed."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self._catalog = catalog
        self.identifier = identifier
        self._table: Table | None = None
        self._loaded: Table | None = None
        self._newest: Table | None = None
        self._uuid: str | None = None
        self._store: ObjectStore | None = None
        self.lost_commit: str | None = None
        """A clause, if the catalog last returned an older state than it had returned or confirmed before."""
        self.expiry: WriterExpiry | None = None

    @classmethod
    def from_table(cls, table: Table) -> TableHandle:
        """Return a handle for a loaded table. The handle reloads the metadata at its first use."""
        handle = cls(table.catalog, ".".join(table.name()))
        handle._loaded, handle._uuid = table, str(table.metadata.table_uuid)
        return handle

    def sibling(self, identifier: str) -> TableHandle:
        return TableHandle(self._catalog, identifier)

    @property
    def catalog_name(self) -> str:
        return self._catalog.name

    def io_properties(self) -> Mapping[str, str]:
        """Return the FileIO's last loaded properties, including credentials from the catalog."""
        return (self._loaded or self.refresh()).io.properties

    @property
    def store(self) -> ObjectStore:
        """The storage of the table's own files. Raises SpecError if it is not supported."""
        if self._store is None:
            # The properties come from the handle, so that the store has the credentials of the newest load.
            location = (self._loaded or self.refresh()).location()
            self._store = open_store(location, self.io_properties, renew=self._renew_credentials)
        return self._store

    def _renew_credentials(self) -> None:
        log.info("the credentials for table %s have expired: loading new credentials", self.identifier)
        with translate_catalog_errors(self.catalog_name):
            self.refresh()

    @property
    def is_other_table(self) -> bool:
        """Whether the name now refers to another table than when the handle was first loaded."""
        return self._loaded is not None and str(self._loaded.metadata.table_uuid) != self._uuid

    def current(self) -> Table:
        return self._table or self.refresh()

    def refresh(self) -> Table:
        self.forget()
        self._loaded = self._catalog.load_table(self.identifier)
        self._uuid = self._uuid or str(self._loaded.metadata.table_uuid)
        self._newest = self._table = self._choose_newer(self._loaded)
        self.lost_commit = None if self._table is self._loaded else self._describe_loss(self._table, self._loaded)
        return self._table

    def _describe_loss(self, newest: Table, returned: Table) -> str:
        lost, head = (head_of(table.metadata) for table in (newest, returned))
        return (
            f"the catalog {self.catalog_name!r} returns an older state of table {self.identifier}: snapshot "
            f"{head and head.snapshot_id}, although it had confirmed snapshot {lost and lost.snapshot_id}"
        )

    def load_with(self, catalog: Catalog | None = None) -> Table:
        """Load the table without changing the handle. Returns the known state if that is newer."""
        return self._choose_newer((catalog or self._catalog).load_table(self.identifier))

    def _choose_newer(self, found: Table) -> Table:
        known = self._newest
        if known is None or known.metadata.table_uuid != found.metadata.table_uuid:
            return found
        if found.metadata.next_sequence_number() >= known.metadata.next_sequence_number():
            return found
        log.warning("ignored an older state of table %s that the catalog returned", self.identifier)
        return Table(found.name(), known.metadata, known.metadata_location, found.io, self._catalog, found.config)

    def set_current(self, table: Table) -> None:
        self._loaded, self._uuid = table, self._uuid or str(table.metadata.table_uuid)
        self._newest = self._table = self._choose_newer(table)

    def forget(self) -> None:
        self._table = None

    def commit(
        self, table: Table, *, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Attempt one commit. If it fails, the next access reloads the table."""
        self._table = None
        self.set_committed(table, self._catalog.commit_table(table, requirements, updates))

    def set_committed(self, table: Table, response: CommitTableResponse) -> None:
        """Keep the metadata that the catalog returned for a commit to `table`."""
        self.lost_commit = None
        self._newest = self._table = Table(
            table.name(), response.metadata, response.metadata_location, table.io, self._catalog, table.config
        )


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The result of a swap that changes nothing."""

    result: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    result: T
    proof: tuple[str, str] | None = None
    """A property and value that only this change writes: proof that it landed, even if its snapshot expired."""

    def has_landed_in(self, table: Table) -> bool:
        """Return whether this change has landed. Returns False if a later change has replaced its `proof`."""
        if self.proof is not None:
            return table.metadata.properties.get(self.proof[0]) == self.proof[1]
        ours = {u.snapshot.manifest_list for u in self.updates if isinstance(u, AddSnapshotUpdate)}
        return any(s.manifest_list in ours for s in table.metadata.snapshots)


Propose = Callable[[Table], Done[T] | Change[T]]
"""Returns the change for the next attempt, or `Done`. An exception ends the swap, unless the table has changed."""


class WrittenFiles(Protocol):
    """The files that the attempts of one swap wrote or made unnecessary."""

    @property
    def may_have_unused_files(self) -> bool: ...

    def delete_unused(self, table: Table) -> None:
        """Delete the files that are no longer needed. `table` is the table after the last attempt."""


@dataclass(frozen=True, slots=True)
class TableCommit(Generic[T]):
    """The change of one table in a commit to several tables: the arguments of `swap`."""

    handle: TableHandle
    propose: Propose[T]
    written: Iterable[WrittenFiles]


def swap(
    handle: TableHandle, propose: Propose[T], written: Iterable[WrittenFiles] = (), *, retry_policy: RetryPolicy
) -> T:
    """Commit the change that `propose` returns for the current table. Tries again until a change has landed.

    Each attempt first checks whether an earlier attempt has landed. Finally, deletes unnecessary files of `written`.
    Raises `CommitUnavailable` if the outcome is still open after `retry_policy.total_s`, or when the writer is asked to
    end. Raises `CommitRefused` if the change is refused or cannot be prepared. Raises `AccessDenied`.
    """
    return commit_snapshots((TableCommit(handle, propose, written),), retry_policy=retry_policy)


def commit_snapshots(
    commits: Sequence[TableCommit[T]], *, retry_policy: RetryPolicy, commit_atomically: CommitTables | None = None
) -> T:
    """Commit to several tables, and return the result of the last one.

    With `commit_atomically`, all tables change, or none. Otherwise, the tables change in order, and a crash may leave
    the last ones unchanged. Each `propose` must therefore recognise changes of earlier attempts. Raises the same errors
    as `swap`.
    """
    if commit_atomically is None and len(commits) > 1:
        return [commit_snapshots((commit,), retry_policy=retry_policy) for commit in commits][-1]
    try:
        return _swap_tables(commits, commit_atomically, retry_policy)
    finally:
        for commit in commits:
            _delete_unused_files(commit.handle, commit.written)


def _delete_unused_files(handle: TableHandle, written: Iterable[WrittenFiles]) -> None:
    """Delete unused files. Only logs a failure, because the swap has its result."""
    for files in [found for found in written if found.may_have_unused_files]:
        try:
            # The handle reloads the table after each failed attempt, so this is the state after the last one.
            files.delete_unused(handle.current())
        except NoSuchTableError:
            log.info("table %s no longer exists; unused files of a commit stay in its folder", handle.identifier)
        except Exception as error:
            log.warning("cannot delete unused files of a commit to %s: %r", handle.identifier, error)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry, in seconds. The wait doubles from `first_s` to `max_s`, with full jitter."""

    total_s: float = 600.0
    first_s: float = 0.05
    max_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep
    """Waits for a number of seconds; returns true early if the writer is asked to end."""
    report: Callable[[str, int], None] = lambda *_: None
    """Receives a sentence about each failed attempt and its exit code, except for lost races."""

    def wait_s(self, attempt: int, *, requested_s: float | None = None) -> float:
        drawn = random.uniform(0, min(self.max_s, self.first_s * 2**attempt))
        return max(drawn, min(requested_s or 0.0, MAX_RETRY_AFTER_S))


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[T]):
    """One attempt: the change of each table, by the table's index, and the swap's result if all changes land."""

    changes: Mapping[int, Change[T]]
    result: T

    def has_landed_in(self, tables: Sequence[Table]) -> bool:
        return all(change.has_landed_in(tables[index]) for index, change in self.changes.items())


class _Rounds(Generic[T]):
    def __init__(
        self, commits: Sequence[TableCommit[T]], commit_atomically: CommitTables | None, clock: Callable[[], float]
    ) -> None:
        self._commits, self._commit_atomically, self._clock = commits, commit_atomically, clock
        self.proposing_s = 0.0
        """Time spent in `propose`, which does not count towards the timeout."""
        self._tried: list[_Attempt[T]] = []
        self.step: Step = "load"
        self.tables: Sequence[Table] = ()

    def run(self) -> T:
        self.step = "load"
        self.tables = tables = run_in_parallel(lambda commit: commit.handle.current(), self._commits)
        self.step = "prepare"
        landed = next((attempt for attempt in self._tried if attempt.has_landed_in(tables)), None)
        if landed is not None:
            return landed.result
        began, pairs = self._clock(), list(zip(self._commits, tables, strict=True))
        proposals = run_in_parallel(lambda pair: pair[0].propose(pair[1]), pairs)
        self.proposing_s += self._clock() - began
        changes = {index: change for index, change in enumerate(proposals) if isinstance(change, Change)}
        attempt = _Attempt(changes, proposals[-1].result)
        if attempt.changes:
            self._tried.append(attempt)
            self.step = "commit"
            self._commit(attempt.changes, tables)
        return attempt.result

    def have_tables_changed(self) -> bool:
        """Reload the tables. Return whether a table has changed since the last attempt; False if reloading fails."""
        self.forget()
        with suppress(Exception):  # catalogs' clients raise anything; the error that ended the attempt matters more
            found = run_in_parallel(lambda commit: commit.handle.current(), self._commits)
            pairs = zip(found, self.tables, strict=False)
            return any(new.metadata_location != old.metadata_location for new, old in pairs)
        return False

    def forget(self) -> None:
        for commit in self._commits:
            commit.handle.forget()

    def withdraw_expiry(self) -> bool:
        """Let the next attempts expire no snapshots. Return whether the last attempt expired snapshots."""
        if self.step != "commit":
            return False
        withdrawn = [commit.handle.expiry.withdraw() for commit in self._commits if commit.handle.expiry]
        return any(withdrawn)

    def _commit(self, changes: Mapping[int, Change[T]], tables: Sequence[Table]) -> None:
        handles = [self._commits[index].handle for index in changes]
        parts = [TableChange(tables[index], change.requirements, change.updates) for index, change in changes.items()]
        if len(parts) == 1 or self._commit_atomically is None:
            for handle, part in zip(handles, parts, strict=True):
                handle.commit(part.table, requirements=part.requirements, updates=part.updates)
            return
        for handle in handles:
            handle.forget()
        for handle, part, response in zip(handles, parts, self._commit_atomically(parts) or (), strict=False):
            handle.set_committed(part.table, response)


def _swap_tables(
    commits: Sequence[TableCommit[T]], commit_atomically: CommitTables | None, retry_policy: RetryPolicy
) -> T:
    deadline = retry_policy.clock() + retry_policy.total_s
    attempt, checked_again = 0, False
    rounds = _Rounds(commits, commit_atomically, retry_policy.clock)
    names = TableNames(tuple(commit.handle.identifier for commit in commits))
    refusals, outage = Refusals(names), Outage(names, retry_policy.clock)
    while True:
        try:
            result = rounds.run()
        except FrazilError:
            if checked_again or not rounds.have_tables_changed():
                raise
            checked_again = True
            continue
        except Exception as error:  # after any other error the outcome is unknown; the next attempt determines it
            if may_refuse_one_update(error) and rounds.withdraw_expiry():
                log.warning(
                    "the catalog refuses a commit to %s that expires snapshots (%r): trying without", names, error
                )
                rounds.forget()
                continue
            refusals.count_error(error, rounds.step, rounds.tables)
            lost = next((handle.lost_commit for commit in commits if (handle := commit.handle).lost_commit), None)
            failed_attempt = classify_error(error, rounds.step, names, retry_policy.total_s, lost)
            left_s = deadline + rounds.proposing_s - retry_policy.clock()
            if left_s <= 0:
                raise failed_attempt.kind(failed_attempt.final_error) from error
            wait_s = retry_policy.wait_s(attempt, requested_s=retry_after_s(error))
            level, message = outage.record_failure(failed_attempt), failed_attempt.log_message
            log.log(level, "%s in %.1f s, for %.0f s at most", message, wait_s, left_s)
            if failed_attempt.level >= logging.WARNING:
                retry_policy.report(failed_attempt.log_message, failed_attempt.kind.exit_code)
        else:
            outage.end_outage()
            return result
        rounds.forget()
        if retry_policy.wait(wait_s):
            raise failed_attempt.kind(
                f"{failed_attempt.log_message}. The retry was skipped because the writer was asked to end; the next "
                "start determines the outcome of the commit"
            )
        attempt += 1
