"""The path of the sensor's trigger in Airflow databases of earlier versions; see `frazil.airflow.triggers`."""

from __future__ import annotations

from frazil.airflow.partitions.sensor import PartitionCompleteSensor, PartitionTrigger

__all__ = ["PartitionCompleteSensor", "PartitionTrigger"]
