"""A stream's desired state and table fingerprint for its supervisor.

Reads are frequent, opens are rare; none raises.
"""

from __future__ import annotations

from collections.abc import Callable

from frazil.errors import FrazilError
from frazil.spec.model import StreamSpec
from frazil.supervise.desired import DesiredStore, open_desired, table_fingerprint
from frazil.supervise.observed import Desired, Unreadable
from frazil.table.tables import load_stream_table

RELOAD_AFTER_MS = 10_000
"""Milliseconds between two attempts to load a table that does not exist yet or cannot be read."""


class TableState:
    """Reads the desired state and table fingerprint of one stream.

    Errors become Unreadable, and the read is retried.
    """

    def __init__(self, *, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._store: DesiredStore | None = None
        self._problem: str | None = None
        self._reload_at_ms = 0
        self._fingerprint: tuple[int, str | None] = (0, None)

    def desired(self, spec: StreamSpec | None) -> Desired | Unreadable:
        """Return the desired state."""
        if spec is None:
            return Unreadable("without a spec its table is unknown")
        try:
            store = self._open(spec)
            return store.read() if store else Unreadable(self._problem or "the table is loaded again soon")
        except FrazilError as error:
            return Unreadable(f"{type(error).__name__}: {error}")
        except Exception as error:  # catalogs and storage raise what their clients raise
            self._store = None
            return Unreadable(f"{type(error).__name__}: {error}")

    def fingerprint(self, spec: StreamSpec) -> str | None:
        """Return `table_fingerprint`; None if the table is missing or cannot be read."""
        read_at_ms, known = self._fingerprint
        if self._clock() - read_at_ms < RELOAD_AFTER_MS:
            return known
        try:
            table = load_stream_table(spec)
            known = table_fingerprint(table, spec.name) if table is not None else None
        except Exception:  # read again soon; until then nothing counts as changed
            known = None
        self._fingerprint = (self._clock(), known)
        return known

    def store(self, spec: StreamSpec) -> DesiredStore:
        """Return the store for a user's action. Raises the errors of `open_desired`."""
        if self._store is None or not self._store.beside_table:
            self._store = open_desired(spec)
        return self._store

    def forget(self) -> None:
        """Load the table again next time, because it may have been created."""
        self._store, self._reload_at_ms = None, 0

    def _open(self, spec: StreamSpec) -> DesiredStore | None:
        if (self._store is None or not self._store.beside_table) and self._clock() >= self._reload_at_ms:
            self._reload_at_ms = self._clock() + RELOAD_AFTER_MS
            self._problem = None
            try:
                self._store = open_desired(spec)
            except Exception as error:  # as in `desired`; kept until the next load
                self._store = None
                self._problem = f"{type(error).__name__}: {error}"
        return self._store
