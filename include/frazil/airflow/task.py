"""`@task` for frazil's DAGs: Airflow's own, of classes that tell our tasks from those of other teams.

Airflow gives a plugin's links (`frazil.airflow.task_links`) to operators by class.
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
    """A function as a task that skips those after it where it returns nothing."""


def run_name(context: Any) -> str:
    """What a task calls its run where it is recorded outside Airflow: one name for all its tries.

    A run that was deleted, or whose database was, leaves its id to another one: only the moment tells them apart.
    """
    return f"{context['dag'].dag_id}/{context['run_id']} of {context['dag_run'].run_after.isoformat()}"


def task(function: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Like `airflow.sdk.task`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilTask, **settings)


def short_circuit_task(function: Callable[..., Any]) -> Any:
    """Like `airflow.sdk.task.short_circuit`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilShortCircuit)
