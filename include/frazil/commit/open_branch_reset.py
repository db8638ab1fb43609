"""What a reset does with rows of open windows: they stay where the stream does not read them again, and after a
rollback of main, or where somebody moved their branch, they are put back."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.committer import StreamTables
from frazil.commit.history import ancestors
from frazil.commit.marked_update import OPEN_SNAPSHOT
from frazil.commit.marker import BatchKey, open_branch
from frazil.commit.open_branch import BranchChange, files_of
from frazil.commit.reset import Offsets, Standing
from frazil.commit.rules import head_of
from frazil.errors import RolledBack


def after_reset(table: Table, tables: StreamTables, seen: Standing, target: Offsets) -> BranchChange | None:
    """The open branch once the stream goes on at `target`; None where it has none.

    Raises `RolledBack` where rows of open windows are gone that the stream would not read again.
    """
    metadata, name = table.metadata, open_branch(tables.stream)
    accepted = seen.marker is None or all(target.get(tp, o) >= o for tp, o in seen.marker.offsets.items())
    head, expected = head_of(metadata, name), _expected(metadata, seen, accepted=accepted)
    base = head if expected is None else metadata.snapshot_by_id(expected)
    if base is None and expected is not None:
        if not accepted:
            raise RolledBack(
                f"table {tables.main.identifier} lost rows of open windows of stream {tables.stream!r}: snapshot "
                f"{expected} of branch {name!r} was expired. `frazil reset {tables.stream} --to marker` accepts that; "
                "reset once more then, to a position before those windows, to read them again"
            )
        base = head
    if base is None:
        return None if expected is None else BranchChange(None, ends=True)
    manifests = base.manifests(table.io)
    again = [m for m in manifests if _read_again(m, table, tables, target)]
    stays = tuple(m for m in manifests if m not in again)
    return BranchChange(base, stays, files_of(again, table.io), drops=True, ends=not stays)


def _expected(metadata: TableMetadata, seen: Standing, *, accepted: bool) -> int | None:
    """The head of the branch that belongs to what main holds; None where nothing is known of one."""
    if seen.marker is None:
        return None
    if not seen.rolled_back or accepted:
        return seen.marker.open_snapshot_id
    summaries = (s.summary for s in ancestors(metadata) if s.summary)
    newest = next((s for s in summaries if s.get("frazil.stream") == seen.marker.stream), None)
    text = newest.get(OPEN_SNAPSHOT) if newest else None
    return int(text) if text else None


def _read_again(manifest: ManifestFile, table: Table, tables: StreamTables, target: Offsets) -> bool:
    """Whether all records of the batch, of which its files are, come at or after the new position.

    A batch that lies on both sides stays, and its later rows come twice, as those do that are in main.
    """
    records = [tables.journals.get(key) for key in _batches(f.file_path for f in files_of([manifest], table.io))]
    return bool(records) and all(
        record is not None and all(target.get(p.topic_partition, p.end) <= p.start for p in record.progress)
        for record in records
    )


def _batches(paths: Iterable[str]) -> set[BatchKey]:
    """By the folder that a batch stages its files in (`settle.batch_folder`)."""
    found = (path.rsplit("/", 3)[-3:-1] for path in paths)
    return {BatchKey(int(epoch), int(batch)) for epoch, batch in found if epoch.isdigit() and batch.isdigit()}
