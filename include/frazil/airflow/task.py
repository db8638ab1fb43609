"""Defines `@task` for frazil's DAGs: Airflow's decorator with frazil's operator classes.

Airflow attaches a plugin's links (`frazil.airflow.task_links`) to operators by class, so only frazil's tasks get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
from airflow.providers.standard.decorators.short_circuit import _ShortCircuitDecoratedOperator
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.exceptions import AirflowFailException

from frazil.errors import FrazilError


class FrazilTask(_PythonDecoratedOperator):
    """Operator of frazil's `@task`. A separate class, so that Airflow attaches frazil's links only to these tasks."""


class FrazilShortCircuit(_ShortCircuitDecoratedOperator):
    """Like `FrazilTask`. If the function returns nothing, the downstream tasks are skipped."""


def run_name(context: Any) -> str:
    """Return the name under which a run is recorded outside Airflow. All tries of a task use the same name.

    The name includes the run's date: if a run or Airflow's whole database is deleted, a later run may get the same id.
    """
    return f"{context['dag'].dag_id}/{context['run_id']} of {context['dag_run'].run_after.isoformat()}"


@contextmanager
def fail_on_user_errors() -> Iterator[None]:
    """Fail the task without retries on errors that a user has to correct. Temporary errors are raised again, and
    retried.
    """
    try:
        yield
    except FrazilError as error:
        if error.restartable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def task(function: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Turn a function into a task, like `airflow.sdk.task`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilTask, **settings)


def short_circuit_task(function: Callable[..., Any]) -> Any:
    """Turn a function into a task that can skip the downstream tasks, like `airflow.sdk.task.short_circuit`."""
    return task_decorator_factory(function, decorated_operator_class=FrazilShortCircuit)
