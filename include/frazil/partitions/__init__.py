"""Watermark and completeness of event-time windows: pure decisions."""

from __future__ import annotations
