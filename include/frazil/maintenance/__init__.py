"""Keeps tables in shape without fighting their writers: health, alerts, compaction, manifests, expiry, orphans.

What is to be done is decided by pure functions of what was measured (`health`), each with a reason; Spark does the
heavy part (`spark_apps/maintain_table.py`). Correctness never rests on who runs when: every commit is a
compare-and-swap, and the writer's always wins.
"""

from __future__ import annotations
