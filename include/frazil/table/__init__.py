"""Catalogs, tables and the storage beneath them."""

from __future__ import annotations
