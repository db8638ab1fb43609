"""Removes a branch of ours together with its snapshots, in one update, and then the manifests that only they had.

Snapshots that stayed behind would be in no branch's history, and would still say that they added files that main has
by now: Iceberg's incremental clean-up (until 1.9, for tables with one branch) deletes such files with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.history import ancestors
from frazil.table.storage import open_store
from frazil.table.tables import may_delete_files


@dataclass(slots=True)
class BranchEnd:
    """Ends a branch in the rounds of one swap, and then deletes the manifests that only the branch had."""

    branch: str
    also: Callable[[Snapshot], bool] = lambda _: False
    """Snapshots that it had before it was put back."""
    gone: frozenset[int] = field(default=frozenset())
    """Ids of the snapshots that the last round removes."""
    waste: frozenset[str] = field(default=frozenset())
    """Paths of manifests and manifest lists that nobody needs once those snapshots are gone."""

    @property
    def undecided(self) -> bool:
        return bool(self.waste)

    def updates(self, table: Table) -> tuple[TableUpdate, ...]:
        """The branch gone, with every snapshot of it that no other branch and no tag leads to."""
        metadata = table.metadata
        self.gone, self.waste = frozenset(), frozenset()
        if self.branch not in metadata.refs:
            return ()
        own = {s.snapshot_id for s in ancestors(metadata, self.branch)}
        elsewhere = {s.snapshot_id for name in metadata.refs if name != self.branch for s in ancestors(metadata, name)}
        own |= {s.snapshot_id for s in metadata.snapshots if self.also(s)}
        gone = [s for s in metadata.snapshots if s.snapshot_id in own - elsewhere]
        # A branch that began here, or a tag, may use the same manifests: then none of them is deleted.
        if own.isdisjoint(elsewhere):
            self.gone = frozenset(s.snapshot_id for s in gone)
            self.waste = frozenset(_written_for(gone, table.io))
        removed = RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id for s in gone])
        return (RemoveSnapshotRefUpdate(ref_name=self.branch), *((removed,) if gone else ()))

    def delete_unused(self, table: Table) -> None:
        """Nothing if a snapshot of the branch is still there: the end did not land, or somebody tagged one first."""
        if not may_delete_files(table.properties) or any(s.snapshot_id in self.gone for s in table.metadata.snapshots):
            return
        waste, self.waste = sorted(self.waste), frozenset()
        if waste:
            open_store(waste[0], table.io.properties).delete(waste)


def _written_for(snapshots: list[Snapshot], io: FileIO) -> set[str]:
    """Manifest lists and manifests. A day of commits is more than a thousand lists: they are read side by side."""
    listed = ExecutorFactory.get_or_create().map(lambda snapshot: snapshot.manifests(io), snapshots)
    return {s.manifest_list for s in snapshots} | {m.manifest_path for of in listed for m in of}
