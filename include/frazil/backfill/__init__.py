"""Lands records that Kafka or files have and the table does not: planned, staged, audited, published exactly once."""

from __future__ import annotations
