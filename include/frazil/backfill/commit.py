"""Commits chunks to a backfill's branch, which is the fence, and publishes the branch on main in one commit.

Every commit asserts that the branch still has the expected snapshot, or does not exist. The dead-letter table's branch
is published after main. If a run is interrupted between the two publications, the next run does the second one.
All these commits are in this module, because each relies on the checks of the others.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.backfill.request import BackfillRequest
from frazil.backfill.routes import backfill_summary, commit_to_routed_tables, staged_files, writer_for_older_files
from frazil.backfill.rules import (
    already_ended_message,
    check_files_fit,
    check_no_open_windows,
    check_not_abandoned,
    check_not_reset,
    check_owned,
    ended_during_start_message,
    lost_races_message,
    next_epoch,
    read_further_message,
    replaced_message,
    staged_spans,
)
from frazil.commit.backfill_records import (
    BackfillMarker,
    BackfillRecord,
    BackfillState,
    backfill_folder,
    backfill_journals,
    branch_name,
    chunk_topic_ids,
    committed_chunks,
    list_given_up_targets,
    load_record,
    property_name,
    read_backfill,
    record_path,
    staging_stream,
)
from frazil.commit.commit_checks import check_same_source
from frazil.commit.compare_and_swap import Change, Done, TableCommit, TableHandle, commit_snapshots, swap
from frazil.commit.dead_letter_counts import Reason, Reasons, reasons_summary
from frazil.commit.history import merge_counts, windows_summary
from frazil.commit.journal import Journal
from frazil.commit.marked_update import BranchRemoval, require_unchanged
from frazil.commit.marker import BatchKey, read_marker
from frazil.commit.merging import MERGING_MODES, MergeWriter
from frazil.commit.row_changes import RowChangeWriter, change_after_replay, read_new_errors
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folders, discard_batch, sweep_batch
from frazil.errors import CommitUnavailable, Fenced, FrazilError, StaleBatch, WriterBusy
from frazil.history.recorder import record_action
from frazil.ingest.contract import StagedFile, Target, is_routed
from frazil.offsets.spans import Offsets, spans_overlap
from frazil.spec.units import format_count
from frazil.table.branches import summary_value
from frazil.table.parallel import run_in_parallel
from frazil.table.tables import may_delete_files

log = logging.getLogger(__name__)

BackfillStep = Callable[[Table, BackfillMarker | None], "BackfillMarker | Done[BackfillMarker]"]
"""Returns the new marker for a table and its current marker, or `Done` if nothing must be committed."""


@dataclass(slots=True)
class BackfillCommitter:
    """Commits one epoch of one backfill. Each run has its own epoch."""

    tables: StreamTables
    own_tables: StreamTables
    """The stream's tables, with this backfill's own staging folders and journals."""
    backfill: BackfillMarker

    @classmethod
    def begin(
        cls, tables: StreamTables, request: BackfillRequest, *, continuing_id: str | None = None
    ) -> BackfillCommitter:
        """Begin the backfill, or the next epoch of an interrupted backfill, and settle its unfinished commits.

        No earlier epoch can commit afterwards. Raises WriterBusy if another backfill is open, and Fenced if another one
        has just ended. Raises BackfillAbandoned if an operator abandoned the run's backfill, or the backfill
        `continuing_id`.
        """
        ended = finish_ended_backfill(tables)

        def begin_epoch(_: Table, last: BackfillMarker | None) -> BackfillMarker:
            if continuing_id:
                check_not_abandoned(last, continuing_id)
            if last is not None and not last.is_open and last.id != ended:
                raise Fenced(ended_during_start_message(last))
            return next_epoch(last, request)

        backfill = _commit_marker(tables, tables.main, begin_epoch)
        committer = cls(tables, _staging_tables(tables, backfill.id), backfill)
        _commit_marker(tables, tables.dead_letters, committer._fence_dead_letters)
        committer._settle()
        if len(backfill.batches) == 1:
            committer._add_to_history(f"begins, for the run {request.run}" if request.run else "begins")
        return committer

    def journals(self) -> list[Journal]:
        return committed_chunks(self.tables.journals, self.backfill)

    def next_key(self) -> BatchKey:
        return BatchKey(self.backfill.epoch, self.backfill.batches[self.backfill.epoch] + 1)

    def commit(self, journal: Journal, *, planned: int) -> BackfillMarker:
        """Write a chunk's journal, commit the chunk, and return the new marker. Raises Fenced and StaleBatch."""
        if not self.own_tables.journals.put(journal):
            raise Fenced(replaced_message(self.backfill, f"the journal of chunk {journal.key} already exists"))
        return self._commit(journal, planned=planned)

    def mark_staged(self) -> BackfillMarker:
        staged = self._change(self.tables.main, lambda marker: dataclasses.replace(marker, state=BackfillState.STAGED))
        self.backfill = commit_snapshots((staged,), retry_policy=self.tables.retry_policy)
        return self.backfill

    def publish(self, record: BackfillRecord, *, audited_at: int, read_to: Offsets | None = None) -> BackfillMarker:
        """Append or merge the staged files on main in one commit, which ends the backfill.

        `audited_at` is the snapshot of main with which the audit compared the records. Raises
        StaleBatch if a later snapshot may contain some of the records, and WriterBusy if the stream
        has read beyond `read_to`.
        """
        path = record_path(self.tables.journals, self.backfill.id)
        self.tables.store.put(path, record.to_bytes())
        journals = self.journals()
        check = self._check_publishable(journals, audited_at, read_to)
        writer = writer_for_older_files(self.tables, staged_files(journals, "main"))
        merges = isinstance(writer, MergeWriter)
        summary = {
            **backfill_summary(record.backfill),
            "frazil.records": str(record.backfill.records),
            "frazil.rejected": str(record.backfill.rejected),
            **({"frazil.cast": str(record.backfill.cast)} if record.backfill.cast else {}),
            **({} if self.backfill.replays else reasons_summary(_sum_reasons(journals))),
            **({} if merges else windows_summary(record.late)),  # a merge reports its own counts
            "frazil.commit-record": path,
        }
        tables, staged = self.tables, self.backfill
        try:
            self.backfill = _publish(tables, tables.main, staged, written=writer, summary=summary, check=check)
        except CommitUnavailable as error:
            if (self.backfill.replays or merges) and isinstance(error.__cause__, CommitFailedException):
                raise CommitUnavailable(lost_races_message(self.backfill, str(error))) from error
            raise
        rejected_text = f", and {format_count(self.backfill.rejected, 'dead letter')}" if self.backfill.rejected else ""
        self._add_to_history(f"is published: {format_count(self.backfill.records, 'record')}{rejected_text}")
        finish_ended_backfill(self.tables)
        return self.backfill

    def _add_to_history(self, event: str) -> None:
        """Add an event to the stream's history. A replay adds its own event later, so nothing is added for a replay."""
        if not self.backfill.replays:
            _add_to_history(self.tables, f"backfill {self.backfill.id} {event}")

    def _commit(self, journal: Journal, *, planned: int) -> BackfillMarker:
        """Commit a chunk that is not committed yet: first its dead letters, then its rows."""

        def with_chunk(backfill: BackfillMarker) -> BackfillMarker | Done[BackfillMarker]:
            return Done(backfill) if backfill.has_chunk(journal.key) else backfill.with_chunk(journal, planned=planned)

        commits = [self._change(self.tables.main, with_chunk, files=journal.staged_for("main"))]
        if dead_letters := journal.staged_for("dead-letters"):
            commits.insert(0, self._change(self.tables.dead_letters, with_chunk, files=dead_letters))
        self.backfill = commit_snapshots(commits, retry_policy=self.tables.retry_policy)
        sweep_batch(self.own_tables, journal, is_merged=False)
        return self.backfill

    def _change(
        self,
        handle: TableHandle,
        change: Callable[[BackfillMarker], BackfillMarker | Done[BackfillMarker]],
        *,
        files: tuple[StagedFile, ...] = (),
    ) -> TableCommit[BackfillMarker]:
        """Return a commit that adds `files` to the branch and changes the marker, if this epoch owns it."""

        def decide(table: Table, current: BackfillMarker | None) -> BackfillMarker | Done[BackfillMarker]:
            owned = check_owned(current, self.backfill)
            check_files_fit(table, files, owned)
            return change(owned)

        # Changes are merged only by the publication; until then only their journal lists them.
        rows = tuple(file for file in files if file.content not in MERGING_MODES)
        return _prepare_commit(self.tables, handle, decide, files=rows)

    def _fence_dead_letters(self, _: Table, current: BackfillMarker | None) -> BackfillMarker | Done[BackfillMarker]:
        """Return the marker that takes over the dead-letter branch. Raises Fenced if a later epoch owns the branch."""
        if current and current.epoch >= self.backfill.epoch:  # epochs count up over all backfills of the stream
            return Done(check_owned(current, self.backfill))
        if current is None or current.id != self.backfill.id:
            return dataclasses.replace(self.backfill, batches={self.backfill.epoch: 0})
        return current.with_epoch(self.backfill.epoch)

    def _settle(self) -> None:
        """Commit the journals of interrupted epochs. Discard a journal if its offsets have been staged again."""
        for key in self.own_tables.journals.keys():  # noqa: SIM118 - not a mapping
            if self.backfill.has_chunk(key):
                continue
            uuid = str(self.tables.main.current().metadata.table_uuid)
            journal = self.own_tables.journals.entry(key, table_uuid=uuid, stream=self.tables.stream)
            if not isinstance(journal, Journal):
                continue
            if spans_overlap(staged_spans(self.journals()), staged_spans([journal])):
                self.own_tables.journals.void(key)
            else:
                self._commit(journal, planned=self.backfill.planned)
        _sweep(self.own_tables, self.backfill)

    def _check_publishable(
        self, journals: list[Journal], audited_at: int, read_to: Offsets | None
    ) -> Callable[[Table], None]:
        files = staged_files(journals, "main")

        def check(table: Table) -> None:
            check_files_fit(table, files, self.backfill)
            check_not_reset(table, self.tables.stream, audited_at, self.backfill)
            marker = read_marker(table.metadata.properties, self.tables.stream)
            check_no_open_windows(marker, files, table=self.tables.main.identifier)
            if marker is None or any(
                marker.offsets.get(p.topic_partition, -1) < p.end for j in journals for p in j.progress
            ):
                raise StaleBatch(
                    f"stream {self.tables.stream!r} was reset to before records that backfill {self.backfill.id} "
                    "has staged"
                )
            for journal in journals:
                check_same_source(marker.source, journal.source, stream=self.tables.stream)
            if read_to is not None and marker.offsets != read_to:
                raise WriterBusy(read_further_message(self.backfill))

        return check


