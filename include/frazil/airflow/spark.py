"""What every batch Spark application of Airflow's shares: its connection, its properties file, its pool."""

from __future__ import annotations

import os

SPARK_CONNECTION = "spark_default"
PROPERTIES_FILE = f"{{{{ conn.{SPARK_CONNECTION}.extra_dejson.get('properties-file', '') }}}}"
"""Of spark-submit, if the connection names one; otherwise Spark reads its own spark-defaults.conf."""
POOL_VARIABLE = "FRAZIL_SPARK_POOL"
"""Names the Airflow pool that bounds how many of them run at once. Tasks of a pool that does not exist never start, so
that there is one only where somebody made it."""


def spark_pool() -> str:
    return os.environ.get(POOL_VARIABLE) or "default_pool"
