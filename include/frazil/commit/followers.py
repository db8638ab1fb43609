"""Commits the files of routed tables ("followers"). The default table's commit fixes a batch's files. Every writer,
even an outdated one, then commits the same files in the same order, so these commits need no epoch. A routed table's
marker records its last batch, so each file is committed once.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from uuid import UUID

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.commit_checks import check_ancestry, files_fit
from frazil.commit.compare_and_swap import Done, RetryPolicy, TableCommit, commit_snapshots
from frazil.commit.journal import Journal, later_journals
from frazil.commit.marked_update import prepare_commit, prepare_merge
from frazil.commit.marker import BatchKey, Marker, merge_identities, read_marker, try_read_marker
from frazil.commit.merging import MERGING_MODES, MergeWriter
from frazil.commit.routed_table_records import journals_never_committed
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import sweep_merged
from frazil.commit.waiting_files import (
    delete_waiting_files,
    drop_discarded,
    files_for_table,
    find_missing_files,
    has_waiting_files,
    load_missing_table_note,
    load_missing_table_notes,
)
from frazil.errors import CommitUnavailable, Explanation, RolledBack, SchemaIncompatible, TableLost
from frazil.ingest.contract import Target
from frazil.spec.units import format_count
from frazil.table.catalogs import explain_table_error
from frazil.table.parallel import run_in_parallel

log = logging.getLogger(__name__)

FIRST_RECORD = "frazil.first-commit-record"
"""Summary key for the first commit record of a snapshot with rows of several batches."""
NO_BATCH = BatchKey(0, 0)
MAX_PARALLEL_COMMITS = 16
RETRY_TIMEOUT_S = 30.0
RETRY_TIMEOUT_BEHIND_S = 3.0
COMMIT_GRACE_MS = round(2 * RETRY_TIMEOUT_S * 1000)
"""Maximum age of a journal whose commit to a routed table still counts as in progress."""
CreateTable = Callable[[Target, Sequence[Journal]], None]
"""Creates or loads a table and writes its first marker. The table's rows wait next to the default table."""


class _TableRecreated(CommitUnavailable):
    pass


class TableAbsence(StrEnum):
    """Why a route's table cannot be found by its name: the name is missing, or now belongs to another table."""

    MISSING = "missing"
    REPLACED = "another table"


@dataclass(frozen=True, slots=True)
class LaggingTable:
    target: Target
    since_ms: int
    """When the oldest journal that waits for the table was created (ms since 1970)."""
    batches: int
    rows: int
    explanation: Explanation
    backfill: str | None = None
    """The backfill or replay that the missing rows belong to, whose chunks `batches` counts; None for batches."""
    only_last: bool = False
    """Whether only the default table's last batch is missing, and no error occurred."""
    absence: TableAbsence | None = None

    @property
    def problem(self) -> str:
        return str(self.absence) if self.absence else f"{format_count(self.rows, 'row')} behind"

    def is_about_to_commit(self, now_ms: int) -> bool:
        return self.only_last and now_ms - self.since_ms < COMMIT_GRACE_MS

    def explain(self) -> Explanation:
        source = format_count(self.batches, "batch") if self.backfill is None else f"backfill {self.backfill}"
        sentence = f"{self.target} is missing {format_count(self.rows, 'row')} of {source}"
        return dataclasses.replace(self.explanation, reason=f"{sentence}: {self.explanation.reason}")

    def __str__(self) -> str:
        return str(self.explain())

    def find_remedy(self, stream: str, fix: str) -> str:
        """Return the table's remedy. If it is unknown, return `fix`, and the command that gives up the rows."""
        command = f"`frazil route {stream} --give-up {self.target}`"
        return self.explanation.remedy or f"{fix}, or continue without these rows: {command}"


@dataclass(frozen=True, slots=True)
class _Failure:
    explanation: Explanation
    missing: Sequence[Journal]
    """The batches with rows that the table is missing. Empty for a table that had all rows when it was dropped."""


