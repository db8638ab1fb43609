"""Kafka requests other than reading records: topics, offsets, and whether a log was truncated since it was read."""

from __future__ import annotations
