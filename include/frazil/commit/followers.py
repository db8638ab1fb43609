"""Commits the files of routed tables. Routed tables follow the default table, whose commit decides each batch.

Committing to a routed table therefore needs no epoch. The routed table's own marker records its progress: the table has
the journals up to `settled`, and later journals that name files of this table wait. Every writer, even a paused one,
commits the same files in the same order, each file once.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from uuid import UUID

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.journal import Journal, later_journals
from frazil.commit.marked_update import commit_of, merge_of
from frazil.commit.marker import BatchKey, Fate, Marker, merged_identity, read_marker
from frazil.commit.members import never_had
from frazil.commit.merging import MergeWriter
from frazil.commit.mode import MERGED
from frazil.commit.rules import check_ancestry, files_fit
from frazil.commit.stream_tables import StreamTables
from frazil.commit.swap import Done, RetryPolicy, TableCommit, TableHandle, commit_snapshots
from frazil.commit.sweep import bare_path, sweep_merged
from frazil.commit.waiting_files import (
    delete_moved,
    is_beside,
    moved,
    not_given_up,
    note_of,
    notes,
    some_beside,
)
from frazil.errors import CommitUnavailable, MarkerUnreadable, RolledBack, SchemaIncompatible, TableLost
from frazil.ingest.contract import StagedFile, Target
from frazil.spec.units import counted
from frazil.table.catalogs import words_of_table

log = logging.getLogger(__name__)

FIRST_RECORD = "frazil.first-commit-record"
"""The summary key for the first commit record, in a snapshot with rows of several batches."""
NOTHING = BatchKey(0, 0)
"""A batch key that is before the first batch."""
AT_ONCE = 16
"""Maximum number of tables committed to in parallel."""
MERGES_AT_ONCE = 64
"""Maximum number of tables committed to in parallel if their merges share the engine's jobs, because the threads mostly
wait.
"""
RETRY_TIMEOUT_S = 30.0
"""Timeout for retrying the commit to one table while the other tables wait."""
RETRY_TIMEOUT_BEHIND_S = 3.0
"""Timeout for retrying the commit to a table whose last commit failed."""
COMING_MS = round(2 * RETRY_TIMEOUT_S * 1000)
"""Time after a journal was made within which the routed table's commit may still be under way. The default table
commits first.
"""
Make = Callable[[Target, Sequence[Journal]], None]
"""Creates or loads a table, and writes its first marker. Its rows of these batches wait in files next to the default
table.
"""


class _TableRecreated(CommitUnavailable):
    """A table was recreated under its name after files had been prepared for it."""


class Gone(StrEnum):
    """What happened to a table that the route had: the table was dropped or renamed."""

    MISSING = "missing"
    REPLACED = "another table"
    """Another table has the name now."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A routed table that misses rows of batches that the default table has."""

    target: Target
    since_ms: int
    """When the oldest journal that waits for the table was made, in milliseconds since 1970."""
    batches: int
    rows: int
    reason: str
    backfill: str | None = None
    """The backfill or replay whose rows these are, in `batches` chunks; None for rows of batches."""
    only_last: bool = False
    """Whether only the default table's last batch is missing and no error is known. The writer commits that batch
    next.
    """
    gone: Gone | None = None
    """What happened to a table that no longer exists; None for a table that exists."""

    @property
    def amiss(self) -> str:
        """Return a short description of the problem."""
        return str(self.gone) if self.gone else f"{counted(self.rows, 'row')} behind"

    def is_coming(self, now_ms: int) -> bool:
        """Whether a healthy writer is about to commit the missing batch."""
        return self.only_last and now_ms - self.since_ms < COMING_MS

    def __str__(self) -> str:
        of = counted(self.batches, "batch") if self.backfill is None else f"backfill {self.backfill}"
        return f"{self.target} is missing {counted(self.rows, 'row')} of {of}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Failed:
    reason: str
    missing: Sequence[Journal]
    """The batches whose rows wait; empty for a table that was dropped when it had all rows."""


