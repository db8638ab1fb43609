"""Operators, triggers and DAG factories: the only room that imports Airflow.

What users import stands here, and is loaded when it is asked for: a DAG file loads no more than it names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.airflow.assets import partition_asset, reopened_asset
    from frazil.airflow.audits import audit_asset, audit_dag_id, audit_dags
    from frazil.airflow.backfills import backfill_dag
    from frazil.airflow.dags import writer_dag_id, writer_dags
    from frazil.airflow.daily import daily_dag_id, daily_dags, reopened_dag_id
    from frazil.airflow.declared import check_declarations
    from frazil.airflow.health import health_dag
    from frazil.airflow.maintenance import maintenance_dag_id, maintenance_dags
    from frazil.airflow.operators import WriterOperator
    from frazil.airflow.partitions import partition_dags, partitions_dag_id
    from frazil.airflow.sensors import PartitionCompleteSensor
    from frazil.airflow.triggers import WriterTrigger

__all__ = [
    "PartitionCompleteSensor",
    "WriterOperator",
    "WriterTrigger",
    "audit_asset",
    "audit_dag_id",
    "audit_dags",
    "backfill_dag",
    "check_declarations",
    "daily_dag_id",
    "daily_dags",
    "health_dag",
    "maintenance_dag_id",
    "maintenance_dags",
    "partition_asset",
    "partition_dags",
    "partitions_dag_id",
    "reopened_asset",
    "reopened_dag_id",
    "writer_dag_id",
    "writer_dags",
]

_HOMES = {
    "PartitionCompleteSensor": "frazil.airflow.sensors",
    "WriterOperator": "frazil.airflow.operators",
    "WriterTrigger": "frazil.airflow.triggers",
    "audit_asset": "frazil.airflow.audits",
    "audit_dag_id": "frazil.airflow.audits",
    "audit_dags": "frazil.airflow.audits",
    "backfill_dag": "frazil.airflow.backfills",
    "check_declarations": "frazil.airflow.declared",
    "partition_asset": "frazil.airflow.assets",
    "partition_dags": "frazil.airflow.partitions",
    "partitions_dag_id": "frazil.airflow.partitions",
    "reopened_asset": "frazil.airflow.assets",
    "daily_dag_id": "frazil.airflow.daily",
    "daily_dags": "frazil.airflow.daily",
    "reopened_dag_id": "frazil.airflow.daily",
    "health_dag": "frazil.airflow.health",
    "maintenance_dag_id": "frazil.airflow.maintenance",
    "maintenance_dags": "frazil.airflow.maintenance",
    "writer_dag_id": "frazil.airflow.dags",
    "writer_dags": "frazil.airflow.dags",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
