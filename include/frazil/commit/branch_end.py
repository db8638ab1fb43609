"""Removes a frazil branch and its snapshots in one update, then deletes the manifests that only these snapshots used.

The summary of a snapshot that stayed would count files that main now has as added. Iceberg's incremental clean-up (up
to version 1.9, for tables with one branch) would delete these files together with the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.history import ancestors
from frazil.table.branches import head_of
from frazil.table.storage import open_store
from frazil.table.tables import may_delete_files


@dataclass(slots=True)
class BranchEnd:
    """Removes a branch in a swap, then deletes the manifests that only this branch used."""

    branch: str
    removes_too: Callable[[Snapshot], bool] = lambda _: False
    """Selects snapshots that the branch had before a reset moved the branch back; they are removed too."""
    removed_ids: frozenset[int] = field(default=frozenset())
    """Ids of the snapshots that the last round removed."""
    waste: frozenset[str] = field(default=frozenset())
    """Paths of the manifests and manifest lists that are unused once the snapshots in `removed_ids` are removed."""

    @property
    def undecided(self) -> bool:
        return bool(self.waste)

    def updates(self, table: Table) -> tuple[TableUpdate, ...]:
        """Return the updates that remove the branch, and its snapshots that no other branch or tag has."""
        metadata = table.metadata
        self.removed_ids, self.waste = frozenset(), frozenset()
        if self.branch not in metadata.refs:
            return ()
        own = {s.snapshot_id for s in ancestors(metadata, self.branch)}
        elsewhere = {s.snapshot_id for name in metadata.refs if name != self.branch for s in ancestors(metadata, name)}
        own |= {s.snapshot_id for s in metadata.snapshots if self.removes_too(s)}
        gone = [s for s in metadata.snapshots if s.snapshot_id in own - elsewhere]
        # A branch or tag that began here may share manifests, so none of them is deleted.
        if own.isdisjoint(elsewhere):
            self.removed_ids = frozenset(s.snapshot_id for s in gone)
            self.waste = frozenset(_manifest_paths(gone, table.io))
        removed = RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id for s in gone])
        return (RemoveSnapshotRefUpdate(ref_name=self.branch), *((removed,) if gone else ()))

    def delete_unused(self, table: Table) -> None:
        """Delete the unused manifests, unless the removal did not land, or a snapshot of the branch was tagged."""
        if not may_delete_files(table.properties) or any(
            s.snapshot_id in self.removed_ids for s in table.metadata.snapshots
        ):
            return
        waste, self.waste = sorted(self.waste), frozenset()
        if waste:
            open_store(waste[0], table.io.properties).delete(waste)


def require_unchanged(table: Table, branch: str) -> AssertRefSnapshotId:
    """Return the requirement that the branch is unchanged, or still missing."""
    head = head_of(table.metadata, branch)
    return AssertRefSnapshotId(ref=branch, snapshot_id=head.snapshot_id if head else None)


def _manifest_paths(snapshots: list[Snapshot], io: FileIO) -> set[str]:
    """Return the paths of manifest lists and manifests. Reads in parallel: a day has over a thousand commits."""
    listed = ExecutorFactory.get_or_create().map(lambda snapshot: snapshot.manifests(io), snapshots)
    return {s.manifest_list for s in snapshots} | {m.manifest_path for of in listed for m in of}
