"""Lets a batch wait until a catalog, storage or registry is available again, or credentials are valid again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CommitUnavailable, RegistryUnavailable, TableLost
from frazil.table.storage_errors import is_credentials_expiry

log = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_TIMEOUT_S = 600.0
"""How long (s) a batch waits for a catalog, storage or registry."""
MAX_OUTAGE_WAIT_S = 30.0


def retry_during_outage(
    operation: Callable[[], T],
    failure: str,
    *,
    wait: Callable[[float], object],
    report: Callable[[str, int], None],
    prepare_retry: Callable[[], None] = lambda: None,
) -> T:
    """Call `operation`, retry it during an outage, and return its result. Expired credentials cause an immediate retry.

    `failure`, at the beginning of messages, says what cannot be done. `report` receives a message and an exit code for
    each failed try. `wait` takes seconds, and returns True if the writer is asked to end. Raises the last error then,
    after `OUTAGE_TIMEOUT_S`, or if waiting does not help.
    """
    began, expired, tries = time.monotonic(), 0, 0
    while True:
        try:
            result = operation()
        except TableLost:
            raise
        except (CommitUnavailable, RegistryUnavailable) as error:
            expired += is_credentials_expiry(error)
            if expired > 3:
                raise CommitUnavailable(
                    f"{error}. {failure}, {expired} times in a row: the batch takes longer than the catalog's "
                    "credentials are valid. Let the catalog vend them for longer, or declare smaller batches "
                    "(commit.size, commit.max-records) or more resources.cores"
                ) from error
            tries += 1
            wait_s = random.uniform(0.5, 1) * min(2.0**tries, MAX_OUTAGE_WAIT_S)
            wait_s = 0.0 if is_credentials_expiry(error) else wait_s
            left_s = began + OUTAGE_TIMEOUT_S - time.monotonic()
            if left_s < wait_s:
                raise
            sentence = f"{failure}: {error}; trying again in {wait_s:.0f} s, for {left_s:.0f} s at most"
            log.log(logging.WARNING if tries == 1 else logging.INFO, "%s", sentence)  # users see only the first one
            prepare_retry()
            report(sentence, error.exit_code)
            if wait(wait_s):
                raise
        else:
            if tries > expired:
                log.warning("the outage is over after %.0f s (%s)", time.monotonic() - began, failure)
            return result
