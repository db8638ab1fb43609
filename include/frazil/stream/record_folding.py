"""Folds (compacts) a stream's old commit records in a thread of its writer, without delaying batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from frazil.commit.journal import JournalStore
from frazil.commit.marker import Marker, read_marker
from frazil.events import CommitRecordsFolded, StreamEvent
from frazil.spec.model import StreamSpec
from frazil.stream.hosting import Foldings
from frazil.table.catalogs import open_existing_catalog
from frazil.table.storage import open_store
from frazil.table.tables import state_location

log = logging.getLogger(__name__)

FOLD_INTERVAL_S = 600.0
PAUSE_S = 1.0
"""Pause (s) after each stored object, so that folding years of records does not slow batches down."""


@dataclass(slots=True)
class RecordFolding:
    """A context manager that folds a stream's old commit records in a thread with its own clients.

    If a fold is interrupted, the next one continues it.
    """

    spec: StreamSpec
    emit: Callable[[StreamEvent], None]
    others: Foldings | None = None
    """The thread that folds the records of several streams; None if this stream has its own thread."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> RecordFolding:
        if self.others is not None:
            self.others.add(self._try)
            return self
        # A daemon thread: an interruption at any point loses nothing.
        self._thread = threading.Thread(target=self._run, name="fold-records", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.others is not None:
            self.others.remove(self._try)

    def _try(self) -> None:
        try:
            self.fold()
        except Exception as error:  # catalogs and storages raise anything, and the next run tries again
            log.warning("old commit records of stream %r were not folded: %r", self.spec.name, error)

    def _run(self) -> None:
        while True:
            self._try()
            if self._over.wait(FOLD_INTERVAL_S):
                return

    def fold(self) -> int:
        """Fold old commit records, and return how many were folded. Raises the catalog's and the storage's errors."""
        table = open_existing_catalog(self.spec.table.catalog).load_table(self.spec.table.identifier)

        def marker_now() -> Marker | None:
            return read_marker(table.refresh().metadata.properties, self.spec.name)

        marker = marker_now()
        if marker is None:
            return 0
        store = open_store(table.location(), table.io.properties)
        folded = 0
        journals = JournalStore(store, state_location(table, self.spec.name))
        for count in journals.fold(marker, forgotten=lambda: marker_now() is None):
            folded += count
            if self._over.wait(PAUSE_S):
                break
        if folded:
            self.emit(CommitRecordsFolded(folded))
        return folded
