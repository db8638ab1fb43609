"""Deadlines of runs that others count on: who does not end in time is said, while it still runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

log = logging.getLogger(__name__)

OnLate = Callable[..., Awaitable[None]]
"""An async function at the top of a module that the triggerer can import, called with `sentence` and `context`."""


def deadline(interval: timedelta, *, sentence: str, on_late: OnLate | None = None) -> DeadlineAlert:
    """A run that has not ended so long after it was queued is late; `sentence` says what that means."""
    callback = AsyncCallback(on_late or say, kwargs={"sentence": sentence})
    return DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=callback)


async def say(*, sentence: str, **_: Any) -> None:
    """Without a callback of the user's: the triggerer's log has the sentence, and Airflow's UI the missed deadline."""
    log.error("%s", sentence)