def _publish(  # noqa: PLR0913 - what is published, and where
    tables: StreamTables,
    handle: TableHandle,
    backfill: BackfillMarker,
    *,
    written: SnapshotWriter | RowChangeWriter | MergeWriter,
    summary: Mapping[str, str],
    check: Callable[[Table], None] = lambda _: None,
) -> BackfillMarker:
    """Change main, remove the branch with its snapshots, and mark the backfill as published, in one update."""
    end = BranchRemoval(branch_name(tables.stream))

    def propose(table: Table) -> Done[BackfillMarker] | Change[BackfillMarker]:
        current = read_backfill(table.metadata.properties, tables.stream)
        if current and (current.id, current.state) == (backfill.id, BackfillState.PUBLISHED):
            return Done(current)
        published = dataclasses.replace(check_owned(current, backfill), state=BackfillState.PUBLISHED)
        check(table)
        prepared = written.prepare(table, summary=summary, now_ms=tables.clock_ms())
        return Change(
            (*prepared.requirements, require_unchanged(table, end.branch)),
            (*prepared.updates, *end.updates(table), _marker_update(published)),
            published,
        )

    handle.forget()
    return swap(handle, propose, (written, end), retry_policy=tables.retry_policy)


def abandon(tables: StreamTables, backfill: BackfillMarker, *, by: str | None = None) -> BackfillMarker:
    """End an open backfill: remove its branches, and everything that it staged. Returns its final marker.

    If `by` names an operator, the backfill's runs cannot start it again. A run that drops its own backfill passes None.
    If another backfill has begun since, changes nothing and raises FrazilError.
    """
    ended = _drop(tables, tables.main, backfill, by=by)
    if ended is None or ended.id != backfill.id:
        raise FrazilError(already_ended_message(backfill, ended))
    finish_ended_backfill(tables)
    if by and ended.abandoned_by == by:
        _add_to_history(tables, f"{'replay' if backfill.replays else 'backfill'} {backfill.id} was abandoned by {by}")
    return ended


