"""A batch Spark application as a task of frazil's."""

from __future__ import annotations

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator


class SubmitOperator(SparkSubmitOperator):
    """Airflow's own, of a class that Airflow tells from other teams' (see `frazil.airflow.task`)."""
