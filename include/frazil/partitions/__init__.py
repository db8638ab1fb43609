"""Computes the watermark, and decides which event-time windows are complete. Pure."""

from __future__ import annotations
