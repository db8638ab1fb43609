"""Exports tables, streams and windows as gauges in Airflow's metrics: StatsD (with tags) or OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from frazil.maintenance.health import TableHealth
from frazil.partitions.completeness import Cursor

log = logging.getLogger(__name__)


def export_health(measured: Mapping[str, TableHealth | str | None], active: Iterable[Mapping[str, Any]]) -> None:
    counts = dict.fromkeys(measured, 0)
    for alert in active:
        counts[alert["table"]] = counts.get(alert["table"], 0) + 1
    for name, count in counts.items():
        _export("frazil.table.alerts", count, table=name)
    for name, health in measured.items():
        if not isinstance(health, TableHealth):
            continue
        for gauge in (
            *("data_files", "data_bytes", "delete_files", "rows", "manifests", "manifest_list_bytes_per_file"),
            *("metadata_bytes", "snapshots"),
        ):
            _export(f"frazil.table.{gauge}", getattr(health, gauge), table=name)
        for stream in health.streams:
            tags = {"table": name, "stream": stream.name}
            if stream.lag is not None:
                _export("frazil.stream.lag", stream.lag, **tags)
            if stream.last_commit_at_ms is not None:
                _export("frazil.stream.last_commit_timestamp_seconds", stream.last_commit_at_ms / 1000, **tags)


def export_windows(table: str, cursor: Cursor | None) -> None:
    if cursor is not None:
        _export("frazil.windows.complete_through_timestamp_seconds", cursor.through_us / 1_000_000, table=table)
        _export("frazil.windows.held", len(cursor.held), table=table)


def _export(name: str, value: float, **tags: str) -> None:
    from airflow.sdk.observability import stats  # a parsed DAG file needs no metrics

    try:
        stats.gauge(name, value, tags=tags)
    except Exception as error:  # anything that the backend raises; a task does not fail for a number
        log.info("cannot export the gauge %s: %r", name, error)
