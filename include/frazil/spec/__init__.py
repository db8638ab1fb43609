"""Declarations of streams: immutable models, their loading from YAML, and their translation to Iceberg."""

from __future__ import annotations
