"""How long a trigger has to wait before it may fire."""

from __future__ import annotations

SETTLED_SECONDS = 15.0
"""If a trigger fires before the executor has reported the end of the task's first half, which takes some seconds,
Airflow 3.3 may take that report for the end of the second half: it kills that one, and retries a task that has failed
for good."""
