"""A batch Spark application as a task of frazil's."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator


class SubmitOperator(SparkSubmitOperator):
    """Airflow's own, of a class that Airflow tells from other teams' (see `frazil.airflow.task`)."""

    def execute(self, context: Any) -> None:
        """Submit it, as a child of this task in OpenLineage."""
        from frazil.airflow.lineage_parent import as_parent  # noqa: PLC0415 - a DAG file that is parsed needs none

        with as_parent(context, dict(self.conf or {})) as properties:
            self.conf = properties
            super().execute(context)
