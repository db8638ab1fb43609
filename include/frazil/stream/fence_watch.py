"""Lets a writer without new records notice that a reset or another writer has fenced it. Commits check this anyway."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from frazil.commit.commit_checks import check_fence
from frazil.commit.marker import Marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.writer_expiry import start_thread
from frazil.table.catalogs import open_existing_catalog, translate_catalog_errors

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 30.0
"""How often a writer without commits loads its table's marker."""


@dataclass(slots=True)
class FenceWatch:
    """Checks in a thread, with its own catalog client, whether a newer epoch has fenced this one."""

    clock: Callable[[], float] = time.monotonic
    open: Callable[[str], Catalog] = open_existing_catalog
    start: Callable[[Callable[[], None]], object] = lambda work: start_thread(work, "fence")
    _checked_s: float = field(init=False)
    _catalog: Catalog | None = None
    _pending: Future[Marker | None] | None = None
    _warned: bool = False

    def __post_init__(self) -> None:
        self.postpone()

    def postpone(self) -> None:
        """Postpone the next check. Call this after a commit, because a commit also checks the fence."""
        self._checked_s = self.clock()

    def check(self, tables: StreamTables, *, epoch: int) -> None:
        """Check the last loaded marker, or start the next load if the load is due. Never waits. Raises `Fenced`."""
        waited_s, pending = self.clock() - self._checked_s, self._pending
        if pending is None:
            if waited_s >= POLL_INTERVAL_S:
                self._load_in_thread(tables)
        elif pending.done():
            self._pending, self._warned = None, False
            if (error := pending.exception()) is None:
                check_fence(pending.result(), stream=tables.stream, epoch=epoch)
            else:
                log.info("cannot check whether another writer took over stream %r: %s", tables.stream, error)
        elif waited_s >= POLL_INTERVAL_S and not self._warned:
            self._warned = True
            log.warning(
                "the catalog %r has not answered for %.0f s, so the writer cannot check whether another writer took "
                "over stream %r. It continues: check that the catalog answers",
                tables.main.catalog_name, waited_s, tables.stream,
            )  # fmt: skip

    def _load_in_thread(self, tables: StreamTables) -> None:
        self._checked_s = self.clock()
        pending: Future[Marker | None] = Future()
        self._pending = pending

        def work() -> None:
            try:
                name = tables.main.catalog_name
                with translate_catalog_errors(name):
                    if self._catalog is None:
                        self._catalog = self.open(name)
                    pending.set_result(tables.load_marker_with(self._catalog))
            except Exception as error:  # catalogs' clients raise anything
                self._catalog = None  # it may be an empty catalog that stood in for a missing file
                pending.set_exception(error)

        self.start(work)
