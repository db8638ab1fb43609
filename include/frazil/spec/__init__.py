"""Declarations: frozen models of a stream, their loading, and their translation to Iceberg."""

from __future__ import annotations
