"""Defines the assets of frazil's DAGs. The partition key of a window's event is the window's key."""

from __future__ import annotations

from airflow.sdk import Asset

AGAIN_PREFIX = "frazil.again."
"""The prefix of the name of an asset that `again_asset` returns; the aggregation's name follows."""
GROUP = "frazil"
"""The group of all of frazil's assets. Airflow lists the assets of a group together."""
HEALTH = Asset("frazil.health", group=GROUP)
"""The asset that receives an event when an alert fires or resolves. Its store keeps state between measurements."""


def partition_asset(table: str) -> Asset:
    """Return the asset that receives one event for each window of the table, when the window is first complete."""
    return Asset(table, group=GROUP)


def again_asset(aggregation: str) -> Asset:
    """Return the asset that receives one event for each day that an aggregation must run again.

    The event's partition key is the day.
    """
    return Asset(f"{AGAIN_PREFIX}{aggregation}", group=GROUP)


def reopened_asset(table: str) -> Asset:
    """Return the asset that receives one event for each new revision of a window that late rows reopened."""
    return Asset(f"{table}.reopened", group=GROUP)
