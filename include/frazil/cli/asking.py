"""Asks catalogs for many tables: one that does not answer costs its timeout once, not once a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from frazil.errors import CommitUnavailable

A = TypeVar("A")

SILENT_S = 10.0
"""Who fails faster costs little the next time too."""


class Asking:
    """What catalogs are asked by one command, in several threads."""

    def __init__(self) -> None:
        self._silent: dict[str | None, CommitUnavailable] = {}

    def is_silent(self, catalog: str | None) -> bool:
        return catalog in self._silent

    def ask(self, catalog: str | None, step: Callable[[], A]) -> A:
        """What the step returns. Raises what it raises, and at once where the catalog has not answered before."""
        if (silent := self._silent.get(catalog)) is not None:
            raise silent
        began_s = time.monotonic()
        try:
            return step()
        except CommitUnavailable as error:
            if time.monotonic() - began_s >= SILENT_S:
                self._silent[catalog] = error
            raise
