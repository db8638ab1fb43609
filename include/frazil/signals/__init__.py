"""Decides from a table's metadata which windows are complete, and records each window once in `frazil.signals`."""

from __future__ import annotations
