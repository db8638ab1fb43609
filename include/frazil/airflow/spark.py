"""What all batch Spark applications under Airflow share: connection, properties file and pool."""

from __future__ import annotations

import os
from typing import Any, Literal

SPARK_CONNECTION = "spark_default"
PROPERTIES_FILE = f"{{{{ conn.{SPARK_CONNECTION}.extra_dejson.get('properties-file', '') }}}}"
"""Properties file of spark-submit, if the connection has one; otherwise Spark reads its own spark-defaults.conf."""
POOL_VARIABLE = "FRAZIL_SPARK_POOL"
"""Names the Airflow pool that limits how many of them run at once. Tasks of a missing pool never start, so the variable
is empty unless the pool was created."""


WEIGHTS = {"aggregation": 30, "backfill": 20, "maintenance": 1}
"""Priorities of tasks that wait for a slot: work that people wait for comes before periodic work."""


def in_spark_pool(work: Literal["aggregation", "backfill", "maintenance"]) -> dict[str, Any]:
    """The arguments that put a task into the pool, by its weight there."""
    return {
        "pool": os.environ.get(POOL_VARIABLE) or "default_pool",
        "priority_weight": WEIGHTS[work],
        "weight_rule": "absolute",
    }
