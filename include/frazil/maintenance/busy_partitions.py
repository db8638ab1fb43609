"""Finds the partitions into which upsert streams are merging batches. Compacting such a partition usually conflicts
with the next batch, which must then merge again. Recent merges show these partitions, and so do the journals of batches
that are not merged yet.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice, takewhile

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import PrimitiveType

from frazil.commit.history import commit_records
from frazil.commit.journal import JournalStore
from frazil.commit.marker import read_marker
from frazil.ingest.contract import StagedFile
from frazil.maintenance.health import PartitionKey
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.spec.model import StreamSpec
from frazil.table.storage import open_store
from frazil.table.tables import state_location

BUSY_INTERVALS = 2
"""How long a changed partition is busy, in longest commit intervals of its stream."""
MAX_BATCHES = 12
"""Maximum number of merged batches, and of unmerged batches, that are read for each stream."""


def find_busy_partitions(table: Table, maintained: MaintainedTable, *, now_ms: int) -> frozenset[PartitionKey]:
    upserts = [s for s in maintained.streams if maintained.kind is TableKind.MAIN and s.sinks.mode.replaces_rows]
    return frozenset(key for spec in upserts for key in _busy_in_stream(table, spec, now_ms=now_ms))


def _busy_in_stream(table: Table, spec: StreamSpec, *, now_ms: int) -> Iterator[PartitionKey]:
    """Yield the partitions that a stream changed recently, or will change when its staged batches are committed."""
    busy_ms = BUSY_INTERVALS * (spec.commit.longest_interval // timedelta(milliseconds=1))
    newest = (snapshot for snapshot, _ in commit_records(table.metadata, spec.name))
    recent = takewhile(lambda snapshot: now_ms - snapshot.timestamp_ms <= busy_ms, newest)
    for snapshot in islice(recent, MAX_BATCHES):
        yield from _changed_partitions(snapshot, table)
    marker = read_marker(table.properties, spec.name)
    journals = JournalStore(open_store(table.location(), table.io.properties), state_location(table, spec.name))
    settled = marker.settled if marker else None
    waiting = journals.after(settled, journals.keys(), table_uuid=str(table.metadata.table_uuid), stream=spec.name)
    for journal in islice(waiting, MAX_BATCHES):
        yield from (_partition_key(file, table) for file in journal.staged_for("main"))


def _changed_partitions(snapshot: Snapshot, table: Table) -> Iterator[PartitionKey]:
    """Yield the partitions to which a snapshot's commit added files."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.has_added_files():
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status is ManifestEntryStatus.ADDED:
                    partition = entry.data_file.partition
                    yield manifest.partition_spec_id, tuple(partition[i] for i in range(len(partition)))


def _partition_key(file: StagedFile, table: Table) -> PartitionKey:
    spec = table.metadata.specs().get(file.spec_id, PartitionSpec())
    kinds = [field.field_type for field in spec.partition_type(table.schema()).fields]
    return file.spec_id, tuple(
        from_bytes(kind, base64.b64decode(text)) if text is not None and isinstance(kind, PrimitiveType) else None
        for kind, text in zip(kinds, file.partition, strict=False)
    )
