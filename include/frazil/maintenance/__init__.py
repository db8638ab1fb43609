"""Maintains tables next to their writers: health, alerts, compaction, manifests, expiry, orphan files. Pure functions
decide which actions run, and Spark runs the heavy ones. Every commit is a compare-and-swap. If an action and a writer
conflict, the writer's commit wins.
"""

from __future__ import annotations