@dataclass(slots=True)
class Followers:
    """The routed tables of one stream, as known to one writer."""

    tables: StreamTables
    through: BatchKey
    """All routed tables have all batches up to this batch, except the batches in `waiting`."""
    waiting: dict[Target, list[Journal]] = field(default_factory=dict)
    """Journals, in order, that the default table has committed and that the routed table may not have committed yet."""
    behind: dict[Target, Behind] = field(default_factory=dict)
    """The tables that miss rows since their last commit failed."""
    refused: dict[Target, str] = field(default_factory=dict)
    """Why the last commit to each table failed. Includes tables that were dropped when they had all rows."""
    merges: dict[Target, dict[UUID, MergeWriter]] = field(default_factory=dict)
    """Merges that a table refused, by its UUID: the next attempt commits the files that they have written."""
    make: Make | None = None
    """Creates missing tables; None for readers, which do not create tables."""
    epoch: int = 0
    """The writer's epoch. Files of earlier epochs were staged by other writers."""
    atomic: bool | frozenset[Target] = False
    """Whether batches are committed to the routed tables atomically with the default table, or the set of tables for
    which this holds.
    """

    @classmethod
    def of(
        cls, tables: StreamTables, marker: Marker, make: Make | None = None, *, atomic: bool | Collection[str] = True
    ) -> Followers:
        """Find the batches that earlier writers left uncommitted.

        Uses the default table's marker and the journals after the marker's `routed`. `atomic` is the declared setting;
        it applies only if the catalog can commit to several tables in one step.
        """
        in_one_step = tables.at_once is not None and (atomic if isinstance(atomic, bool) else frozenset(atomic))
        found = cls(tables, marker.settled or NOTHING, make=make, epoch=marker.at.epoch, atomic=in_one_step)
        if marker.routed is None or marker.settled is None:
            return found
        found.through = marker.routed
        for journal in reversed([*decided_journals(tables, marker)]):
            found.add(journal)
        known = {note.target: note for note in notes(tables)} if found.waiting else {}
        waiting = {target: not_given_up(journals, known.get(target)) for target, journals in found.waiting.items()}
        found.waiting = {target: journals for target, journals in waiting.items() if journals}
        return found

    @property
    def complete_through(self) -> BatchKey:
        """Return the last batch up to which all tables have all batches."""
        oldest = min((journals[0].key for journals in self.waiting.values()), default=None)
        return self.through if oldest is None else BatchKey(oldest.epoch, oldest.batch - 1)

    def add(self, journal: Journal) -> None:
        """Add a batch that the default table has committed."""
        if journal.key <= self.through:
            return
        for target in journal.routed:
            self.waiting.setdefault(target, []).append(journal)
        self.through = journal.key

    def commit(self) -> None:
        """Commit the waiting batches to their tables, in parallel.

        If the commit to a table fails, the table falls behind, and its files wait for the next call.
        """
        targets = sorted(self.waiting)
        if not targets:
            return
        at_once = MERGES_AT_ONCE if self.tables.merging else AT_ONCE
        with ThreadPoolExecutor(min(at_once, len(targets)), thread_name_prefix="followers") as pool:
            failures = dict(zip(targets, pool.map(self._tried, targets), strict=True))
        for target, failed in failures.items():
            if failed is None:
                del self.waiting[target]
                self.refused.pop(target, None)
                if self.behind.pop(target, None):
                    log.warning("table %s has all rows again", target)
                continue
            self.refused[target] = failed.reason
            if failed.missing:
                found = behind_of(target, failed.missing, failed.reason)
                if target not in self.behind:
                    log.warning("%s. Its files are kept, and committed as soon as that is possible", found)
                self.behind[target] = found
            else:
                self.behind.pop(target, None)

    def together(self, journal: Journal) -> tuple[TableCommit[Marker], ...]:
        """Return the commits of a batch to its `atomic` tables, for one step with the default table's commit.

        Commits rows of earlier batches first. Raises `CommitUnavailable` while one of these tables is behind.
        """
        if self.atomic is False:
            return ()
        self.commit()
        targets = sorted(journal.routed if self.atomic is True else journal.routed & self.atomic)
        if missing := [str(self.behind.get(t) or f"{t}: {self.refused[t]}") for t in targets if t in self.waiting]:
            raise CommitUnavailable(
                f"batch {journal.key} of stream {journal.stream!r} is committed to several tables in one step, and "
                f"{missing[0]}"
            )
        tables = self.tables
        return tuple(
            _commit(tables, tables.handle(t), [journal], self._files(t, [journal], made=True), target=t, merges={})
            for t in targets
        )

    def _tried(self, target: Target) -> _Failed | None:
        """Commit the waiting batches to one table; returns the failure, or None."""
        again = target in self.refused
        retry_policy = RetryPolicy(total_s=RETRY_TIMEOUT_BEHIND_S if again else RETRY_TIMEOUT_S)
        handle = self.tables.handle(target)
        if again:
            handle.forget()
        try:
            if again:
                self.waiting[target] = not_given_up(self.waiting[target], note_of(self.tables, target))
            if not (journals := self.waiting[target]):
                return None  # a person gave them up
            self._create_if_waiting(target, journals)
            waited, late = 0, again or self._is_inherited(target)
            if late:
                _check_files_exist(self.tables, handle, journals, target=target)
                waited = _rows(missing_journals(self.tables, handle.current(), journals), target)
            merges = self.merges.setdefault(target, {})
            follow(self.tables, handle, journals, self._files, target=target, retry_policy=retry_policy, merges=merges)
            del self.merges[target]
            delete_moved(self.tables, journals, target)
            if late:
                sweep_merged(self.tables, journals, target)
            if waited:
                log.warning("table %s got %s that waited for it", target, counted(waited, "row"))
        except Exception as error:  # catalogs' clients raise anything, and the other tables must go on
            log.debug("table %s is left behind", target, exc_info=True)
            return self._failed(target, error)
        return None

    def _failed(self, target: Target, error: Exception) -> _Failed:
        """Return the failure with the batches that the table misses.

        A table that was dropped had committed some of an earlier writer's batches. Any other table may miss all waiting
        batches.
        """
        missing: Sequence[Journal] = self.waiting[target]
        if self._is_inherited(target) and isinstance(error, NoSuchTableError | TableLost):
            try:
                missing = never_had(self.tables, target, missing)
            except Exception:  # as above: what cannot be looked up is not known to have been there
                log.debug("what table %s had is not known", target, exc_info=True)
        return _Failed(error_sentence(error, self.tables.stream, target), missing)

    def _is_inherited(self, target: Target) -> bool:
        """Whether an earlier writer staged files that the table may not have."""
        return any(journal.key.epoch < self.epoch for journal in self.waiting[target])

    def _create_if_waiting(self, target: Target, journals: Sequence[Journal]) -> None:
        """Create the table if its rows wait in files next to the default table."""
        if self.make is not None and some_beside(self.tables, journals, target):
            self.make(target, journals)

    def _files(self, target: Target, journals: Sequence[Journal], *, made: bool = False) -> tuple[StagedFile, ...]:
        """Return the files of these journals for a table.

        Rows that wait in files next to the default table are rewritten as files of this table.
        """
        if made:
            self._create_if_waiting(target, journals)
        table = self.tables.handle(target).current()
        return tuple(file for journal in journals for file in moved(self.tables, table, journal, target))


