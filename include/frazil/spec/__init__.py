"""Declarations of streams: immutable models, the YAML loader, and the translation to Iceberg."""

from __future__ import annotations