def _add_to_history(tables: StreamTables, sentence: str) -> None:
    record_action(tables.main.current(), tables.stream, sentence, at_ms=tables.clock_ms())


def find_unfinished(tables: StreamTables) -> BackfillMarker | None:
    """Return the last backfill or replay if it is open, or its dead letters are not published yet."""
    backfill = tables.last_backfill()
    if backfill is None or backfill.is_open:
        return backfill
    if backfill.state is not BackfillState.PUBLISHED:
        return None
    dead_letters = tables.last_backfill("dead-letters")
    return backfill if dead_letters and dead_letters.id == backfill.id and dead_letters.is_open else None


def finish_ended_backfill(tables: StreamTables) -> str | None:
    """Finish the last backfill's dead letters and leftovers, if the backfill has ended. Returns its id, or None."""
    backfill = tables.last_backfill()
    if backfill is None or backfill.is_open:
        return None
    staging = _staging_tables(tables, backfill.id)
    if backfill.state is BackfillState.PUBLISHED:
        finish_published(tables, backfill)
        _sweep(staging, backfill)
        return backfill.id
    _drop(tables, tables.dead_letters, backfill, by=backfill.abandoned_by)
    if may_delete_files(tables.main.current().properties):  # otherwise another table may share the branch's files
        _sweep(staging, dataclasses.replace(backfill, batches={}))
    folder = backfill_folder(tables.journals, backfill.id)
    tables.store.delete([record_path(tables.journals, backfill.id), *(f.path for f in tables.store.list_files(folder))])
    return backfill.id


