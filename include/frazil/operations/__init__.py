"""The content of operators' pages about streams: frozen values that pure functions build from data read elsewhere."""

from __future__ import annotations
