"""Kafka requests other than reading records: topics, offsets, and whether a log is still the one that was read."""

from __future__ import annotations
