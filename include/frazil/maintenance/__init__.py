"""Maintains tables without conflicts with their writers: health, alerts, compaction, manifests, expiry, orphan files.

Pure functions measure a table and decide which actions to run, each with a reason (`frazil health`). Spark runs the
heavy actions (`spark_apps/maintain_table.py`). Correctness never depends on timing: every commit is a compare-and-swap,
and the writer's commit always wins.
"""

from __future__ import annotations
