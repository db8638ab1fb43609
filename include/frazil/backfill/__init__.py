"""Plans, stages and audits records that are missing from a table, and publishes them once."""

from __future__ import annotations
