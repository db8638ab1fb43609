"""The operator that submits a batch Spark application."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator


class SubmitOperator(SparkSubmitOperator):
    """Airflow's SparkSubmitOperator as a class of our own, so that Airflow can tell our tasks from other teams' tasks.

    See `frazil.airflow.task`.
    """

    def execute(self, context: Any) -> None:
        """Submit the application, as a child of this task in OpenLineage."""
        from frazil.airflow.lineage_parent import as_parent  # noqa: PLC0415 - a DAG file that is parsed needs none

        with as_parent(context, dict(self.conf or {})) as properties:
            self.conf = properties
            super().execute(context)
