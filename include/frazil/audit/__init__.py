"""Checks that every record of Kafka is in the table or its dead letters exactly once."""

from __future__ import annotations
