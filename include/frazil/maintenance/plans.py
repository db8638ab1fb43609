"""Plans what each action would do now. Considers the partitions that merges keep busy, and the snapshots that signals
need. Changes nothing, and starts no JVM. `frazil maintain --dry-run` shows these plans; the PySpark application
executes them.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, takewhile

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from frazil import signals
from frazil.commit.expiry import ExpiryPlan, Pins, plan_expiry
from frazil.commit.history import commit_records
from frazil.commit.journal import JournalStore
from frazil.commit.marker import read_marker
from frazil.commit.staging_targets import read_size
from frazil.ingest.contract import StagedFile
from frazil.maintenance.compaction import CompactionPlan, plan_compaction
from frazil.maintenance.due import DEFAULT_MANIFEST_BYTES, Action, ManifestPlan, plan_manifests
from frazil.maintenance.health import PartitionFiles, PartitionKey
from frazil.maintenance.measure import group_manifests, list_added_files, load_maintained, measure
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.partitions.completeness import complete_until_us
from frazil.signals.completion import find_feeds
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import view_from_table
from frazil.table.branches import head_of
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.declared_tables import DEFAULT_PROPERTIES
from frazil.table.tables import data_location

METADATA_PROPERTIES = ("write.metadata.delete-after-commit.enabled", "write.metadata.previous-versions-max")
"""Properties that limit the number of `metadata.json` versions."""


def read_pins(catalog: Catalog, maintained: MaintainedTable, *, now_ms: int) -> Pins:
    """Read which snapshots the table's signals need, if any. Raises MarkerUnreadable, and the catalog's errors."""
    views = (view_from_table(spec, maintained.identifier) for spec in maintained.streams)
    if maintained.kind not in {TableKind.MAIN, TableKind.ROUTED} or not any(spec and spec.window for spec in views):
        return Pins()
    return signals.read_pins(catalog, maintained.identifier, maintained.settings.expiry, now_ms=now_ms)


def find_missing_defaults(metadata: TableMetadata) -> dict[str, str]:
    """Return the defaults of the `METADATA_PROPERTIES` that the table does not set."""
    return {key: DEFAULT_PROPERTIES[key] for key in METADATA_PROPERTIES if key not in metadata.properties}


def estimate_bytes(metadata: TableMetadata, expired: Collection[int], *, files: int) -> int:
    """Estimate the bytes of `files` files, by the average size of files removed in this history."""
    deleted = set(expired)
    summaries = [s.summary for s in metadata.snapshots if s.summary and s.parent_snapshot_id in deleted]
    removed = sum(
        int(summary.get(name) or 0) for summary in summaries for name in ("deleted-data-files", "removed-delete-files")
    )
    size = sum(int(summary.get("removed-files-size") or 0) for summary in summaries)
    return size * files // removed if removed else 0


BUSY_INTERVALS = 2
"""A changed partition counts as busy for this number of its stream's longest commit intervals."""
MAX_BATCHES = 12
"""Maximum number of committed batches, and of staged batches, that are read for each stream."""


def find_busy_partitions(table: Table, maintained: MaintainedTable, *, now_ms: int) -> frozenset[PartitionKey]:
    """Return the partitions that upsert streams change now, where a compaction would repeat their merges."""
    upserts = [s for s in maintained.streams if maintained.kind is TableKind.MAIN and s.sinks.mode.replaces_rows]
    return frozenset(key for spec in upserts for key in _busy_in_stream(table, spec, now_ms=now_ms))


