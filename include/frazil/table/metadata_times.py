"""Keeps the times in a table's metadata in order, even if a host's clock is fast.

Iceberg's Java library refuses metadata in which a time is more than a minute before the time of an earlier entry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import StagedTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry

from frazil import clock

log = logging.getLogger(__name__)

E = TypeVar("E", SnapshotLogEntry, MetadataLogEntry)

MAX_CLOCK_LEAD_MS = 60_000


def next_ms(metadata: TableMetadata, now_ms: int) -> int:
    """Return the time (ms) of the next change: now, or just after the metadata's latest time."""
    return max(now_ms, _newest_ms(metadata) + 1)


def order_times(previous: TableMetadata, current: TableMetadata) -> TableMetadata:
    """Return `current` with a later time than `previous`, and with both logs in order of time."""
    if current == previous:
        return current
    return current.model_copy(
        update={
            "last_updated_ms": max(_newest_ms(previous) + 1, _newest_ms(current)),
            "snapshot_log": _clamp_times(current.snapshot_log),
            "metadata_log": _clamp_times(current.metadata_log),
        }
    )


def keep_times_in_order(catalog: Catalog) -> Catalog:
    """Make each change through this catalog later than the changes before it. REST servers set their own times."""
    if isinstance(catalog, MetastoreCatalog):
        stage, warned = catalog._update_and_stage_table, set()

        def stage_in_order(current: Any, *change: Any) -> StagedTable:
            staged = stage(current, *change)
            if current is not None:
                staged.metadata = order_times(current.metadata, staged.metadata)
                ahead_ms = staged.metadata.last_updated_ms - clock.now_ms()
                if ahead_ms > MAX_CLOCK_LEAD_MS and current.name() not in warned:
                    warned.add(current.name())
                    log.warning(
                        "table %s was changed by a host whose clock is %d s ahead of this host's clock. To keep the "
                        "order, frazil gives newer changes even later times. Until this host's clock catches up, "
                        "Spark, Trino and other JVM engines cannot commit to the table (compaction and expiry fail). "
                        "Synchronise the hosts' clocks",
                        *(".".join(current.name()), ahead_ms // 1000),
                    )
            return staged

        catalog._update_and_stage_table = stage_in_order  # type: ignore[method-assign, assignment]
    return catalog


def _newest_ms(metadata: TableMetadata) -> int:
    entries: Iterable[Any] = chain(metadata.snapshots, metadata.snapshot_log, metadata.metadata_log)
    newest: int = max([metadata.last_updated_ms, *(entry.timestamp_ms for entry in entries)])
    return newest


def _clamp_times(log: Sequence[E]) -> list[E]:
    """Return the log entries. A time below the previous entry's is raised to that time."""
    times = accumulate((entry.timestamp_ms for entry in log), max)
    return [
        entry if entry.timestamp_ms == at_ms else entry.model_copy(update={"timestamp_ms": at_ms})
        for entry, at_ms in zip(log, times, strict=True)
    ]
