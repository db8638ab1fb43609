"""Operators, triggers and DAG factories: the only package of frazil that imports Airflow. Names are loaded on first
use, so a DAG file loads only the modules that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frazil.extras import require_module

if TYPE_CHECKING:
    from frazil.airflow.aggregations.dag import daily_dag_id as daily_dag_id
    from frazil.airflow.aggregations.dag import daily_dags as daily_dags
    from frazil.airflow.aggregations.dag import reopened_dag_id as reopened_dag_id
    from frazil.airflow.audits.dag import audit_asset as audit_asset
    from frazil.airflow.audits.dag import audit_dag as audit_dag
    from frazil.airflow.backfills import backfill_dag as backfill_dag
    from frazil.airflow.dag_ids import partition_asset as partition_asset
    from frazil.airflow.dag_ids import reopened_asset as reopened_asset
    from frazil.airflow.dag_ids import writer_dag_id as writer_dag_id
    from frazil.airflow.dead_letters import dead_letters_dag as dead_letters_dag
    from frazil.airflow.declared_streams import check_declarations as check_declarations
    from frazil.airflow.health.dag import health_dag as health_dag
    from frazil.airflow.maintenance.dag import maintenance_dag as maintenance_dag
    from frazil.airflow.notifications import each_alert as each_alert
    from frazil.airflow.partitions.dag import partition_dags as partition_dags
    from frazil.airflow.partitions.sensor import PartitionCompleteSensor as PartitionCompleteSensor
    from frazil.airflow.writers.dag import writer_dags as writer_dags
    from frazil.airflow.writers.operator import WriterOperator as WriterOperator
    from frazil.airflow.writers.trigger import WriterTrigger as WriterTrigger
    from frazil.spec.routed_stream import partitions_dag_id as partitions_dag_id

_NAMES = {
    "frazil.airflow.aggregations.dag": "daily_dag_id daily_dags reopened_dag_id",
    "frazil.airflow.audits.dag": "audit_asset audit_dag",
    "frazil.airflow.backfills": "backfill_dag",
    "frazil.airflow.dag_ids": "partition_asset reopened_asset writer_dag_id",
    "frazil.airflow.dead_letters": "dead_letters_dag",
    "frazil.airflow.declared_streams": "check_declarations",
    "frazil.airflow.health.dag": "health_dag",
    "frazil.airflow.maintenance.dag": "maintenance_dag",
    "frazil.airflow.notifications": "each_alert",
    "frazil.airflow.partitions.dag": "partition_dags",
    "frazil.airflow.partitions.sensor": "PartitionCompleteSensor",
    "frazil.airflow.writers.dag": "writer_dags",
    "frazil.airflow.writers.operator": "WriterOperator",
    "frazil.airflow.writers.trigger": "WriterTrigger",
    "frazil.spec.routed_stream": "partitions_dag_id",
}
MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each public name."""

require_module("airflow")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