def finish_published(tables: StreamTables, backfill: BackfillMarker) -> None:
    """Finish a published backfill or replay: commit to routed tables and the dead-letter table, then delete leftovers.

    A backfill adds its rejected records to the dead-letter table. A replay removes the dead letters that became rows,
    and adds a new error to each dead letter that failed again.
    """
    own_chunks = committed_chunks(tables.journals, backfill)
    rejected = staged_files(own_chunks, "dead-letters")
    last = tables.last_backfill("dead-letters")
    if last is not None and last.id == backfill.id and last.is_open:
        commit_to_routed_tables(tables, backfill, own_chunks)
        written: SnapshotWriter | RowChangeWriter = SnapshotWriter(rejected)
        if backfill.replays:
            record, ids = load_record(tables.journals, backfill), chunk_topic_ids(own_chunks)
            errors = read_new_errors(tables.dead_letters.current(), rejected)
            written = RowChangeWriter(change_after_replay(backfill.stream, record.replayed, ids, errors))
        _publish(tables, tables.dead_letters, last, written=written, summary=backfill_summary(backfill))
    waited = [f.path for journal in own_chunks for f in journal.files if is_routed(f.target)]
    copies = tables.store.list_files(backfill.request["files"]) if backfill.replays else []
    tables.store.delete([*waited, *(f.path for f in copies)])
    if backfill.replays:
        tables.store_of("dead-letters").delete([f.path for f in rejected])


