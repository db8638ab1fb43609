"""Checks that every record of Kafka is exactly once in the table or in the dead-letter table."""

from __future__ import annotations
