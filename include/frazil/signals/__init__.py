"""Decides from a table's metadata which windows are complete, and records each one once in `frazil.signals`."""

from __future__ import annotations
