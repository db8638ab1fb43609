"""What pages show people who operate streams: frozen values, made by pure functions from what was read elsewhere."""

from __future__ import annotations
