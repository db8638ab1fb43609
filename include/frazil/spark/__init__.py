"""Java, jars and sessions of frazil's Spark applications."""

from __future__ import annotations
