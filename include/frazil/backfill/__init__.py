"""Backfills plan, stage and audit records that the table is missing, and publish them once."""

from __future__ import annotations
