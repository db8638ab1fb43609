"""One compare-and-swap on a table, repeated until it is decided, and the removal of files that it wrote for nothing.

Callers propose a change of the metadata that they are shown; only this module decides what becomes of it:

- After a conflict the next round proposes again, on new metadata. So it does after a refusal while the metadata still
  changes, because the refusal may have been about the older metadata. A refusal of unchanged metadata ends the swap.
- After any other failure the outcome is unknown, because a commit may land after it was reported as failed. The next
  round loads the table, and ends if one of the attempts is in it. If that attempt has been overtaken, the round
  proposes again.
- However the swap ends, files of attempts that did not land are deleted if the final metadata proves that no attempt
  will ever need them. Other files stay until orphan removal deletes them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from frazil.errors import AccessDenied, CommitRefused, CommitUnavailable, FrazilError
from frazil.table.catalog_mistakes import one_line, retry_after_s
from frazil.table.catalogs import catalog_errors
from frazil.table.expired import has_expired
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store

log = logging.getLogger(__name__)

T = TypeVar("T")

REFUSED = frozenset({400, 405, 413, 422, 501})
"""HTTP status codes with which a REST catalog refuses a change."""
REFUSALS_MOST = 8
"""Refusals of the same metadata, within seconds, that end a swap. A gateway may fail for a moment; and a race that is
reported as a refusal (sequence number too old) changes the metadata."""

SAID_MOST = 300
"""Characters of an error in a sentence of the log: some servers answer with pages."""
OUTAGE_S = 5.0
"""Failures that are over sooner are not worth a sentence about their end."""
ASKED_MOST_S = 60.0
"""The longest wait that a server can ask for (`Retry-After`): a wrong clock must not stop a stream."""
_FAILED = {
    "load": "table {} cannot be loaded",
    "prepare": "a commit to {} cannot be prepared",
    "commit": "the outcome of a commit to {} is unknown",
}
"""What another round has to find out, by the step that failed."""


class TableHandle:
    """One table of a catalog, with the metadata last seen.

    The metadata is kept between commits: a commit that was overtaken fails on the snapshot it asserts, and only then is
    the table loaded again. That halves the time of a commit on a table with a long history.

    The metadata never goes back, although a caching catalog may return an older state than this process has seen.
    """

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self._catalog = catalog
        self.identifier = identifier
        self._table: Table | None = None
        self._loaded: Table | None = None
        self._newest: Table | None = None
        self._store: ObjectStore | None = None

    @classmethod
    def of(cls, table: Table) -> TableHandle:
        """A handle for a loaded table; its metadata is loaded again."""
        handle = cls(table.catalog, ".".join(table.name()))
        handle._loaded = table
        return handle

    @property
    def catalog_name(self) -> str:
        return self._catalog.name

    def io_properties(self) -> Mapping[str, str]:
        """The FileIO's properties as last loaded; a catalog that vends credentials renews them with every load."""
        return (self._loaded or self.refresh()).io.properties

    @property
    def store(self) -> ObjectStore:
        """The storage of the table's own files. Raises SpecError for a location that no storage serves."""
        if self._store is None:
            # By way of the handle, so that the store has the credentials of the newest load.
            location = (self._loaded or self.refresh()).location()
            self._store = open_store(location, self.io_properties, renew=self._renew)
        return self._store

    def _renew(self) -> None:
        """Load the table for newer credentials."""
        log.info("the credentials for table %s have expired: loading it for newer ones", self.identifier)
        with catalog_errors(self.catalog_name):
            self.refresh()

    def current(self) -> Table:
        """The table as last seen; loads it the first time."""
        return self._table or self.refresh()

    def refresh(self) -> Table:
        self.forget()
        self._loaded = self._catalog.load_table(self.identifier)
        self._newest = self._table = self._newer(self._loaded)
        return self._table

    def _newer(self, found: Table) -> Table:
        """The newer of the loaded and the known metadata; a recreated table counts as newer."""
        known = self._newest
        if known is None or known.metadata.table_uuid != found.metadata.table_uuid:
            return found
        if found.metadata.next_sequence_number() >= known.metadata.next_sequence_number():
            return found
        log.warning("the catalog returned an older state of table %s than is known", self.identifier)
        return Table(found.name(), known.metadata, known.metadata_location, found.io, self._catalog, found.config)

    def forget(self) -> None:
        """Load the table the next time."""
        self._table = None

    def commit(
        self, table: Table, *, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """Attempt one commit. Whatever it raises, the table is loaded again the next time."""
        self._table = None
        response = self._catalog.commit_table(table, requirements, updates)
        self._newest = self._table = Table(
            table.name(), response.metadata, response.metadata_location, table.io, self._catalog, table.config
        )


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Nothing (more) to change: the result of the swap."""

    result: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The change to swap in, and the result once it has landed."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    result: T
    proof: tuple[str, str] | None = None
    """A property and a value that only this change writes. They prove better than the snapshot that it landed: the
    snapshot may have expired, or another commit may have overtaken it."""

    def stands_in(self, table: Table) -> bool:
        """Whether this change landed and is the latest, by its proof if it has one, else by its snapshot."""
        if self.proof is not None:
            return table.metadata.properties.get(self.proof[0]) == self.proof[1]
        ours = {u.snapshot.manifest_list for u in self.updates if isinstance(u, AddSnapshotUpdate)}
        return any(s.manifest_list in ours for s in table.metadata.snapshots)


Propose = Callable[[Table], Done[T] | Change[T]]
"""From the current table to the change of the next round, or to the result. What it raises ends the swap."""


class Written(Protocol):
    """The files that the rounds of one swap wrote or made unnecessary."""

    @property
    def undecided(self) -> bool:
        """Whether some may be unnecessary."""

    def delete_unused(self, table: Table) -> None:
        """Delete those that `table`, loaded after the last attempt, proves unnecessary for ever."""


def commit_snapshot(handle: TableHandle, propose: Propose[T], written: Iterable[Written], *, patience: Patience) -> T:
    """Swap in what `propose` returns, then delete the files that were written for nothing, however the swap ends.

    `written` is read once the swap is over: `propose` may add to it. Raises what `swap` raises.
    """
    try:
        return swap(handle, propose, patience=patience)
    finally:
        _clean(handle, written)


@dataclass(frozen=True, slots=True)
class TableCommit(Generic[T]):
    """The change of one table in a commit of several: the arguments of `commit_snapshot`."""

    handle: TableHandle
    propose: Propose[T]
    written: Iterable[Written]


def commit_snapshots(commits: Sequence[TableCommit[T]], *, patience: Patience) -> T:
    """Commit to several tables in order, and return the result of the last, which decides.

    Each table changes whole or not at all, and the last one only after all others. Callers rely on no more: after an
    error or a crash some of the others may have changed without the last, so each `propose` recognises what an earlier
    try left in its table. A catalog with multi-table commits may therefore take all changes in one request. Raises what
    `swap` raises.
    """
    return [commit_snapshot(c.handle, c.propose, c.written, patience=patience) for c in commits][-1]


def _clean(handle: TableHandle, written: Iterable[Written]) -> None:
    """Delete unused files, best effort: a failure costs storage, and must not hide the end of the swap."""
    for files in [found for found in written if found.undecided]:
        try:
            # The handle forgot the table before each attempt, so this is the state after the last one.
            files.delete_unused(handle.current())
        except Exception as error:
            log.warning("unused files of a commit to %s were left behind: %r", handle.identifier, error)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to retry, in seconds: waits double from `first_s` to `most_s`, with full jitter."""

    total_s: float = 600.0
    first_s: float = 0.05
    most_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep
    """Waits for so many seconds, or until whoever commits is asked to end; then it returns something true."""
    tell: Callable[[str], None] = lambda _: None
    """Receives the sentence of each round that failed, other than by a lost race."""

    def wait_s(self, attempt: int, *, asked_s: float | None = None) -> float:
        """How long to wait before the next attempt; at least as long as an overloaded server asks, within reason."""
        drawn = random.uniform(0, min(self.most_s, self.first_s * 2**attempt))
        return max(drawn, min(asked_s or 0.0, ASKED_MOST_S))


@dataclass(slots=True)
class _Refusals:
    """Counts how often a catalog has refused a change of the same metadata."""

    identifier: str
    count: int = 0
    of: str | None = None

    def met(self, error: Exception, table: Table | None) -> None:
        """Count a refusal, and raise `CommitRefused` at the last; ignores other errors."""
        if not _is_refusal(error) or table is None:
            return
        self.count = self.count + 1 if table.metadata_location == self.of else 1
        self.of = table.metadata_location
        if self.count >= REFUSALS_MOST:
            raise CommitRefused(
                f"the catalog refuses to change table {self.identifier}: {error}. The staged files "
                "and the journal are kept. Fix what it says, then start again"
            ) from error


def _is_refusal(error: Exception) -> bool:
    """Whether the catalog itself refuses; a 408 or 5xx of a proxy is no refusal."""
    response = getattr(error.__cause__, "response", None)
    status = getattr(response, "status_code", None)
    return isinstance(error, BadRequestError | NotImplementedError) or status in REFUSED


@dataclass(frozen=True, slots=True)
class _Setback:
    """Why a round failed: a message for the log, and one for the error once patience is over."""

    level: int
    now: str
    at_last: str


def _setback(error: Exception, step: str, identifier: str, total_s: float) -> _Setback:
    """The setback of a round; raises errors that another round would not fix."""
    said = f"{type(error).__name__}: {one_line(error)[:SAID_MOST]}"
    match error:
        case CommitFailedException():
            return _Setback(
                logging.INFO,
                f"commit to {identifier} lost a race ({said}): trying again",
                f"committing to table {identifier} lost every race for {total_s:.0f} s: "
                "something commits to it without pause. The staged files and the journal are kept",
            )
        case ForbiddenError() | UnauthorizedError() | OAuthError() | PermissionError():
            if not has_expired(error):
                raise AccessDenied(f"committing to table {identifier} is not permitted: {error}") from error
            return _Setback(
                logging.WARNING,
                f"the credentials for table {identifier} have expired: loading it for newer ones",
                f"the credentials for table {identifier} have expired: {error}",
            )
        case NoSuchTableError():
            raise CommitUnavailable(f"table {identifier} does not exist any more: {error}") from error
    return _Setback(
        logging.WARNING,
        f"{_FAILED[step].format(identifier)} ({said}): looking again",
        f"committing to table {identifier} failed for {total_s:.0f} s; the last error was {said}. "
        "The staged files and the journal are kept",
    )


@dataclass(slots=True)
class _Outage:
    """Rounds that failed in a row, other than by a lost race: people are told of the first, and of the end."""

    identifier: str
    clock: Callable[[], float]
    since: float | None = None

    def level(self, setback: _Setback) -> int:
        """The level at which a setback is logged; `frazil status` has the newest."""
        if setback.level < logging.WARNING or self.since is not None:
            return logging.INFO
        self.since = self.clock()
        return setback.level

    def over(self) -> None:
        """A round was decided."""
        if self.since is not None and (lasted_s := self.clock() - self.since) >= OUTAGE_S:
            log.warning("table %s can be committed to again, after %.0f s", self.identifier, lasted_s)


class _Rounds(Generic[T]):
    """The rounds of one swap. `step` is what the current one does, `table` what the last one saw."""

    def __init__(self, handle: TableHandle, propose: Propose[T]) -> None:
        self._handle, self._propose = handle, propose
        self._tried: list[Change[T]] = []
        self.step = "load"
        self.table: Table | None = None

    def run(self) -> T:
        """Run one round. Raises anything if it is not decided."""
        self.step = "load"
        self.table = table = self._handle.current()
        self.step = "prepare"
        landed = next((change for change in self._tried if change.stands_in(table)), None)
        if landed is not None:
            return landed.result
        proposed = self._propose(table)
        if isinstance(proposed, Done):
            return proposed.result
        self._tried.append(proposed)
        self.step = "commit"
        self._handle.commit(table, requirements=proposed.requirements, updates=proposed.updates)
        return proposed.result


def swap(handle: TableHandle, propose: Propose[T], *, patience: Patience) -> T:
    """Commit what `propose` returns for the current table, and repeat until it has landed.

    In every round `propose` sees the metadata that its change will replace. It is not called if the table turns out to
    have an attempt whose answer was lost.
    Raises `CommitUnavailable` if no round is decided within `patience.total_s`, or before the caller is asked to end,
    `CommitRefused` if the catalog refuses the change, and `AccessDenied` if it refuses our credentials.
    """
    deadline = patience.clock() + patience.total_s
    attempt = 0
    rounds = _Rounds(handle, propose)
    refusals = _Refusals(handle.identifier)
    outage = _Outage(handle.identifier, patience.clock)
    while True:
        try:
            result = rounds.run()
        except FrazilError:
            raise
        except Exception as error:  # anything else is an unknown outcome, which the next round finds out
            refusals.met(error, rounds.table)
            setback = _setback(error, rounds.step, handle.identifier, patience.total_s)
            left_s = deadline - patience.clock()
            if left_s <= 0:
                raise CommitUnavailable(setback.at_last) from error
            wait_s = patience.wait_s(attempt, asked_s=retry_after_s(error))
            log.log(outage.level(setback), "%s in %.1f s, for %.0f s at most", setback.now, wait_s, left_s)
            if setback.level >= logging.WARNING:
                patience.tell(setback.now)
        else:
            outage.over()
            return result
        handle.forget()
        if patience.wait(wait_s):
            raise CommitUnavailable(
                f"{setback.now}. That was not done, because the writer was asked to end; the next start decides what "
                "became of the commit"
            )
        attempt += 1
