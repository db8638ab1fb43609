"""Maintains tables next to their writers: health, alerts, compaction, manifests, expiry, orphan files. Pure functions
decide which actions run, and Spark runs the heavy ones. Every commit is a compare-and-swap, and the writer's always
wins.
"""

from __future__ import annotations
