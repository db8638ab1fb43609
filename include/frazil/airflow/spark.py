"""Defines the settings that all batch Spark applications in Airflow share: connection, properties file and pool."""

from __future__ import annotations

import os
from typing import Any, Literal

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

SPARK_CONNECTION = "spark_default"
PROPERTIES_FILE = f"{{{{ conn.{SPARK_CONNECTION}.extra_dejson.get('properties-file', '') }}}}"
"""Template of spark-submit's properties file, which the connection names. If it names none, Spark reads its own
spark-defaults.conf.
"""
POOL_VARIABLE = "FRAZIL_SPARK_POOL"
"""Environment variable that names the Airflow pool, which limits the number of concurrent Spark applications. Tasks of
a missing pool never start, so leave the variable empty unless the pool exists.
"""


WEIGHTS = {"aggregation": 30, "backfill": 20, "maintenance": 1}
"""Priority weights of tasks that wait for a slot in the pool: requested work comes before periodic work."""


def spark_pool_arguments(work: Literal["aggregation", "backfill", "maintenance"]) -> dict[str, Any]:
    """Return the operator arguments that put a task into the pool, with the weight of its kind of work."""
    return {
        "pool": os.environ.get(POOL_VARIABLE) or "default_pool",
        "priority_weight": WEIGHTS[work],
        "weight_rule": "absolute",
    }


class SubmitOperator(SparkSubmitOperator):
    """Airflow's SparkSubmitOperator as a separate class, so that Airflow attaches frazil's links only to frazil's
    tasks.

    See `frazil.airflow.task`.
    """

    def execute(self, context: Any) -> None:
        """Submit the application, as a child of this task in OpenLineage."""
        from frazil.airflow.lineage_parent import submit_as_parent  # a DAG file that is parsed needs none

        with submit_as_parent(context, dict(self.conf or {})) as properties:
            self.conf = properties
            super().execute(context)
