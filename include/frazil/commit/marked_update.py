"""One update of a table that carries a marker: a snapshot of main, and where a stream aligns its commits a second one
of its open branch, with requirements for both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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

from frazil.commit.branch_end import BranchEnd
from frazil.commit.marker import Marker, open_branch, property_name
from frazil.commit.open_branch import BranchChange
from frazil.commit.snapshot import Base, Prepared, SnapshotWriter
from frazil.commit.swap import Change, Done, Patience, TableHandle, swap
from frazil.ingest.contract import StagedFile
from frazil.table.branches import head_of

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", Marker, Marker | None)

ALIGN = "align"
OPEN_SNAPSHOT = "frazil.open-snapshot-id"
"""Of a commit's summary: the open branch's head with it. A rollback of main is followed there."""


@dataclass(slots=True)
class MarkedUpdate:
    """Prepares the update of each round of one swap, and removes what the rounds wrote for nothing."""

    stream: str
    files: Sequence[StagedFile] = ()
    rounds: int = 0
    writers: list[SnapshotWriter] = field(default_factory=list)
    end: BranchEnd | None = None
    """Of the open branch, where the last round ends it."""

    def prepare(
        self, table: Table, marker: M, change: BranchChange | None, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        """The next round, with the marker that it writes, or None to remove it.

        Without a `change`, `files` go to main, and the open branch is neither asserted nor touched.
        """
        self.rounds += 1
        self.end = None
        if change is not None:
            return self._prepare_both(table, marker, change, summary=summary, now_ms=now_ms)
        self.writers = self.writers or [SnapshotWriter(self.files)]
        prepared = self.writers[0].prepare(table, summary=summary, now_ms=now_ms)
        return self._marked(prepared, marker, marker.open_snapshot_id if marker else None)

    def made(self, snapshot_id: int) -> bool:
        """Whether a round prepared that snapshot."""
        return any(a.snapshot.snapshot_id == snapshot_id for writer in self.writers for a in writer.attempts)

    def _prepare_both(
        self, table: Table, marker: M, change: BranchChange, *, summary: Mapping[str, str], now_ms: int
    ) -> Change[M]:
        """Anew in each round: what leaves the branch, and what it goes on from, may be different."""
        name = open_branch(self.stream)
        found = head_of(table.metadata, name)
        updates: tuple[TableUpdate, ...]
        head, updates = self._branch(table, change, found, now_ms=now_ms)
        main = SnapshotWriter(change.to_main, moved=() if change.drops else change.leaves)
        self.writers.append(main)
        said = {key: text for key, text in summary.items() if key != OPEN_SNAPSHOT}
        if head:
            said[OPEN_SNAPSHOT] = str(head.snapshot_id)
        prepared = main.prepare(table, summary=said, now_ms=now_ms)
        made: Change[M] = self._marked(prepared, marker, head.snapshot_id if head else None)
        unmoved = AssertRefSnapshotId(ref=name, snapshot_id=found.snapshot_id if found else None)
        return Change((*made.requirements, unmoved), (*made.updates, *updates), made.result)

    def _marked(self, prepared: Prepared, marker: M, open_snapshot_id: int | None) -> Change[M]:
        made = prepared.snapshot
        written: TableUpdate = RemovePropertiesUpdate(removals=[property_name(self.stream)])
        if marker is not None:
            marker = marker.with_snapshots(
                made.snapshot_id, made.sequence_number or 0, open_snapshot_id=open_snapshot_id
            )
            written = SetPropertiesUpdate(updates={marker.property_name: marker.to_property()})
        return Change(prepared.requirements, (*prepared.updates, written), marker)

    def _branch(
        self, table: Table, change: BranchChange, found: Snapshot | None, *, now_ms: int
    ) -> tuple[Snapshot | None, tuple[TableUpdate, ...]]:
        """The branch's head after the change, and the updates that make it so."""
        name = open_branch(self.stream)
        if change.ends:
            return None, self._end().updates(table)
        if not (change.joins or change.leaves) and change.base == found:
            return found, ()
        base = Base(change.stays, change.leaves, change.base.summary if change.base else None)
        writer = SnapshotWriter(change.joins, branch=name, base=base, apart=change.apart, ahead=1)
        self.writers.append(writer)
        summary = {"frazil.stream": self.stream, "frazil.operation": ALIGN}
        prepared = writer.prepare(table, summary=summary, now_ms=now_ms)
        return prepared.snapshot, prepared.updates

    def _end(self) -> BranchEnd:
        """With the snapshots that it had before it was put back."""

        def of_the_branch(snapshot: Snapshot) -> bool:
            told = snapshot.summary
            return told is not None and (told.get("frazil.stream"), told.get("frazil.operation")) == (
                self.stream,
                ALIGN,
            )

        self.end = BranchEnd(open_branch(self.stream), also=of_the_branch)
        return self.end

    def swapped(self, handle: TableHandle, propose: Callable[[Table], Done[T] | Change[T]], patience: Patience) -> T:
        """Swap what `propose` prepares; however it ends, nothing unused is left behind."""
        try:
            landed = swap(handle, propose, patience=patience)
        except BaseException:
            self._clean(handle)
            raise
        if self.rounds > 1:
            self._clean(handle)
        if self.end:
            self.end.clean(handle.current())
        return landed

    def _clean(self, handle: TableHandle) -> None:
        for writer in self.writers:
            clean(writer, handle)


def clean(writer: SnapshotWriter, handle: TableHandle) -> None:
    """Best effort: what cannot be removed now costs storage, and must not hide how the commit ended."""
    if not writer.attempts and not writer.manifests:
        return
    try:
        writer.delete_unused(handle.refresh())
    except Exception as error:
        log.warning("unused manifests of %s were left behind: %r", handle.identifier, error)
