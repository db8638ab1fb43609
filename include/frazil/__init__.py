"""frazil: writes Kafka streams into Apache Iceberg tables, exactly once, operated from Airflow."""

from __future__ import annotations

__version__ = "0.1.0"
SUPPORTED_PYTHONS = ((3, 11), (3, 13))
"""The oldest and the newest supported version of Python."""
