"""On executors: offset ranges of Kafka become Arrow, and Arrow becomes Parquet that no table knows yet."""

from __future__ import annotations
