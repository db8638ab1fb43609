"""Defines `@task` for frazil's DAGs. Airflow attaches a plugin's links (`frazil.airflow.task_links`) by operator class,
so frazil's tasks have their own classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
from airflow.providers.standard.decorators.short_circuit import _ShortCircuitDecoratedOperator
from airflow.sdk import get_current_context
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from frazil.errors import FrazilError

log = logging.getLogger(__name__)

RESULT_KEY = "frazil_result"
"""The XCom with the sentence that the operations page shows as a task's result."""
MAX_RESULT_CHARACTERS = 1_000


def report(sentence: str) -> None:
    """Log a task's result, and store it for the operations page."""
    log.info("%s", sentence)
    _store(sentence)


def _store(sentence: str) -> None:
    """Store a sentence for the operations page. If that fails, the task still counts as it ended."""
    try:
        get_current_context()["ti"].xcom_push(key=RESULT_KEY, value=sentence[:MAX_RESULT_CHARACTERS])
    except Exception:  # whatever Airflow raises
        log.warning("cannot store the task's result for the operations page", exc_info=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Store why a task fails or is skipped, for the operations page."""
    try:
        yield
    except Exception as error:
        _store(str(error) if isinstance(error, AirflowException) else f"{type(error).__name__}: {error}")
        raise


class FrazilTask(_PythonDecoratedOperator):
    def execute(self, context: Any) -> Any:
        with reported_errors():
            return super().execute(context)


class FrazilShortCircuit(_ShortCircuitDecoratedOperator):
    """Skips the downstream tasks if the function returns nothing."""

    def execute(self, context: Any) -> Any:
        """Call the function, and store its error."""
        with reported_errors():
            return super().execute(context)


def run_name(context: Any) -> str:
    """Return the name that identifies a run outside Airflow, the same for all tries.

    It includes the run's date, because ids may be used again.
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