@dataclass(slots=True)
class Followers:
    """The routed tables of one stream, as known to one process. Commits batches to them."""

    tables: StreamTables
    last_added: BatchKey
    """The last added batch. Routed tables have all batches up to it, except the batches in `waiting`."""
    waiting: dict[Target, list[Journal]] = field(default_factory=dict)
    """Journals in order, by routed table. The default table has these batches; the routed table may be missing them."""
    behind: dict[Target, LaggingTable] = field(default_factory=dict)
    refused: dict[Target, Explanation] = field(default_factory=dict)
    """Why the last commit to each table failed. Includes dropped tables that had all rows."""
    merges: dict[Target, dict[UUID, MergeWriter]] = field(default_factory=dict)
    """Refused merges, by table and table UUID. The next attempt reuses their files."""
    make: CreateTable | None = None
    """Creates missing tables; None for readers, which do not create tables."""
    epoch: int = 0
    """The writer's epoch. Files of earlier epochs were staged by other writers."""
    atomic: bool | frozenset[Target] = False
    """Routed tables that are committed in one step with the default table; True for all, False for none."""
    on_late_rows: Callable[[int], None] = field(default=lambda _: None)
    """Receives the number of rows that a table has just received after they had waited for it. Called by any thread."""

    @classmethod
    def load(
        cls,
        tables: StreamTables,
        marker: Marker,
        make: CreateTable | None = None,
        *,
        atomic: bool | Collection[str] = True,
    ) -> Followers:
        """Load the batches that routed tables may be missing. Tables in `atomic` commit with the default table."""
        declared = atomic if isinstance(atomic, bool) else frozenset(atomic)
        in_one_step = tables.commit_atomically is not None and declared
        followers = cls(tables, marker.settled or NO_BATCH, make=make, epoch=marker.key.epoch, atomic=in_one_step)
        if marker.routed is None or marker.settled is None:
            return followers
        followers.last_added = marker.routed
        for journal in reversed([*decided_journals(tables, marker)]):
            followers.add(journal)
        notes = {note.target: note for note in load_missing_table_notes(tables)} if followers.waiting else {}
        waiting = {target: drop_discarded(js, notes.get(target)) for target, js in followers.waiting.items()}
        followers.waiting = {target: journals for target, journals in waiting.items() if journals}
        return followers

    @property
    def last_complete_batch(self) -> BatchKey:
        """The last batch up to which no table is missing a batch."""
        oldest = min((journals[0].key for journals in self.waiting.values()), default=None)
        return self.last_added if oldest is None else BatchKey(oldest.epoch, oldest.batch - 1)

    def add(self, journal: Journal) -> None:
        if journal.key <= self.last_added:
            return
        for target in journal.routed:
            self.waiting.setdefault(target, []).append(journal)
        self.last_added = journal.key

    def commit(self) -> None:
        """Commit the waiting batches to their tables, in parallel. If a commit fails, the next call tries again."""
        targets = sorted(self.waiting)
        # Threads that merge mostly wait for the engine's jobs.
        max_threads = 64 if self.tables.merging else MAX_PARALLEL_COMMITS
        failures = run_in_parallel(self._try_commit, targets, max_threads=max_threads)
        for target, failure in zip(targets, failures, strict=True):
            if failure is None:
                del self.waiting[target]
                self.refused.pop(target, None)
                if self.behind.pop(target, None):
                    log.warning("table %s has all rows again", target)
                continue
            self.refused[target] = failure.explanation
            if failure.missing:
                behind = make_lagging_table(target, failure.missing, failure.explanation)
                if target not in self.behind:
                    log.warning("%s. The files with these rows are kept; the writer retries with each batch", behind)
                self.behind[target] = behind
            else:
                self.behind.pop(target, None)

    def atomic_commits(self, journal: Journal) -> tuple[TableCommit[Marker], ...]:
        """Return the routed tables' commits to make with the default table's. Raises `CommitUnavailable`."""
        if self.atomic is False:
            return ()
        self.commit()
        targets = sorted(journal.routed if self.atomic is True else journal.routed & self.atomic)
        if missing := [str(self.behind.get(t) or f"{t}: {self.refused[t]}") for t in targets if t in self.waiting]:
            raise CommitUnavailable(
                f"batch {journal.key} of stream {journal.stream!r} must be committed to several tables in one step, "
                f"but a table is behind: {missing[0]}"
            )
        commits = []
        for target in targets:
            self._create_if_waiting(target, [journal])
            commits.append(self._make_commit(target, [journal], merges={}))
        return tuple(commits)

    def _try_commit(self, target: Target) -> _Failure | None:
        is_retry = target in self.refused
        retry_policy = RetryPolicy(total_s=RETRY_TIMEOUT_BEHIND_S if is_retry else RETRY_TIMEOUT_S)
        handle = self.tables.handle(target)
        if is_retry:
            handle.forget()
        try:
            if is_retry:
                self.waiting[target] = drop_discarded(
                    self.waiting[target], load_missing_table_note(self.tables, target)
                )
            if not (journals := self.waiting[target]):
                return None  # an operator discarded the rows
            self._create_if_waiting(target, journals)
            waited, late = 0, is_retry or self._has_inherited_files(target)
            if late:
                missing = missing_journals(self.tables, handle.current(), journals)
                _check_files_exist(self.tables, missing, target=target)
                waited = _row_count(missing, target)
            self._commit_missing(target, journals, retry_policy=retry_policy)
            delete_waiting_files(self.tables, journals, target)
            if late:
                sweep_merged(self.tables, journals, target)
            if waited:
                log.warning("table %s received %s that had been waiting for it", target, format_count(waited, "row"))
                self.on_late_rows(waited)
        except Exception as error:  # catalogs' clients raise anything, and the other tables must continue
            log.debug("the commit to table %s failed", target, exc_info=True)
            missing = self.waiting[target]
            if self._has_inherited_files(target) and isinstance(error, NoSuchTableError | TableLost):
                try:
                    missing = journals_never_committed(self.tables, target, missing)
                except Exception:  # as above: without the table's metadata, all waiting batches count as missing
                    log.debug("cannot determine which batches table %s had", target, exc_info=True)
            return _Failure(explain_error(error, self.tables.stream, target), missing)
        return None

    def _has_inherited_files(self, target: Target) -> bool:
        return any(journal.key.epoch < self.epoch for journal in self.waiting[target])

    def _create_if_waiting(self, target: Target, journals: Sequence[Journal]) -> None:
        if self.make is not None and has_waiting_files(self.tables, journals, target):
            self.make(target, journals)

    def _commit_missing(self, target: Target, journals: Sequence[Journal], *, retry_policy: RetryPolicy) -> None:
        """Commit a table's missing files: appended batches as one snapshot, merged batches one by one."""
        merges = self.merges.setdefault(target, {})
        while True:
            marker = require_marker(self.tables.handle(target).current(), self.tables.stream)
            later = later_journals(marker, journals)
            if not later:
                del self.merges[target]
                return
            if any(file.content in MERGING_MODES for journal in later for file in journal.staged_for(target)):
                later = later[:1]
            commit = self._make_commit(target, later, merges=merges)
            with suppress(_TableRecreated):
                commit_snapshots((commit,), retry_policy=retry_policy)

    def _make_commit(
        self, target: Target, journals: Sequence[Journal], *, merges: dict[UUID, MergeWriter]
    ) -> TableCommit[Marker]:
        """Return a commit of these journals' files. `merges` keeps the table's refused merges, by table UUID."""
        tables, handle = self.tables, self.tables.handle(target)
        table = handle.current()
        files = tuple(file for journal in journals for file in files_for_table(tables, table, journal, target))
        prepared_for = handle.current().metadata.table_uuid

        def decide(table: Table, _: Marker | None) -> Marker | Done[Marker]:
            marker = require_marker(table, tables.stream)
            if table.metadata.table_uuid != prepared_for:
                raise _TableRecreated(
                    f"table {target} was recreated during the commit: its rows must be rewritten for the new table"
                )
            check_routed_not_rolled_back(table.metadata, marker, table=target)
            if len(later_journals(marker, journals)) < len(journals):
                return Done(marker)  # another writer has committed some of these batches: the rest is prepared again
            if not files_fit(table.metadata, files):
                raise SchemaIncompatible(
                    f"rows that wait for table {target} were written for a schema or partition spec that the table no "
                    "longer has. If a column was made required since then, make it optional again"
                )
            return reduce(_advance_marker, journals, marker)

        summary = {
            "frazil.operation": "follow",
            "frazil.records": str(sum(file.records for file in files)),
            "frazil.commit-record": tables.journals.path(journals[-1].key),
        }
        if len(journals) > 1:
            summary[FIRST_RECORD] = tables.journals.path(journals[0].key)
        merge, refused = prepare_merge(tables, journals[0], files), merges.get(prepared_for)
        if merge is not None:
            merge = merges[prepared_for] = refused if refused and refused.changes == merge.changes else merge
        return prepare_commit(tables, handle, decide, files=files, merge=merge, summary=summary)


