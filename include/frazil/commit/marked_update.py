"""One update of a table with a marker: a snapshot of main and, if the stream aligns its commits, one of its open
branch. The requirements cover both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from frazil.commit.adoption import forgotten
from frazil.commit.branch_end import BranchEnd
from frazil.commit.marker import Marker, open_branch, property_name
from frazil.commit.merging import MergeWriter
from frazil.commit.open_branch import BranchChange
from frazil.commit.snapshot import Base, Prepared, SnapshotWriter
from frazil.commit.swap import Change, Written
from frazil.ingest.contract import StagedFile
from frazil.table.branches import head_of

M = TypeVar("M", Marker, Marker | None)

ALIGN = "align"
OPEN_SNAPSHOT = "frazil.open-snapshot-id"
"""The key in a commit's summary for the head of the open branch at that commit, to which a reset after a rollback of
main puts the branch back."""


@dataclass(slots=True)
class MarkedUpdate:
    """Prepares the update of each round of one swap, and remembers the files that the rounds wrote."""

    stream: str
    files: Sequence[StagedFile] = ()
    merge: MergeWriter | None = None
    """Merges changes into main, instead of adding `files`."""
    written: list[Written] = field(default_factory=list)
    _main: SnapshotWriter | MergeWriter | None = None

    def prepare(
        self, table: Table, marker: M, change: BranchChange | None, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        """The next round. It writes `marker`, or removes the marker for None.

        Without a `change`, `files` go to main, and the open branch is neither asserted nor changed.
        """
        if change is not None:
            return self._prepare_both(table, marker, change, summary=summary, now_ms=now_ms)
        if self._main is None:
            self._main = self.merge or SnapshotWriter(self.files)
            self.written.append(self._main)
        prepared = self._main.prepare(table, summary=summary, now_ms=now_ms)
        return self._marked(table, prepared, marker, marker.open_snapshot_id if marker else None)

    def _prepare_both(
        self, table: Table, marker: M, change: BranchChange, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        """Prepared again in each round, because what leaves the branch and what stays may have changed."""
        name = open_branch(self.stream)
        found = head_of(table.metadata, name)
        updates: tuple[TableUpdate, ...]
        head, updates = self._branch(table, change, found, now_ms=now_ms)
        main = SnapshotWriter(change.to_main, moved=() if change.drops else change.leaves)
        self.written.append(main)
        said = {key: text for key, text in summary.items() if key != OPEN_SNAPSHOT}
        if head:
            said[OPEN_SNAPSHOT] = str(head.snapshot_id)
        prepared = main.prepare(table, summary=said, now_ms=now_ms)
        made: Change[M] = self._marked(table, prepared, marker, head.snapshot_id if head else None)
        unmoved = AssertRefSnapshotId(ref=name, snapshot_id=found.snapshot_id if found else None)
        return dataclasses.replace(made, requirements=(*made.requirements, unmoved), updates=(*made.updates, *updates))

    def _marked(self, table: Table, prepared: Prepared, marker: M, open_snapshot_id: int | None) -> Change[M]:
        made = prepared.snapshot
        if marker is None:
            removed = RemovePropertiesUpdate(removals=[property_name(self.stream)])
            noted = SetPropertiesUpdate(updates=forgotten(table.metadata.properties, self.stream))
            return Change(prepared.requirements, (*prepared.updates, removed, noted), marker)
        marker = marker.with_snapshots(made.snapshot_id, made.sequence_number or 0, open_snapshot_id=open_snapshot_id)
        proof = (marker.property_name, marker.to_property())  # it has the id of this snapshot
        return Change(
            prepared.requirements, (*prepared.updates, SetPropertiesUpdate(updates=dict([proof]))), marker, proof
        )

    def _branch(
        self, table: Table, change: BranchChange, found: Snapshot | None, *, now_ms: int
    ) -> tuple[Snapshot | None, tuple[TableUpdate, ...]]:
        """The branch's head after the change, and the updates that lead to it."""
        name = open_branch(self.stream)
        if change.ends:
            return None, self._end().updates(table)
        if not (change.joins or change.leaves) and change.base == found:
            return found, ()
        base = Base(change.stays, change.leaves, change.base.summary if change.base else None)
        writer = SnapshotWriter(change.joins, branch=name, base=base, apart=change.apart, ahead=1)
        self.written.append(writer)
        summary = {"frazil.stream": self.stream, "frazil.operation": ALIGN}
        prepared = writer.prepare(table, summary=summary, now_ms=now_ms)
        return prepared.snapshot, prepared.updates

    def _end(self) -> BranchEnd:
        """The end of the open branch, including snapshots that it had before a reset put it back."""

        def of_the_branch(snapshot: Snapshot) -> bool:
            told = snapshot.summary
            return told is not None and (told.get("frazil.stream"), told.get("frazil.operation")) == (
                self.stream,
                ALIGN,
            )

        end = BranchEnd(open_branch(self.stream), also=of_the_branch)
        self.written.append(end)
        return end
