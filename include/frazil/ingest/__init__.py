"""Runs on executors: offset ranges of Kafka become Arrow, and Arrow becomes Parquet that no table refers to yet."""

from __future__ import annotations
