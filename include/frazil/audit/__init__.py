"""Checks that every Kafka record is stored exactly once: in the stream's table or in its dead-letter table."""

from __future__ import annotations
