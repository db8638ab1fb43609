"""Catalogs, tables and their storage."""

from __future__ import annotations