def count_changes(tables: StreamTables, backfill: BackfillMarker) -> Counter[str]:
    """Return what a backfill's merges did to the rows of all its tables, by outcome. Omits expired snapshots."""
    staged = {file.target for chunk in committed_chunks(tables.journals, backfill) for file in chunk.files}
    changed = staged - {"dead-letters"} - list_given_up_targets(tables.journals, backfill.id)
    counts = Counter[str]()

    def load_snapshots(target: Target) -> Sequence[Snapshot]:
        try:
            return tables.handle(target).refresh().metadata.snapshots
        except NoSuchTableError:  # a routed table that was dropped
            return ()

    for snapshot in chain.from_iterable(run_in_parallel(load_snapshots, sorted(changed))):
        if summary_value(snapshot, "frazil.backfill") == backfill.id:
            counts.update(merge_counts(snapshot.summary))
    return counts


def _sum_reasons(own_chunks: Iterable[Journal]) -> Reasons:
    reasons: dict[str, Reason] = {}
    for name, reason in (item for journal in own_chunks for item in journal.reasons.items()):
        reasons[name] = reasons.get(name, Reason(0)) + reason
    return reasons


def _sweep(tables: StreamTables, backfill: BackfillMarker) -> None:
    """Void the keys of uncommitted chunks. Then delete the staged files that no committed chunk lists."""
    staged = [batch_folders(tables.store_of(t), table.refresh(), tables.stream) for t, table in tables.targets.items()]
    keys = {key for folders in staged for key, _ in folders}
    for key in sorted(keys):
        journal = tables.journals.get(key)
        if backfill.has_chunk(key):
            if journal is not None:
                sweep_batch(tables, journal, is_merged=not backfill.is_open)
        elif not backfill.is_open or (journal is None and tables.journals.void_if_absent(key)):
            discard_batch(tables, key)


def _staging_tables(tables: StreamTables, backfill_id: str) -> StreamTables:
    journals = backfill_journals(tables.journals, backfill_id)
    return dataclasses.replace(tables, stream=staging_stream(tables.stream, backfill_id), journals=journals)


def _commit_marker(tables: StreamTables, handle: TableHandle, decide: BackfillStep) -> BackfillMarker:
    return commit_snapshots((_prepare_commit(tables, handle, decide),), retry_policy=tables.retry_policy)


def _prepare_commit(
    tables: StreamTables, handle: TableHandle, decide: BackfillStep, *, files: tuple[StagedFile, ...] = ()
) -> TableCommit[BackfillMarker]:
    writer = SnapshotWriter(files, branch=branch_name(tables.stream))

    def propose(table: Table) -> Done[BackfillMarker] | Change[BackfillMarker]:
        backfill = decide(table, read_backfill(table.metadata.properties, tables.stream))
        if isinstance(backfill, Done):
            return backfill
        summary = {"frazil.operation": "backfill-stage", "frazil.backfill": backfill.id}
        prepared = writer.prepare(table, summary=summary, now_ms=tables.clock_ms())
        return Change(prepared.requirements, (*prepared.updates, _marker_update(backfill)), backfill)

    handle.forget()
    return TableCommit(handle, propose, (writer,))


def _drop(
    tables: StreamTables, handle: TableHandle, backfill: BackfillMarker, *, by: str | None = None
) -> BackfillMarker | None:
    """Mark the backfill as abandoned, and remove its branch. Call this before deleting the backfill's files."""
    end = BranchRemoval(branch_name(tables.stream))

    def propose(table: Table) -> Done[BackfillMarker | None] | Change[BackfillMarker | None]:
        current = read_backfill(table.metadata.properties, tables.stream)
        if current is None or current.id != backfill.id:
            return Done(current)
        is_dropped = current.state is BackfillState.ABANDONED and not current.abandoned_by
        if not current.is_open and not (by and is_dropped):
            return Done(current)
        ended = current.as_abandoned(by)
        return Change((require_unchanged(table, end.branch),), (*end.updates(table), _marker_update(ended)), ended)

    handle.forget()
    return swap(handle, propose, (end,), retry_policy=tables.retry_policy)


def _marker_update(backfill: BackfillMarker) -> SetPropertiesUpdate:
    return SetPropertiesUpdate(updates={property_name(backfill.stream): backfill.to_property()})
