"""Defines `@task` for frazil's DAGs. Airflow attaches a plugin's links (`frazil.airflow.task_links`) by operator class,
so frazil's tasks have their own classes.
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


class FrazilTask(_PythonDecoratedOperator): ...


class FrazilShortCircuit(_ShortCircuitDecoratedOperator):
    """Skips the downstream tasks if the function returns nothing."""


def run_name(context: Any) -> str:
    """Return a name for a run that is unique outside Airflow, and the same for all tries.

    It includes the run's date, because Airflow may reuse a run's id.
    """
    return f"{context['dag'].dag_id}/{context['run_id']} of {context['dag_run'].run_after.isoformat()}"


@contextmanager
def fail_on_user_errors() -> Iterator[None]:
    """Fail the task without retries on errors that a user has to correct. Other errors are retried."""
    try:
        yield
    except FrazilError as error:
        if error.restartable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


def task(function: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Turn a function into a task with frazil's links, as `airflow.sdk.task` does."""
    return task_decorator_factory(function, decorated_operator_class=FrazilTask, **settings)


def short_circuit_task(function: Callable[..., Any]) -> Any:
    """Turn a function into a task that may skip its downstream tasks, as `airflow.sdk.task.short_circuit` does."""
    return task_decorator_factory(function, decorated_operator_class=FrazilShortCircuit)
