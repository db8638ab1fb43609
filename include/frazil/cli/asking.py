"""Asks catalogs for many tables: a catalog that does not answer costs its timeout once, not once per table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CommitUnavailable

A = TypeVar("A")

SILENT_S = 10.0
"""Seconds from which a catalog counts as silent; faster failures cost little the next time too."""


class Asking:
    """The requests of one command to catalogs, in several threads."""

    def __init__(self) -> None:
        self._silent: dict[str | None, CommitUnavailable] = {}

    def is_silent(self, catalog: str | None) -> bool:
        return catalog in self._silent

    def ask(self, catalog: str | None, step: Callable[[], A]) -> A:
        """Return what the step returns. Raises what it raises, and at once if the catalog has not answered before."""
        if (silent := self._silent.get(catalog)) is not None:
            raise silent
        began_s = time.monotonic()
        try:
            return step()
        except CommitUnavailable as error:
            if time.monotonic() - began_s >= SILENT_S:
                self._silent[catalog] = error
            raise
