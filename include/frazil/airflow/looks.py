"""The path of the partition DAGs' trigger in Airflow databases of earlier versions; see `frazil.airflow.triggers`."""

from __future__ import annotations

from frazil.airflow.partitions.wait import CompletionTrigger as LookTrigger

__all__ = ["LookTrigger"]
