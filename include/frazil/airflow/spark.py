"""What all batch Spark applications under Airflow share: connection, properties file and pool."""

from __future__ import annotations

import os

SPARK_CONNECTION = "spark_default"
PROPERTIES_FILE = f"{{{{ conn.{SPARK_CONNECTION}.extra_dejson.get('properties-file', '') }}}}"
"""For spark-submit, if the connection names one; otherwise Spark reads its own spark-defaults.conf."""
POOL_VARIABLE = "FRAZIL_SPARK_POOL"
"""Names the Airflow pool that limits how many of them run at once. Tasks of a missing pool never start, so the variable
is empty unless somebody created the pool."""


def spark_pool() -> str:
    return os.environ.get(POOL_VARIABLE) or "default_pool"
