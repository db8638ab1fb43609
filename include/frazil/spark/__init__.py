"""Java, jars and sessions for frazil's Spark applications."""

from __future__ import annotations
