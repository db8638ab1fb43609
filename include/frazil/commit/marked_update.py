"""Builds the update that changes a table together with its marker.

The update adds a snapshot to main and, with `commit.align: watermark`, a snapshot to the open branch. It requires that
both branches are unchanged. This module also removes branches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.commit_checks import forgotten_property
from frazil.commit.compare_and_swap import Change, Done, TableCommit, TableHandle, WrittenFiles, commit_snapshots, swap
from frazil.commit.history import WINDOWS_KEY, ancestors
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.marker import Marker, open_branch_name, property_name, read_marker
from frazil.commit.merging import MERGING_MODES, MergeWriter
from frazil.commit.open_branch import BranchChange
from frazil.commit.snapshot import BaseManifests, PreparedSnapshot, SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.errors import SpecError
from frazil.ingest.contract import StagedFile
from frazil.partitions.windows import EPOCH
from frazil.table.branches import head_of, summary_value
from frazil.table.storage import open_store
from frazil.table.tables import may_delete_files

M = TypeVar("M", Marker, Marker | None)

ALIGN_OPERATION = "align"
OPEN_SNAPSHOT_KEY = "frazil.open-snapshot-id"
"""Summary key for the open branch's head. If main is rolled back, a reset restores the branch to this head."""


@dataclass(slots=True)
class MarkedUpdate:
    """Prepares the update for each attempt of one swap, and records the attempts' files."""

    stream: str
    files: Sequence[StagedFile] = ()
    merge: MergeWriter | None = None
    """Merges changes into main; `files` are then not added."""
    written: list[WrittenFiles] = field(default_factory=list)
    _main: SnapshotWriter | MergeWriter | None = None

    def prepare(
        self, table: Table, marker: M, change: BranchChange | None, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        """Return the next attempt's change. Unless the open branch changes, main gets all `files`."""
        if change is not None:
            return self._prepare_both(table, marker, change, summary=summary, now_ms=now_ms)
        if self._main is None:
            self._main = self.merge or SnapshotWriter(self.files)
            self.written.append(self._main)
        prepared = self._main.prepare(table, summary=summary, now_ms=now_ms)
        return self._with_marker(table, prepared, marker, marker.open_snapshot_id if marker else None)

    def _prepare_both(
        self, table: Table, marker: M, change: BranchChange, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        name = open_branch_name(self.stream)
        head = head_of(table.metadata, name)
        head_id, branch_updates = self._change_branch(table, change, head, now_ms=now_ms)
        main = SnapshotWriter(change.to_main, moved=() if change.drops else change.leaving_files)
        self.written.append(main)
        entries = {key: text for key, text in summary.items() if key != OPEN_SNAPSHOT_KEY}
        if head_id is not None:
            entries[OPEN_SNAPSHOT_KEY] = str(head_id)
        prepared = main.prepare(table, summary=entries, now_ms=now_ms)
        to_branch: tuple[TableUpdate, ...] = branch_updates(prepared.snapshot)
        marked: Change[M] = self._with_marker(table, prepared, marker, head_id)
        unmoved = AssertRefSnapshotId(ref=name, snapshot_id=head.snapshot_id if head else None)
        return dataclasses.replace(
            marked, requirements=(*marked.requirements, unmoved), updates=(*marked.updates, *to_branch)
        )

    def _with_marker(
        self, table: Table, prepared: PreparedSnapshot, marker: M, open_snapshot_id: int | None
    ) -> Change[M]:
        head = prepared.snapshot
        if marker is None:
            removed = RemovePropertiesUpdate(removals=[property_name(self.stream)])
            noted = SetPropertiesUpdate(updates=forgotten_property(table.metadata.properties, self.stream))
            return Change(prepared.requirements, (*prepared.updates, removed, noted), marker)
        marker = marker.with_snapshots(head.snapshot_id, head.sequence_number or 0, open_snapshot_id=open_snapshot_id)
        proof = (marker.property_name, marker.to_property())  # it has the id of this snapshot
        return Change(
            prepared.requirements, (*prepared.updates, SetPropertiesUpdate(updates=dict([proof]))), marker, proof
        )

    def _change_branch(
        self, table: Table, change: BranchChange, head: Snapshot | None, *, now_ms: int
    ) -> tuple[int | None, Callable[[Snapshot], tuple[TableUpdate, ...]]]:
        """Return the id of the open branch's new head (None if the branch ends), and a function.

        Given main's snapshot, the function returns the updates of the open branch.
        """
        name = open_branch_name(self.stream)
        if change.removes_branch:

            def is_branch_snapshot(snapshot: Snapshot) -> bool:
                expected = ("frazil.stream", self.stream), ("frazil.operation", ALIGN_OPERATION)
                return all(summary_value(snapshot, key) == text for key, text in expected)

            end = BranchRemoval(open_branch_name(self.stream), is_former_snapshot=is_branch_snapshot)
            self.written.append(end)
            return None, lambda _: end.updates(table)
        if not (change.joining_files or change.leaving_files) and change.base == head:
            return head.snapshot_id if head else None, lambda _: ()
        base = BaseManifests(
            change.remaining_manifests, change.leaving_files, change.base.summary if change.base else None
        )
        head_id = table.metadata.new_snapshot_id()
        writer = SnapshotWriter(
            change.joining_files, branch=name, base=base, manifest_key=change.manifest_key, snapshot_id=head_id
        )
        self.written.append(writer)
        summary = {"frazil.stream": self.stream, "frazil.operation": ALIGN_OPERATION}
        return head_id, lambda main: writer.prepare(table, summary=summary, now_ms=now_ms, before=main).updates


Decide = Callable[[Table, Marker | None], "Marker | Done[Marker]"]
"""Returns the next marker, given a table and its marker. Returns `Done` if nothing must be written."""


def preview(tables: StreamTables, handle: TableHandle, decide: Decide) -> Marker | Done[Marker]:
    return swap(
        handle,
        lambda table: Done(decide(table, read_marker(table.metadata.properties, tables.stream))),
        retry_policy=tables.retry_policy,
    )


def commit_marker(tables: StreamTables, handle: TableHandle, decide: Decide, *, summary: Mapping[str, str]) -> Marker:
    commit = prepare_commit(tables, handle, decide, files=(), summary=summary)
    return commit_snapshots((commit,), retry_policy=tables.retry_policy)


def prepare_commit(  # noqa: PLR0913 - the contents and the target of a commit
    tables: StreamTables,
    handle: TableHandle,
    decide: Decide,
    *,
    files: tuple[StagedFile, ...],
    summary: Mapping[str, str],
    merge: MergeWriter | None = None,
    branch_change: Callable[[Table, Marker], BranchChange | None] | None = None,
) -> TableCommit[Marker]:
    """Return a commit of the marker that `decide` returns, with `files` or the result of `merge`."""
    update = MarkedUpdate(tables.stream, files, merge)

    def propose(table: Table) -> Done[Marker] | Change[Marker]:
        current = read_marker(table.metadata.properties, tables.stream)
        marker = decide(table, current)
        if isinstance(marker, Done):
            return marker
        change = branch_change(table, marker) if branch_change else None
        entries = {**_position_summary(marker), **summary}
        if change or merge:  # main does not receive exactly the batch's rows
            entries.pop(WINDOWS_KEY, None)
        proposed = update.prepare(table, marker, change, summary=entries, now_ms=tables.clock_ms())
        removals = handle.expiry.take_updates(handle.load_with) if handle.expiry else ()
        return dataclasses.replace(proposed, updates=(*proposed.updates, *removals))

    return TableCommit(handle, propose, update.written)


def prepare_merge(tables: StreamTables, journal: Journal, files: Sequence[StagedFile]) -> MergeWriter | None:
    """Return the merge of a batch's files, if necessary. Raises SpecError if the declared mode has changed."""
    merging = tables.merging
    staged = tuple(file for file in files if file.content in MERGING_MODES)
    if not staged:
        return None
    needs = MERGING_MODES[staged[0].content].declared
    if merging is None or merging.mode.declared != needs:
        raise SpecError(
            f"batch {journal.key} of stream {journal.stream!r} was staged for {needs}, which the stream no longer "
            f"declares. Declare {needs} again, start the stream, and keep it running until the batch is committed"
        )
    traced = bool(journal.rejected) or journal.newest_dead_letters != NO_DEAD_LETTERS
    return MergeWriter(journal.stream, staged, merging, tables.landed, traced)


def _position_summary(marker: Marker) -> dict[str, str]:
    epoch, batch = map(str, marker.key)
    position = {"frazil.stream": marker.stream, "frazil.epoch": epoch, "frazil.batch-id": batch}
    if marker.watermark_us is not None:
        position["frazil.watermark-ms"] = str(marker.watermark_us // 1000)
    if marker.max_event_times_us:
        newest_us = max(marker.max_event_times_us.values())
        position["max-event-time"] = f"{newest_us} us"
        with suppress(OverflowError):  # a date after the year 9999
            position["max-event-time"] = (EPOCH + timedelta(microseconds=newest_us)).isoformat()
    if marker.open_snapshot_id is not None:
        position[OPEN_SNAPSHOT_KEY] = str(marker.open_snapshot_id)
    return position


@dataclass(slots=True)
class BranchRemoval:
    """Removes a branch with its snapshots. If the snapshots stayed, Iceberg's clean-up would delete main's files."""

    branch: str
    is_former_snapshot: Callable[[Snapshot], bool] = lambda _: False
    """Selects snapshots that the branch had before a reset moved it back."""
    removed_ids: frozenset[int] = field(default=frozenset())
    waste: frozenset[str] = field(default=frozenset())

    @property
    def may_have_unused_files(self) -> bool:
        return bool(self.waste)

    def updates(self, table: Table) -> tuple[TableUpdate, ...]:
        metadata = table.metadata
        self.removed_ids, self.waste = frozenset(), frozenset()
        if self.branch not in metadata.refs:
            return ()
        ids = {s.snapshot_id for s in ancestors(metadata, self.branch)}
        elsewhere = {s.snapshot_id for name in metadata.refs if name != self.branch for s in ancestors(metadata, name)}
        ids |= {s.snapshot_id for s in metadata.snapshots if self.is_former_snapshot(s)}
        left = [s for s in metadata.snapshots if s.snapshot_id in ids - elsewhere]
        # A branch or tag that began here may share manifests, so none of them is deleted.
        if ids.isdisjoint(elsewhere):
            self.removed_ids = frozenset(s.snapshot_id for s in left)
            listed = ExecutorFactory.get_or_create().map(lambda snapshot: snapshot.manifests(table.io), left)
            self.waste = frozenset({s.manifest_list for s in left} | {m.manifest_path for each in listed for m in each})
        removed = RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id for s in left])
        return (RemoveSnapshotRefUpdate(ref_name=self.branch), *((removed,) if left else ()))

    def delete_unused(self, table: Table) -> None:
        """Delete the unused manifests, unless the removal did not land, or a tag refers to a removed snapshot."""
        if not may_delete_files(table.properties) or any(
            s.snapshot_id in self.removed_ids for s in table.metadata.snapshots
        ):
            return
        waste, self.waste = sorted(self.waste), frozenset()
        if waste:
            open_store(waste[0], table.io.properties).delete(waste)


def require_unchanged(table: Table, branch: str) -> AssertRefSnapshotId:
    head = head_of(table.metadata, branch)
    return AssertRefSnapshotId(ref=branch, snapshot_id=head.snapshot_id if head else None)