def _busy_in_stream(table: Table, spec: StreamSpec, *, now_ms: int) -> Iterator[PartitionKey]:
    """Yield the partitions that a stream changed recently, or will change with its staged batches."""
    busy_ms = BUSY_INTERVALS * (spec.commit.longest_interval // timedelta(milliseconds=1))
    newest = (snapshot for snapshot, _ in commit_records(table.metadata, spec.name))
    recent = takewhile(lambda snapshot: now_ms - snapshot.timestamp_ms <= busy_ms, newest)
    for snapshot in islice(recent, MAX_BATCHES):
        for file in list_added_files(snapshot, table, *ManifestContent):
            yield file.spec_id, tuple(file.partition[i] for i in range(len(file.partition)))
    marker = read_marker(table.properties, spec.name)
    journals = JournalStore.of_table(table, spec.name)
    settled = marker.settled if marker else None
    waiting = journals.after(settled, journals.keys(), table_uuid=str(table.metadata.table_uuid), stream=spec.name)
    for journal in islice(waiting, MAX_BATCHES):
        yield from (_partition_key(file, table) for file in journal.staged_for("main"))


def _partition_key(file: StagedFile, table: Table) -> PartitionKey:
    spec = table.metadata.specs().get(file.spec_id, PartitionSpec())
    kinds = [field.field_type for field in spec.partition_type(table.schema()).fields]
    return file.spec_id, tuple(
        from_bytes(kind, base64.b64decode(text)) if text is not None and isinstance(kind, PrimitiveType) else None
        for kind, text in zip(kinds, file.partition, strict=False)
    )


MAX_FOLDER_NAME_BYTES = 255
"""Limit of file systems."""
MAX_KEY_BYTES = 1024
"""Limit of S3."""
FILE_NAME_BYTES = 100
"""Bytes that a file's name takes, with room to spare."""


def find_long_paths(table: Table, partitions: Iterable[PartitionFiles]) -> frozenset[PartitionKey]:
    """Return the partitions whose folder Spark cannot create, because Spark names it after the partition's values."""
    with_values = table.properties.get("write.object-storage.partitioned-paths", "true").lower() == "true"
    if not with_values and table.properties.get("write.object-storage.enabled", "false").lower() == "true":
        return frozenset()
    scheme, _, location = data_location(table).rpartition("://")
    key = location.partition("/")[2]  # without the bucket

    def is_long(path: str) -> bool:
        if scheme in {"", "file"}:
            return max(map(len, path.split("/"))) > MAX_FOLDER_NAME_BYTES
        return len(f"{key}/{path}".encode()) + FILE_NAME_BYTES > MAX_KEY_BYTES

    return frozenset(partition.key for partition in partitions if is_long(partition.path))


MaintenancePlan = CompactionPlan | ManifestPlan | ExpiryPlan

HOST_CLOCK_DELAY_US = 3_600_000_000
"""Time (us) from a partition's end until it is complete, in tables whose event times come from this host's clock."""
NO_WATERMARK_DELAY_US = 86_400_000_000
"""Time (us) from a partition's end until it is complete, if the watermark is unknown."""


@dataclass(frozen=True, slots=True)
class MaintenancePlanner:
    """Plans maintenance actions on one table. Each plan loads the table, and may raise NoSuchTableError."""

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
        with translate_catalog_errors(self.catalog.name):
            busy = find_busy_partitions(table, self.maintained, now_ms=self.now_ms)
        long_paths = find_long_paths(table, health.partitions or ())
        plan = plan_compaction(
            health, settings, complete_before_us=before_us, spec_id=spec_id, busy=busy, too_long=long_paths
        )
        return table, plan

    def manifests(self) -> tuple[Table, ManifestPlan]:
        table = self._load()
        head = head_of(table.metadata)
        groups = group_manifests(head.manifests(table.io) if head else ())
        target = read_size(table, TableProperties.MANIFEST_TARGET_SIZE_BYTES, default=DEFAULT_MANIFEST_BYTES)
        return table, plan_manifests(groups, self.maintained.settings.manifests, target_bytes=target)

    def expiry(self) -> tuple[Table, ExpiryPlan]:
        # Read the signals before the table: outdated signals only keep more snapshots than needed.
        pins = read_pins(self.catalog, self.maintained, now_ms=self.now_ms)
        table = self._load()
        name, settings = self.maintained.identifier, self.maintained.settings.expiry
        return table, plan_expiry(table.metadata, settings, pins, table=name, now_ms=self.now_ms)

    def _load(self) -> Table:
        with translate_catalog_errors(self.catalog.name):
            return load_maintained(self.catalog, self.maintained)


def complete_before_us(table: Table, maintained: MaintainedTable, *, now_ms: int) -> int:
    """Return the time (us since 1970) up to which ended partitions are complete, except for late rows."""
    if maintained.kind is TableKind.ROUTED:  # only the main table has the watermark
        return now_ms * 1_000 - NO_WATERMARK_DELAY_US
    if maintained.kind is not TableKind.MAIN:
        return now_ms * 1_000 - HOST_CLOCK_DELAY_US
    complete_us = complete_until_us(find_feeds(table, maintained.streams))
    return now_ms * 1_000 - NO_WATERMARK_DELAY_US if complete_us is None else complete_us