def behind_of(target: Target, journals: Sequence[Journal], reason: str) -> Behind:
    since_ms = min(journal.created_at_ms for journal in journals)
    return Behind(target, since_ms, len(journals), _rows(journals, target), reason)


def _rows(journals: Iterable[Journal], target: Target) -> int:
    return sum(file.records for journal in journals for file in journal.staged_for(target))


def decided_journals(tables: StreamTables, marker: Marker) -> Iterator[Journal]:
    """Yield the journals of batches that the default table has but that some routed table may not have, newest
    first.
    """
    uuid = str(tables.main.current().metadata.table_uuid)
    for journal in tables.journals.records(newest_first=True):
        if marker.routed is not None and journal.key <= marker.routed:
            return
        ours = (journal.stream, journal.table_uuid) == (tables.stream, uuid)
        # A discarded batch has no journal. What the marker does not remember is old, and then certainly committed.
        if ours and marker.settled and journal.key <= marker.settled and marker.fate(journal.key) is not Fate.NEVER:
            yield journal


def follow(  # noqa: PLR0913 - the place and the contents of a commit
    tables: StreamTables,
    handle: TableHandle,
    journals: Sequence[Journal],
    files_of: Callable[[Target, Sequence[Journal]], tuple[StagedFile, ...]],
    *,
    target: Target,
    retry_policy: RetryPolicy,
    merges: dict[UUID, MergeWriter],
) -> Marker:
    """Commit those files of these journals that a table does not have yet, in order.

    Rows of several batches form one snapshot. Merged batches get one snapshot each, because each batch is merged into
    the result of the batch before. Raises `RolledBack`, `SchemaIncompatible`, `AccessDenied`, `CommitUnavailable`, and
    the storage's errors.
    """
    while True:
        table = handle.current()
        marker = present_marker(read_marker(table.metadata.properties, tables.stream), table, tables.stream)
        later = later_journals(marker, journals)
        if not later:
            return marker
        if any(file.content in MERGED for journal in later for file in journal.staged_for(target)):
            later = later[:1]
        commit = _commit(tables, handle, later, files_of(target, later), target=target, merges=merges)
        with suppress(_TableRecreated):
            commit_snapshots((commit,), retry_policy=retry_policy)


