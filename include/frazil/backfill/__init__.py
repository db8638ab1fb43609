"""Writes records that Kafka or files have and the table misses: planned, staged, audited, and published exactly
once.
"""

from __future__ import annotations
