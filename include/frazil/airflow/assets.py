"""Defines the assets of frazil's DAGs. The partition key of a window's event is the window's key."""

from __future__ import annotations

from airflow.sdk import Asset

AGAIN_PREFIX = "frazil.again."
GROUP = "frazil"
HEALTH = Asset("frazil.health", group=GROUP)
"""Gets an event when an alert fires or resolves. Its store keeps state between measurements."""


def partition_asset(table: str) -> Asset:
    """Return the asset that gets one event for each window of the table, when it is first complete."""
    return Asset(table, group=GROUP)


def again_asset(aggregation: str) -> Asset:
    """Return the asset that gets one event, with the day as its key, for each day to aggregate again."""
    return Asset(f"{AGAIN_PREFIX}{aggregation}", group=GROUP)


def reopened_asset(table: str) -> Asset:
    """Return the asset that gets one event for each new revision of a window that late rows reopened."""
    return Asset(f"{table}.reopened", group=GROUP)
