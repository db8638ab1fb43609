"""Requests to catalogs for many tables. A catalog that does not respond costs its timeout once, not once per table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CommitUnavailable

A = TypeVar("A")

SILENT_S = 10.0
"""Seconds after which a failed request counts its catalog as silent. Faster failures cost little the next time too."""


class Asking:
    """The requests of one command to catalogs, from several threads."""

    def __init__(self) -> None:
        self._silent: dict[str | None, CommitUnavailable] = {}

    def is_silent(self, catalog: str | None) -> bool:
        return catalog in self._silent

    def ask(self, catalog: str | None, step: Callable[[], A]) -> A:
        """Return the result of the step.

        Raises the step's errors; raises at once if the catalog did not respond before.
        """
        if (silent := self._silent.get(catalog)) is not None:
            raise silent
        began_s = time.monotonic()
        try:
            return step()
        except CommitUnavailable as error:
            if time.monotonic() - began_s >= SILENT_S:
                self._silent[catalog] = error
            raise
