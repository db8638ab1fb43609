"""The end of a branch of ours: its snapshots go with it, in the same update, and then the manifests that only they had.

Left behind they would lie outside of every branch's history, and go on saying that they added files which main has by
now: Iceberg's incremental clean-up (until 1.9, of tables with one branch) deletes those with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.history import ancestors
from frazil.table.tables import may_delete_files

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BranchEnd:
    """Ends a branch in each round of one swap; `clean` then removes what the round that landed made waste."""

    branch: str
    also: Callable[[Snapshot], bool] = lambda _: False
    """Snapshots that it had before it was put back."""
    waste: frozenset[str] = field(default=frozenset())

    def updates(self, table: Table) -> tuple[TableUpdate, ...]:
        """The branch gone, with every snapshot of it that no other branch and no tag leads to."""
        metadata, self.waste = table.metadata, frozenset()
        if self.branch not in metadata.refs:
            return ()
        own = {s.snapshot_id for s in ancestors(metadata, self.branch)}
        elsewhere = {s.snapshot_id for name in metadata.refs if name != self.branch for s in ancestors(metadata, name)}
        own |= {s.snapshot_id for s in metadata.snapshots if self.also(s)}
        gone = [s for s in metadata.snapshots if s.snapshot_id in own - elsewhere]
        # Whoever branched off from it, or tagged it, may have its manifests: then they are nobody's to delete here.
        if own.isdisjoint(elsewhere):
            self.waste = frozenset(_written_for(gone, table.io))
        removed = RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id for s in gone])
        return (RemoveSnapshotRefUpdate(ref_name=self.branch), *((removed,) if gone else ()))

    def clean(self, table: Table) -> None:
        """Best effort, once the end has landed in `table`: what stays is an orphan."""
        for path in self.waste if may_delete_files(table.properties) else ():
            try:
                table.io.delete(path)
            except FileNotFoundError:
                continue
            except Exception as error:
                log.warning("%s of the ended branch %s was left behind: %r", path, self.branch, error)
        self.waste = frozenset()


def _written_for(snapshots: list[Snapshot], io: FileIO) -> set[str]:
    """Manifest lists and manifests. A day of commits is more than a thousand lists: they are read side by side."""
    listed = ExecutorFactory.get_or_create().map(lambda snapshot: snapshot.manifests(io), snapshots)
    return {s.manifest_list for s in snapshots} | {m.manifest_path for of in listed for m in of}
