"""Deadlines for DAG runs that others depend on: a late run is reported while it is still running."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from frazil.airflow.dag_profile import late_callback

log = logging.getLogger(__name__)

OnLate = Callable[..., Awaitable[None]]
"""An async function at the top of a module that the triggerer can import, called with `sentence` and `context`."""


def deadline(interval: timedelta, *, sentence: str, on_late: OnLate | None = None) -> DeadlineAlert:
    """A run is late when it has not ended within `interval` of being queued; `sentence` says what that means."""
    callback = AsyncCallback(on_late or late_callback() or say, kwargs={"sentence": sentence})
    return DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=callback)


async def say(*, sentence: str, **_: Any) -> None:
    """The default callback: it logs the sentence in the triggerer; Airflow's UI shows the missed deadline."""
    log.error("%s", sentence)
