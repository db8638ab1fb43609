"""Decides which rows of open windows a reset keeps: the rows that the stream does not read again.

If main was rolled back, or an operator moved the open branch, the reset restores the branch to keep these rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.history import ancestors
from frazil.commit.journal import Journal
from frazil.commit.marked_update import OPEN_SNAPSHOT
from frazil.commit.marker import BatchKey, of_same_topics, open_branch
from frazil.commit.open_branch import BranchChange, files_of
from frazil.commit.reset import BeforeReset, Offsets
from frazil.commit.stream_tables import StreamTables
from frazil.errors import RolledBack
from frazil.kafka.identity import SourceIdentity
from frazil.table.branches import head_of


def after_reset(
    table: Table, tables: StreamTables, seen: BeforeReset, *, target: Offsets, source: SourceIdentity
) -> BranchChange | None:
    """Return the change of the open branch when the stream continues at `target` of `source`; None if there is no
    branch to change.

    Raises `RolledBack` if rows of open windows are lost that the stream would not read again.
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
    again = [m for m in manifests if _read_again(_records(m, table, tables), target, source)]
    stays = tuple(m for m in manifests if m not in again)
    return BranchChange(base, stays, files_of(again, table.io), drops=True, ends=not stays)


def _expected(metadata: TableMetadata, seen: BeforeReset, *, accepted: bool) -> int | None:
    """Return the head of the open branch that belongs to main's current state; None if that head is unknown."""
    if seen.marker is None:
        return None
    if not seen.rolled_back or accepted:
        return seen.marker.open_snapshot_id
    summaries = (s.summary for s in ancestors(metadata) if s.summary)
    newest = next((s for s in summaries if s.get("frazil.stream") == seen.marker.stream), None)
    text = newest.get(OPEN_SNAPSHOT) if newest else None
    return int(text) if text else None


def _records(manifest: ManifestFile, table: Table, tables: StreamTables) -> list[Journal | None]:
    """Return the commit records of the batches with files in a manifest, found by the batches' staging folders."""
    folders = {tuple(file.file_path.rsplit("/", 3)[-3:-1]) for file in files_of([manifest], table.io)}
    keys = [BatchKey(int(epoch), int(batch)) for epoch, batch in folders if epoch.isdigit() and batch.isdigit()]
    return [tables.journals.get(key) for key in keys]


def _read_again(records: Sequence[Journal | None], target: Offsets, source: SourceIdentity) -> bool:
    """Whether the stream will read these batches completely again, because the batches begin at or after the new
    position.

    Returns False for a batch on both sides of the position: its later rows land twice, like such rows in main.
    """
    return bool(records) and all(
        record is not None
        and bool(at := of_same_topics(target, source, record.source))
        and all(at.get(p.topic_partition, p.end) <= p.start for p in record.progress)
        for record in records
    )
