"""Declarations of streams: immutable models, loading them from YAML, and translating them to Iceberg."""

from __future__ import annotations
