"""Calls notifiers when a task ends. The message is in Airflow's context, under the key `frazil`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from frazil.airflow.dag_ids import is_shared, task_subject
from frazil.airflow.page.address import page_url
from frazil.clock import epoch_ms
from frazil.operations.message import Message, build_failed_task_message

log = logging.getLogger(__name__)

CONTEXT_KEY = "frazil"
MAX_ATTEMPTS = 2
"""Maximum number of attempts per notification: an incident whose end is not reported stays open."""
NO_REASON = "Airflow reports no reason (the task's process may have been killed): see the task's log"

Call = Callable[[Any], None]
"""A notifier (`airflow.sdk.BaseNotifier`), or a function; Airflow calls it with the task's context."""


def with_message(call: Call, message_of: Callable[[Any], Message | None]) -> Call:
    """Add a message to the context of `call`. Without a message, do not call it."""

    def report(context: Any) -> None:
        message = message_of(context)
        if message is not None:
            # A notifier renders its templates only once.
            copy.copy(call)({**context, CONTEXT_KEY: message})

    report.__name__ = report.__qualname__ = str(getattr(call, "__qualname__", type(call).__name__))
    return report


class EachAlert:
    """A notifier that reports each alert separately, for services with an incident per alert: see `Message.each`."""

    def __init__(self, notifier: Call) -> None:
        self.notifier = notifier

    def __call__(self, context: Any) -> None:
        unsent: Iterable[Message] = context[CONTEXT_KEY].each()
        for _ in range(MAX_ATTEMPTS):
            unsent, errors = self._send(context, unsent)
        if errors:
            raise errors[0]

    def _send(self, context: Any, messages: Iterable[Message]) -> tuple[list[Message], list[Exception]]:
        failed: dict[str, tuple[Message, Exception]] = {}
        for message in messages:
            try:
                copy.copy(self.notifier)({**context, CONTEXT_KEY: message})
            except Exception as error:
                log.exception("cannot send the notification: %s", message.title)
                failed[message.key] = message, error
        return [message for message, _ in failed.values()], [error for _, error in failed.values()]


def each_alert(notifier: Call) -> EachAlert:
    """Wrap a notifier to call it for each alert, instead of once for all alerts that fire or resolve in a run."""
    return EachAlert(notifier)


def failure_message(context: Any) -> Message:
    error = context.get("exception") or context.get("reason") or NO_REASON
    sentence = _error_message(error)
    try:
        return _task_message(context, sentence)
    except Exception:  # a context of another shape: notify anyway
        log.exception("cannot determine which task failed")
        return build_failed_task_message(
            dag_id="Airflow", task="a frazil task", stream=None, table=None, error=sentence, since_ms=None, log="",
            overview=page_url(),
        )  # fmt: skip


def _error_message(error: object) -> str:
    try:
        text = str(error).strip() or repr(error)
    except Exception:  # notify anyway
        return type(error).__name__
    # The messages of some errors are not clear without the class.
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError | OSError | AssertionError) else text


def _task_message(context: Any, error: str) -> Message:
    ti = context["ti"]
    form = getattr(context.get("dag_run"), "conf", None)
    label = getattr(ti, "rendered_map_index", None)
    dag = context.get("dag") or ti.task.dag
    form = form if isinstance(form, Mapping) else {}
    about = task_subject(ti.dag_id, ti.task_id, label=label, form=form, shared=is_shared(dag.task_ids))
    began = getattr(ti, "start_date", None)
    return build_failed_task_message(
        dag_id=ti.dag_id,
        task=f"{ti.task_id}[{label}]" if label else ti.task_id,
        stream=about.stream,
        table=about.table,
        error=error,
        since_ms=epoch_ms(began) if began else None,
        log=getattr(ti, "log_url", ""),
        overview=page_url(),
    )
