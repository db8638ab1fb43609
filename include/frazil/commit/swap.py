"""One compare-and-swap on a table, tried until it is decided: the loop is ours, and so is the check in each round.

A certain conflict is retried on new metadata, and so is a refusal while the metadata still moves: it may have been
about what was there before. A refusal of what stands is the end. Every other failure means that the outcome is
unknown: the table is loaded again and asked, because a commit may land after it was reported failed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from frazil.errors import AccessDenied, CommitRefused, CommitUnavailable, FrazilError
from frazil.table.expired import has_expired

log = logging.getLogger(__name__)

T = TypeVar("T")

REFUSED = frozenset({400, 405, 413, 422, 501})
"""Of HTTP: what a REST catalog answers to a change that it understands, or not, and will not make."""
REFUSALS_MOST = 8
"""Of the same metadata, within some seconds: a gateway may have a bad moment, and a race that is reported as a refusal
(a sequence number that is too old) moves the metadata."""


class TableHandle:
    """One table of a catalog, with the metadata last seen.

    The metadata is kept between commits: a commit that another one overtook fails on the snapshot it asserts, and
    only then is the table read again. That halves the time of a commit on a table with a long history.

    It never goes back: a catalog that caches may answer with a state of before what this process has seen, or made.
    """

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self._catalog = catalog
        self.identifier = identifier
        self._table: Table | None = None
        self._loaded: Table | None = None
        self._newest: Table | None = None

    @classmethod
    def of(cls, table: Table) -> TableHandle:
        """The table in the catalog that loaded it, whose metadata is not kept."""
        handle = cls(table.catalog, ".".join(table.name()))
        handle._loaded = table
        return handle

    def io_properties(self) -> Mapping[str, str]:
        """The FileIO's properties as last loaded: a catalog that vends credentials renews them with every load."""
        return (self._loaded or self.refresh()).io.properties

    def current(self) -> Table:
        """The table as last seen; loaded if it was not yet."""
        return self._table or self.refresh()

    def refresh(self) -> Table:
        self.forget()
        self._loaded = self._catalog.load_table(self.identifier)
        self._newest = self._table = self._newer(self._loaded)
        return self._table

    def _newer(self, found: Table) -> Table:
        """Of what was found and what is known; a table that was made again is another one."""
        known = self._newest
        if known is None or known.metadata.table_uuid != found.metadata.table_uuid:
            return found
        if found.metadata.next_sequence_number() >= known.metadata.next_sequence_number():
            return found
        log.warning("the catalog answered with an older state of table %s than is known", self.identifier)
        return Table(found.name(), known.metadata, known.metadata_location, found.io, self._catalog, found.config)

    def forget(self) -> None:
        """Make the next look a load."""
        self._table = None

    def commit(
        self, table: Table, *, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> None:
        """A single attempt; whatever it raises, the next look loads the table anew."""
        self._table = None
        response = self._catalog.commit_table(table, requirements, updates)
        self._newest = self._table = Table(
            table.name(), response.metadata, response.metadata_location, table.io, self._catalog, table.config
        )


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Nothing (more) to change: the answer is known."""

    result: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What to swap in, and the answer once it has landed."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    result: T


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on, in seconds: waits double from `first_s` to `most_s`, with full jitter."""

    total_s: float = 600.0
    first_s: float = 0.05
    most_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def wait(self, attempt: int) -> None:
        self.sleep(random.uniform(0, min(self.most_s, self.first_s * 2**attempt)))


@dataclass(slots=True)
class _Refusals:
    """Counts how often a catalog has refused a change of the same metadata."""

    identifier: str
    count: int = 0
    of: str | None = None

    def met(self, error: Exception, table: Table | None) -> None:
        """Raises `CommitRefused` at the last one that is looked at again; other errors are none of ours."""
        if not _is_refusal(error) or table is None:
            return
        self.count = self.count + 1 if table.metadata_location == self.of else 1
        self.of = table.metadata_location
        if self.count >= REFUSALS_MOST:
            raise CommitRefused(
                f"the catalog refuses to change table {self.identifier}: {error}. The staged files "
                "and the journal are kept. Mend what it says, then start again"
            ) from error


def _is_refusal(error: Exception) -> bool:
    """Whether the catalog says that it will not do it; a proxy's 408 or 5xx says nothing about that."""
    response = getattr(error.__cause__, "response", None)
    status = getattr(response, "status_code", None)
    return isinstance(error, BadRequestError | NotImplementedError) or status in REFUSED


@dataclass(frozen=True, slots=True)
class _Setback:
    """Why a round did not end it: what the log says, and what the error says once patience is over."""

    level: int
    now: str
    at_last: str


def _setback(error: Exception, identifier: str, total_s: float) -> _Setback:
    """Raises what no other round mends."""
    match error:
        case CommitFailedException():
            return _Setback(
                logging.INFO,
                f"commit to {identifier} lost a race, trying again: {error}",
                f"committing to table {identifier} lost every race for {total_s:.0f} s: "
                "something commits to it without pause. The staged files and the journal are kept",
            )
        case ForbiddenError() | UnauthorizedError() | PermissionError():
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
        f"the outcome of a commit to {identifier} is unknown ({error!r}): looking again",
        f"committing to table {identifier} failed for {total_s:.0f} s; "
        f"the last error was {error!r}. The staged files and the journal are kept",
    )


def swap(handle: TableHandle, decide: Callable[[Table], Done[T] | Change[T]], *, patience: Patience) -> T:
    """Ask `decide` what to do with the table as it is, do it, and repeat until it is done.

    `decide` sees the metadata that its change will replace, in every round; what it raises ends the loop.
    Raises `CommitUnavailable` when no round is decided within `patience.total_s`, `CommitRefused` where the catalog
    says that it will not do it, and `AccessDenied` where it will not do it for us.
    """
    deadline = patience.clock() + patience.total_s
    attempt = 0
    table: Table | None = None
    refusals = _Refusals(handle.identifier)
    while True:
        try:
            table = handle.current()
            decision = decide(table)
            if isinstance(decision, Done):
                return decision.result
            handle.commit(table, requirements=decision.requirements, updates=decision.updates)
        except FrazilError:
            raise
        except Exception as error:  # whatever is no certain answer is an unknown outcome: the next round looks
            refusals.met(error, table)
            setback = _setback(error, handle.identifier, patience.total_s)
            if patience.clock() >= deadline:
                raise CommitUnavailable(setback.at_last) from error
            log.log(setback.level, "%s", setback.now)
        else:
            return decision.result
        handle.forget()
        patience.wait(attempt)
        attempt += 1
