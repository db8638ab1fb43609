"""The path of the writers' trigger in Airflow databases of earlier versions: a task that deferred before goes on.

A triggerer that cannot import a stored path fails the task.
"""

from __future__ import annotations

from frazil.airflow.writers.trigger import WriterTrigger

__all__ = ["WriterTrigger"]
