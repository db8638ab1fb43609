"""Reads which snapshots a table's signals need, and estimates what an expiry frees. `frazil.commit.expiry` decides."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadata

from frazil.commit.expiry import Pins
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.signals import pins
from frazil.spec.routed_stream import view_from_table
from frazil.table.declared import DEFAULT_PROPERTIES

METADATA_PROPERTIES = ("write.metadata.delete-after-commit.enabled", "write.metadata.previous-versions-max")
"""Properties that limit the versions of `metadata.json`."""


def read_pins(catalog: Catalog, maintained: MaintainedTable, *, now_ms: int) -> Pins:
    """Read which snapshots the table's signals need. Raises MarkerUnreadable, and any error of the catalog."""
    seen = (view_from_table(spec, maintained.identifier) for spec in maintained.streams)
    if maintained.kind not in {TableKind.MAIN, TableKind.ROUTED} or not any(spec and spec.window for spec in seen):
        return Pins()
    since_ms = now_ms - maintained.settings.expiry.keep // timedelta(milliseconds=1)
    return pins.read_pins(catalog, maintained.identifier, since_ms=since_ms)


def find_missing_defaults(metadata: TableMetadata) -> dict[str, str]:
    """Return the defaults of the `METADATA_PROPERTIES` that the table does not set."""
    return {key: DEFAULT_PROPERTIES[key] for key in METADATA_PROPERTIES if key not in metadata.properties}


def estimate_bytes(metadata: TableMetadata, expired: Collection[int], *, files: int) -> int:
    """Estimate the bytes of the `files` files removed with expired snapshots, from their children's summaries."""
    gone = set(expired)
    summaries = [s.summary for s in metadata.snapshots if s.summary and s.parent_snapshot_id in gone]
    removed = sum(
        int(one.get(name) or 0) for one in summaries for name in ("deleted-data-files", "removed-delete-files")
    )
    size = sum(int(one.get("removed-files-size") or 0) for one in summaries)
    return size * files // removed if removed else 0
