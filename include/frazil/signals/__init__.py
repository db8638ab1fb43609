"""Which windows of a table are complete: decided from its metadata, and written down once in `frazil.signals`."""

from __future__ import annotations
