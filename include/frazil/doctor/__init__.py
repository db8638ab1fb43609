"""Whether this machine, and what it reaches, can run declared streams, and how each fault is mended."""

from __future__ import annotations
