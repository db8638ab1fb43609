"""The watermark, and the completeness of event-time windows: pure decisions."""

from __future__ import annotations
