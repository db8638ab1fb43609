"""Lets a writer that commits nothing notice that it was replaced: by a reset, or by another writer.

A commit checks the epoch anyway. Without this look a writer without records would run on, and report no lag, until the
next record comes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from frazil.commit.rules import check_fence
from frazil.commit.stream_tables import StreamTables

log = logging.getLogger(__name__)

LOOK_S = 30.0
"""How often an idle writer loads its table's marker."""


@dataclass(slots=True)
class FenceWatch:
    """Of one epoch. Its first look is due `LOOK_S` after the last commit, or after it began."""

    clock: Callable[[], float] = time.monotonic
    _seen: float = field(init=False)

    def __post_init__(self) -> None:
        self.committed()

    def committed(self) -> None:
        """A commit has just checked the epoch."""
        self._seen = self.clock()

    def look(self, tables: StreamTables, *, epoch: int) -> None:
        """Load the marker, if that is due. Raises `Fenced` if it has not this epoch any more.

        A catalog that does not answer ends no writer that has nothing to commit: it is asked again the next time.
        """
        if self.clock() - self._seen < LOOK_S:
            return
        self._seen = self.clock()
        try:
            marker = tables.marker()
        except Exception as error:  # catalogs' clients raise anything
            log.info("whether another writer took over stream %r is unknown: %r", tables.stream, error)
            return
        check_fence(marker, stream=tables.stream, epoch=epoch)
