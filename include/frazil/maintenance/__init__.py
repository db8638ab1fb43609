"""Keeps tables in shape without conflicts with their writers: health, alerts, compaction, manifests, expiry, orphans.

Pure functions decide what to do from measurements (`health`), each with a reason; Spark does the heavy part
(`spark_apps/maintain_table.py`). Correctness never depends on timing: every commit is a compare-and-swap, and the
writer's commit always wins.
"""

from __future__ import annotations
