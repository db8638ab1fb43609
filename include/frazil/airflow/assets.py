"""The assets whose events say that windows of a table are complete, with the window's key as partition key."""

from __future__ import annotations

from airflow.sdk import Asset

AGAIN = "frazil.again."


def partition_asset(table: str) -> Asset:
    """Gets one event for each window of the table that is complete for the first time."""
    return Asset(table)


def again_asset(aggregation: str) -> Asset:
    """Gets an event for each day that an aggregation must run again, by the day."""
    return Asset(f"{AGAIN}{aggregation}")


def reopened_asset(table: str) -> Asset:
    """Gets one event for each window that late rows reopened, at each of its further revisions."""
    return Asset(f"{table}.reopened")
