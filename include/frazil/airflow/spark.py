"""The settings that all batch Spark applications in Airflow share: connection, properties file and pool."""

from __future__ import annotations

import os
from typing import Any, Literal

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

SPARK_CONNECTION = "spark_default"
PROPERTIES_FILE = f"{{{{ conn.{SPARK_CONNECTION}.extra_dejson.get('properties-file', '') }}}}"
"""Template of the connection's properties file. If empty, Spark reads its own spark-defaults.conf."""
POOL_VARIABLE = "FRAZIL_SPARK_POOL"
"""Environment variable that names the Airflow pool of Spark applications. Tasks of a missing pool never start."""
WEIGHTS = {"aggregation": 30, "backfill": 20, "maintenance": 1}
"""Priority weights in the pool: requested work comes before periodic work."""


def spark_arguments(
    work: Literal["aggregation", "backfill", "maintenance"], conn_id: str = SPARK_CONNECTION
) -> dict[str, Any]:
    return {
        "conn_id": conn_id,
        "properties_file": PROPERTIES_FILE,
        "pool": os.environ.get(POOL_VARIABLE) or "default_pool",
        "priority_weight": WEIGHTS[work],
        "weight_rule": "absolute",
    }


class SubmitOperator(SparkSubmitOperator):
    """Airflow's spark-submit operator with frazil's links. The task is the OpenLineage parent of its application."""

    def execute(self, context: Any) -> None:
        from frazil.airflow.dag_profile import reported_errors
        from frazil.airflow.lineage_parent import submit_as_parent  # a DAG file that is parsed needs none

        with reported_errors(), submit_as_parent(context, dict(self.conf or {})) as properties:
            self.conf = properties
            super().execute(context)
