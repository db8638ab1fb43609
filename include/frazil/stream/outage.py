"""Lets a batch wait until a catalog, storage or registry is available again, or until credentials are valid."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CommitUnavailable, RegistryUnavailable, TableLost
from frazil.table.storage_mistakes import has_expired

log = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_GRACE_S = 600.0
"""Time (s) after which a batch stops waiting for a catalog or storage, as a commit does."""
MAX_OUTAGE_WAIT_S = 30.0
MAX_EXPIRIES = 3
"""Maximum number of attempts in a row of one batch that may end because its credentials expired."""
EXPIRED_REMEDY = (
    "the batch takes longer than the catalog's credentials are valid. Let the catalog vend them for longer, or declare "
    "smaller batches (commit.size, commit.max-records) or more resources.cores"
)


def retry_during_outage(
    operation: Callable[[], T],
    what: str,
    *,
    wait: Callable[[float], object],
    report: Callable[[str, int], None],
    prepare_retry: Callable[[], None] = lambda: None,
) -> T:
    """Call `operation`, retry while a service that it needs is unavailable, and return its result.

    `what` describes what cannot be done meanwhile. `prepare_retry` is called before another attempt. `report` receives
    a sentence and an exit code for each failed attempt. `wait` takes seconds, and returns a true value if the writer is
    asked to end.

    After expired credentials, the next attempt starts at once. Raises the error of `operation` if waiting does not
    help, if the writer is asked to end, or after `OUTAGE_GRACE_S`.
    """
    began, expired, tries = time.monotonic(), 0, 0
    while True:
        try:
            done = operation()
        except TableLost:
            raise
        except (CommitUnavailable, RegistryUnavailable) as error:
            expired += has_expired(error)
            if expired > MAX_EXPIRIES:
                raise CommitUnavailable(f"{error}. {what}, {expired} times in a row: {EXPIRED_REMEDY}") from error
            tries += 1
            wait_s = 0.0 if has_expired(error) else random.uniform(0.5, 1) * min(2.0**tries, MAX_OUTAGE_WAIT_S)
            left_s = began + OUTAGE_GRACE_S - time.monotonic()
            if left_s < wait_s:
                raise
            sentence = f"{what}: {error}; trying again in {wait_s:.0f} s, for {left_s:.0f} s at most"
            log.log(logging.WARNING if tries == 1 else logging.INFO, "%s", sentence)  # users see only the first one
            prepare_retry()
            report(sentence, error.exit_code)
            if wait(wait_s):
                raise
        else:
            if tries > expired:
                log.warning("the outage is over after %.0f s (%s)", time.monotonic() - began, what)
            return done