def make_lagging_table(target: Target, journals: Sequence[Journal], explanation: Explanation) -> LaggingTable:
    since_ms = min(journal.created_at_ms for journal in journals)
    rows = _row_count(journals, target)
    return LaggingTable(target, since_ms, len(journals), rows, explanation)


def _row_count(journals: Iterable[Journal], target: Target) -> int:
    return sum(file.records for journal in journals for file in journal.staged_for(target))


def decided_journals(tables: StreamTables, marker: Marker) -> Iterator[Journal]:
    """Yield the journals of batches in the default table that a routed table may be missing, newest first."""
    uuid = str(tables.main.current().metadata.table_uuid)
    for journal in tables.journals.records(newest_first=True):
        if marker.routed is not None and journal.key <= marker.routed:
            return
        # A discarded batch has no journal.
        if (journal.stream, journal.table_uuid) == (tables.stream, uuid) and marker.has_committed(journal.key):
            yield journal


def _advance_marker(marker: Marker, journal: Journal) -> Marker:
    ends = {p.topic_partition: p.end for p in journal.progress}
    advanced = marker.with_epoch(journal.key.epoch).with_batch(journal.key)
    source = merge_identities(marker.source, journal.source)
    return dataclasses.replace(advanced, key=journal.key, offsets={**marker.offsets, **ends}, source=source)


