"""Defines the minimum wait before a trigger may fire."""

from __future__ import annotations

SETTLED_SECONDS = 15.0
"""Seconds that a trigger must wait before it fires. The executor reports the end of a task's first half (before the
deferral) after some seconds. If the trigger fires earlier, Airflow 3.3 may take this report for the end of the second
half. Airflow then kills the second half, and retries a task that has failed for good.
"""
