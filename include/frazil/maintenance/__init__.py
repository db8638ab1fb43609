"""Maintains tables next to their writers: health, alerts, compaction, manifests, expiry, orphan files. Pure functions
decide which actions run; Spark runs the heavy ones. Every commit is a compare-and-swap. In a conflict, the writer's
commit wins.
"""

from __future__ import annotations
