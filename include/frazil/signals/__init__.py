"""Decides from a table's metadata which windows are complete, and records each once in `frazil.signals`."""

from __future__ import annotations
