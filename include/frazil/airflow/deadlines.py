"""Deadlines for DAG runs, so that a late run is reported while it is still running."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any
from urllib.parse import quote

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from frazil.airflow.dag_profile import late_callback
from frazil.airflow.notifications import CONTEXT_KEY
from frazil.airflow.page.address import base_url, page_url
from frazil.operations.message import Message, build_late_run_message

log = logging.getLogger(__name__)

OnLate = Callable[..., Awaitable[None]]
"""An async function at the top level of a module that the triggerer can import.

It gets the argument `sentence`. If it has a parameter `context`, it also gets Airflow's context, with the message under
the key `frazil`.
"""


def deadline(interval: timedelta, *, sentence: str, on_late: OnLate | None = None) -> DeadlineAlert:
    """Return a deadline that reports `sentence` if a run has not ended within `interval` after it was queued."""
    target = AsyncCallback(on_late or late_callback() or log_late_run)
    callback = AsyncCallback(notify_late, kwargs={"sentence": sentence, "to": target.path})
    return DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=callback)


async def notify_late(*, sentence: str, to: str, context: Mapping[str, Any]) -> None:
    """Call the function at the import path `to` with the message, in the triggerer."""
    module, _, name = to.rpartition(".")
    on_late = getattr(import_module(module), name)
    extended = {"context": {**context, CONTEXT_KEY: _message(sentence, context.get("dag_run") or {})}}
    parameters = inspect.signature(on_late).parameters.values()
    takes_it = any(one.name == "context" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    await on_late(sentence=sentence, **(extended if takes_it else {}))


def _message(sentence: str, run: Mapping[str, Any]) -> Message:
    """Return the message about a late DAG run. `run` has the format of Airflow's REST API."""
    dag_id, run_id, queued = (str(run.get(key) or "") for key in ("dag_id", "dag_run_id", "queued_at"))
    return build_late_run_message(
        dag_id=dag_id or "a frazil DAG",
        sentence=sentence,
        since_ms=int(datetime.fromisoformat(queued).timestamp() * 1_000) if queued else None,
        run=f"{base_url()}/dags/{quote(dag_id)}/runs/{quote(run_id)}" if base_url() and run_id else "",
        overview=page_url(),
    )


async def log_late_run(*, context: Mapping[str, Any], **_: Any) -> None:
    """Log the message in the triggerer. This is the default; Airflow's UI shows the missed deadline too."""
    log.error("%s", context[CONTEXT_KEY].text)
