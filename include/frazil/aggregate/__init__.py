"""Runs daily aggregations. Each is declared in YAML and runs in Spark for a complete day, and again if late rows reopen
the day.
"""

from __future__ import annotations
