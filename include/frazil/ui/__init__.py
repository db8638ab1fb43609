"""The operations page (arrives with its issue)."""

from __future__ import annotations
