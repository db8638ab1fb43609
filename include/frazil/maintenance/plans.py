"""Plans what each action would do now. Changes nothing, and starts no JVM. `frazil maintain --dry-run` shows these
plans; the PySpark application executes them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.expiry import ExpiryPlan, plan_expiry
from frazil.maintenance.busy_partitions import find_busy_partitions
from frazil.maintenance.compaction import CompactionPlan, plan_compaction
from frazil.maintenance.due import DEFAULT_MANIFEST_BYTES, MANIFEST_BYTES_PROPERTY, Action, ManifestPlan, plan_manifests
from frazil.maintenance.expiry import read_pins
from frazil.maintenance.measure import load_maintained, measure
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.partitions.completeness import complete_until_us
from frazil.signals.completion import find_feeds
from frazil.table.branches import head_of
from frazil.table.catalogs import translate_catalog_errors

MaintenancePlan = CompactionPlan | ManifestPlan | ExpiryPlan

CLOCK_SLACK_US = 3_600_000_000
"""Time until an ended partition is complete, if its times come from this host's clock."""
UNKNOWN_SLACK_US = 86_400_000_000
"""Time until an ended partition is complete, if no watermark is known."""


@dataclass(frozen=True, slots=True)
class MaintenancePlanner:
    """Plans maintenance actions on one table. Each plan loads the table.

    Raises NoSuchTableError, and any error of the catalog.
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
        with translate_catalog_errors(self.catalog.name):
            busy = find_busy_partitions(table, self.maintained, now_ms=self.now_ms)
        plan = plan_compaction(health, settings, complete_before_us=before_us, spec_id=spec_id, busy=busy)
        return table, plan

    def manifests(self) -> tuple[Table, ManifestPlan]:
        table = self._load()
        head = head_of(table.metadata)
        sizes: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for manifest in head.manifests(table.io) if head else ():
            count, size = sizes[manifest.partition_spec_id]
            sizes[manifest.partition_spec_id] = (count + 1, size + manifest.manifest_length)
        target = int(table.properties.get(MANIFEST_BYTES_PROPERTY, DEFAULT_MANIFEST_BYTES))
        return table, plan_manifests(sizes, self.maintained.settings.manifests, target_bytes=target)

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
    """Return a time (us since 1970). Partitions that end before it get no more rows, except late rows."""
    if maintained.kind is TableKind.ROUTED:  # only the main table has the watermark
        return now_ms * 1_000 - UNKNOWN_SLACK_US
    if maintained.kind is not TableKind.MAIN:
        return now_ms * 1_000 - CLOCK_SLACK_US
    known = complete_until_us(find_feeds(table, maintained.streams))
    return now_ms * 1_000 - UNKNOWN_SLACK_US if known is None else known
