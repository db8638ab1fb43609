"""The `frazil` command."""

from __future__ import annotations