def _commit(  # noqa: PLR0913 - the place and the contents of a commit
    tables: StreamTables,
    handle: TableHandle,
    journals: Sequence[Journal],
    files: tuple[StagedFile, ...],
    *,
    target: Target,
    merges: dict[UUID, MergeWriter],
) -> TableCommit[Marker]:
    """Return the commit of these journals' `files` to a table. `merges` has the last one, if the table refused it."""
    prepared_for = handle.current().metadata.table_uuid

    def decide(table: Table, found: Marker | None) -> Marker | Done[Marker]:
        marker = present_marker(found, table, tables.stream)
        if table.metadata.table_uuid != prepared_for:
            raise _TableRecreated(f"table {target} was made again meanwhile: its rows are to be written again for it")
        check_routed_not_rolled_back(table.metadata, marker, table=target)
        if len(later_journals(marker, journals)) < len(journals):
            return Done(marker)  # others committed some of them meanwhile: what is left is prepared again
        if not files_fit(table.metadata, files):
            raise SchemaIncompatible(
                f"rows that wait for table {target} were written for a schema or partition spec that it gave up: make "
                "the columns optional that were made required since"
            )
        return reduce(_advanced_by, journals, marker)

    summary = {
        "frazil.operation": "follow",
        "frazil.records": str(sum(file.records for file in files)),
        "frazil.commit-record": tables.journals.path(journals[-1].key),
    }
    if len(journals) > 1:
        summary[FIRST_RECORD] = tables.journals.path(journals[0].key)
    merge, refused = merge_of(tables, journals[0], files), merges.get(prepared_for)
    if merge is not None:
        merge = merges[prepared_for] = refused if refused and refused.changes == merge.changes else merge
    return commit_of(tables, handle, decide, files=files, merge=merge, summary=summary)


def _advanced_by(marker: Marker, journal: Journal) -> Marker:
    ends = {p.topic_partition: p.end for p in journal.progress}
    owned = marker if journal.key.epoch in marker.batches else marker.owned_by(journal.key.epoch)
    return dataclasses.replace(
        owned.with_batch(journal.key),
        at=journal.key,
        offsets={**marker.offsets, **ends},
        source=merged_identity(marker.source, journal.source),
    )


def present_marker(found: Marker | None, table: Table, stream: str) -> Marker:
    if found is None:
        raise CommitUnavailable(
            f"table {'.'.join(table.name())} has no marker of stream {stream!r}: it was dropped and made again, or the "
            f"marker was removed. `frazil route {stream}` says what to do"
        )
    return found


def check_routed_not_rolled_back(metadata: TableMetadata, marker: Marker, *, table: Target) -> None:
    """Check a routed table's ancestry.

    Raises RolledBack with advice for this table, because `frazil reset` concerns the default table.
    """
    try:
        check_ancestry(metadata, marker, table=table)
    except RolledBack as error:
        raise RolledBack(
            f"table {table} was rolled back behind stream {marker.stream!r}: its last commit was snapshot "
            f"{marker.snapshot_id}, which is no longer in its main branch. Put the table forward to that snapshot "
            f"again, or let it go on as it stands: `frazil route {marker.stream} --give-up {table}`"
        ) from error


def _check_files_exist(
    tables: StreamTables, handle: TableHandle, journals: Sequence[Journal], *, target: Target
) -> None:
    """Check that the files of batches that the table does not have yet exist: a table must never reference a missing
    file.

    Files of batches that the table has may be missing: a compaction replaced them, or the table was dropped and
    recreated.
    """
    marker = read_marker(handle.current().metadata.properties, tables.stream)
    later = journals if marker is None else later_journals(marker, journals)
    files = [file for journal in later for file in journal.staged_for(target)]
    folders = {(is_beside(tables, file), file.path.rsplit("/", 1)[0]) for file in files}
    stores = {beside: tables.store if beside else tables.store_of(target) for beside, _ in folders}
    there = {bare_path(file.path) for beside, folder in folders for file in stores[beside].list_files(folder)}
    if missing := sorted({bare_path(file.path) for file in files} - there):
        raise CommitUnavailable(f"{counted(len(missing), 'file')} that wait for table {target} are gone: {missing[:3]}")


def missing_journals(tables: StreamTables, table: Table, journals: Sequence[Journal]) -> Sequence[Journal]:
    """Return the journals whose files a table does not have, according to the table's marker."""
    try:
        marker = read_marker(table.metadata.properties, tables.stream)
    except MarkerUnreadable:
        marker = None
    return journals if marker is None else later_journals(marker, journals)


def error_sentence(error: Exception, stream: str, target: Target) -> str:
    """Return a sentence that says why a table could not be loaded or committed to."""
    if isinstance(error, NoSuchTableError):
        return (
            "it is not in the catalog: it was dropped or renamed. Put it back, or let it go on, empty: "
            f"`frazil route {stream} --give-up {target}`"
        )
    return words_of_table(error)
