"""Daily aggregations. Each is declared in YAML and runs in Spark for a complete day, and again if the day is
reopened.
"""

from __future__ import annotations
