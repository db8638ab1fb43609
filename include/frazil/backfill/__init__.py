"""Backfills: adds records that Kafka or files have and the table is missing. Plans, stages and audits them, and
publishes them once.
"""

from __future__ import annotations
