"""Backfills plan, stage and audit records that are missing from the table, and publish them once."""

from __future__ import annotations
