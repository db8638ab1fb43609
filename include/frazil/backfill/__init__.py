"""Records that Kafka, or files, still have and the table lacks: planned, staged, audited and published exactly once."""

from __future__ import annotations
