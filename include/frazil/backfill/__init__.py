"""Adds records that Kafka or files have and the table is missing: plans, stages, audits, and publishes them once."""

from __future__ import annotations
