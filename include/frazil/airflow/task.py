"""`@task` for frazil's DAGs: Airflow's own decorator, with operator classes of our own.

Airflow attaches a plugin's links (`frazil.airflow.task_links`) to operators by class, so our tasks get the links, and
other teams' tasks do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
from airflow.providers.standard.decorators.short_circuit import _ShortCircuitDecoratedOperator
from airflow.sdk.bases.decorator import task_decorator_factory


class FrazilTask(_PythonDecoratedOperator):
    """A function as a task."""


class FrazilShortCircuit(_ShortCircuitDecoratedOperator):
    """A function as a task. If the function returns nothing, the downstream tasks are skipped."""


def run_name(context: Any) -> str:
    """Return the name under which a run is recorded outside Airflow. All tries of a task use the same name.

    The name includes the run's date: if a run or Airflow's whole database is deleted, a later run may get the same id.
    """
    return f"{context['dag'].dag_id}/{context['run_id']} of {context['dag_run'].run_after.isoformat()}"


def task(function: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Like `airflow.sdk.task`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilTask, **settings)


def short_circuit_task(function: Callable[..., Any]) -> Any:
    """Like `airflow.sdk.task.short_circuit`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilShortCircuit)