def require_marker(table: Table, stream: str) -> Marker:
    """Return the stream's marker in a routed table. Raises CommitUnavailable if it is missing."""
    marker, name = read_marker(table.metadata.properties, stream), ".".join(table.name())
    if marker is None:
        raise CommitUnavailable(
            f"table {name} has no marker of stream {stream!r}: the table was dropped and recreated, or the marker was "
            "removed",
            remedy=f"To continue with the table as it is, run `frazil route {stream} --give-up {name}`",
        )
    return marker


def check_routed_not_rolled_back(metadata: TableMetadata, marker: Marker, *, table: Target) -> None:
    """Raise RolledBack if a routed table was rolled back. `frazil reset` does not change routed tables."""
    try:
        check_ancestry(metadata, marker, table=table)
    except RolledBack as error:
        raise RolledBack(
            f"table {table} was rolled back to before the last commit of stream {marker.stream!r}: snapshot "
            f"{marker.snapshot_id} is no longer in the table's main branch",
            remedy="Set the branch to that snapshot again, or continue with the table as it is: "
            f"`frazil route {marker.stream} --give-up {table}`",
        ) from error


def _check_files_exist(tables: StreamTables, journals: Sequence[Journal], *, target: Target) -> None:
    """Raise CommitUnavailable if a file of the commit does not exist."""
    missing = find_missing_files(tables, (file for journal in journals for file in journal.staged_for(target)))
    if missing:
        raise CommitUnavailable(
            f"{format_count(len(missing), 'file')} with rows for table {target} cannot be found: {missing[:3]}"
        )


def missing_journals(tables: StreamTables, table: Table, journals: Sequence[Journal]) -> Sequence[Journal]:
    marker = try_read_marker(table.metadata.properties, tables.stream)
    return journals if marker is None else later_journals(marker, journals)


def explain_error(error: Exception, stream: str, target: Target) -> Explanation:
    if isinstance(error, NoSuchTableError):
        return Explanation(
            "the table is not in the catalog: it was dropped or renamed",
            f"Restore it, or continue with a new, empty table: `frazil route {stream} --give-up {target}`",
        )
    return explain_table_error(error)
