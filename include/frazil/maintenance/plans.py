"""Plans what each action would do now on the current table. Changes nothing, and starts no JVM.

`frazil maintain --dry-run` shows these plans; the PySpark application executes them.

Finds busy partitions: those into which upsert streams merge batches.

A compaction of a busy partition usually loses against the next batch, and makes that batch merge again. Busy partitions
are found in the table, so it does not matter on which host its writers run. Sources are the changes of each stream's
newest batches, and the journals of batches that wait for their merge.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, takewhile

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import PrimitiveType

from frazil.commit.history import commit_records
from frazil.commit.journal import JournalStore
from frazil.commit.marker import read_marker
from frazil.ingest.contract import StagedFile
from frazil.maintenance.compaction import CompactionPlan, plan_compaction
from frazil.maintenance.due import Action
from frazil.maintenance.expiry import ExpiryPlan, plan_expiry, read_pins
from frazil.maintenance.health import PartitionKey
from frazil.maintenance.manifests import TARGET_BYTES, TARGET_PROPERTY, ManifestPlan, plan_manifests
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import MaintainedTable, TableKind, load_maintained
from frazil.partitions.completeness import complete_to
from frazil.signals.completion import feeds_of
from frazil.spec.model import StreamSpec
from frazil.table.branches import head_of
from frazil.table.catalogs import catalog_errors
from frazil.table.storage import open_store
from frazil.table.tables import state_location

MaintenancePlan = CompactionPlan | ManifestPlan | ExpiryPlan

CLOCK_SLACK_US = 3_600_000_000
"""Microseconds after the end of a partition from which it counts as complete, if the partition's times come from this
host's clock.
"""
UNKNOWN_SLACK_US = 86_400_000_000
"""Microseconds after the end of a partition from which it counts as complete without a watermark.

A stream that is gone or has not started must not keep the partition open forever.
"""


@dataclass(frozen=True, slots=True)
class MaintenancePlanner:
    """Plans the actions on one table.

    Each method loads the table, and raises NoSuchTableError and any error of the catalog.
    """

    catalog: Catalog
    maintained: MaintainedTable
    now_ms: int

    def plan(self, action: Action) -> MaintenancePlan:
        match action:
            case Action.COMPACTION:
                return self.compaction()[1]
            case Action.MANIFESTS:
                return self.manifests()[1]
            case Action.EXPIRY:
                return self.expiry()[1]

    def compaction(self) -> tuple[Table, CompactionPlan]:
        table = self._load()
        health = measure(self.catalog, self.maintained, now_ms=self.now_ms, deep=True)
        if health is None:
            raise NoSuchTableError(self.maintained.identifier)
        before_us = complete_before_us(table, self.maintained, now_ms=self.now_ms)
        settings, spec_id = self.maintained.settings.compaction, table.metadata.default_spec_id
        with catalog_errors(self.catalog.name):
            busy = busy_partitions(table, self.maintained, now_ms=self.now_ms)
        plan = plan_compaction(health, settings, complete_before_us=before_us, spec_id=spec_id, busy=busy)
        return table, plan

    def manifests(self) -> tuple[Table, ManifestPlan]:
        table = self._load()
        head = head_of(table.metadata)
        sizes: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for manifest in head.manifests(table.io) if head else ():
            count, size = sizes[manifest.partition_spec_id]
            sizes[manifest.partition_spec_id] = (count + 1, size + manifest.manifest_length)
        target = int(table.properties.get(TARGET_PROPERTY, TARGET_BYTES))
        return table, plan_manifests(sizes, self.maintained.settings.manifests, target_bytes=target)

    def expiry(self) -> tuple[Table, ExpiryPlan]:
        # The signals before the table: signals that are read too early only keep more snapshots than needed.
        pins = read_pins(self.catalog, self.maintained, now_ms=self.now_ms)
        table = self._load()
        name, settings = self.maintained.identifier, self.maintained.settings.expiry
        return table, plan_expiry(table.metadata, settings, pins, table=name, now_ms=self.now_ms)

    def _load(self) -> Table:
        with catalog_errors(self.catalog.name):
            return load_maintained(self.catalog, self.maintained)


def complete_before_us(table: Table, maintained: MaintainedTable, *, now_ms: int) -> int:
    """Return the time (us): partitions that end by then get no more rows, except late rows.

    If this is wrong, a compaction only costs more.
    """
    if maintained.kind is TableKind.ROUTED:  # only the main table has the watermark
        return now_ms * 1_000 - UNKNOWN_SLACK_US
    if maintained.kind is not TableKind.MAIN:
        return now_ms * 1_000 - CLOCK_SLACK_US
    known = complete_to(feeds_of(table, maintained.streams))
    return now_ms * 1_000 - UNKNOWN_SLACK_US if known is None else known


INTERVALS = 2
"""Number of the stream's longest commit intervals for which a partition counts as busy after a batch changed it."""
MAX_BATCHES = 12
"""Number of a stream's newest merged batches, and of its waiting batches, that are examined."""


def busy_partitions(table: Table, maintained: MaintainedTable, *, now_ms: int) -> frozenset[PartitionKey]:
    """Return the busy partitions, as (spec id, values) like `PartitionFiles.key`; empty if no stream merges into the
    table.
    """
    upserts = [s for s in maintained.streams if maintained.kind is TableKind.MAIN and s.mode == "upsert"]
    return frozenset(key for spec in upserts for key in _busy_in_stream(table, spec, now_ms=now_ms))


def _busy_in_stream(table: Table, spec: StreamSpec, *, now_ms: int) -> Iterator[PartitionKey]:
    busy_ms = INTERVALS * (spec.commit.longest_interval // timedelta(milliseconds=1))
    newest = (snapshot for snapshot, _ in commit_records(table.metadata, spec.name))
    recent = takewhile(lambda snapshot: now_ms - snapshot.timestamp_ms <= busy_ms, newest)
    for snapshot in islice(recent, MAX_BATCHES):
        yield from _changed_partitions(snapshot, table)
    marker = read_marker(table.properties, spec.name)
    journals = JournalStore(open_store(table.location(), table.io.properties), state_location(table, spec.name))
    settled = marker.settled if marker else None
    waiting = journals.after(settled, journals.keys(), table_uuid=str(table.metadata.table_uuid), stream=spec.name)
    for journal in islice(waiting, MAX_BATCHES):
        yield from (_key_of(file, table) for file in journal.staged_for("main"))


def _changed_partitions(snapshot: Snapshot, table: Table) -> Iterator[PartitionKey]:
    """Yield the partitions to which a merge added data files or delete files, not those from which it only removed
    files.
    """
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.has_added_files():
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status is ManifestEntryStatus.ADDED:
                    partition = entry.data_file.partition
                    yield manifest.partition_spec_id, tuple(partition[i] for i in range(len(partition)))


def _key_of(file: StagedFile, table: Table) -> PartitionKey:
    """Return the partition to which the rows of a change file belong."""
    spec = table.metadata.specs().get(file.spec_id, PartitionSpec())
    kinds = [field.field_type for field in spec.partition_type(table.schema()).fields]
    both = zip(kinds, file.partition, strict=False)
    return file.spec_id, tuple(
        from_bytes(kind, base64.b64decode(text)) if text is not None and isinstance(kind, PrimitiveType) else None
        for kind, text in both
    )
