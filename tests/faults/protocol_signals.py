"""Signals of the model's windows. frazil's assessment must match an independently computed expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any
from unittest import mock

from pyiceberg.table import Table

from frazil.commit.history import ancestors, may_add_late_rows
from frazil.commit.marker import read_markers
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain
from frazil.signals import completion
from frazil.signals.signal_table import TableSignals
from frazil.table.branches import head_of

from .protocol_kafka import window_of
from .protocol_world import MAIN, World
from .protocol_writer import SPECS


class Signals:
    """The table's signals: the cursor, and the number of rows last signalled for each window."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cursor: Cursor | None = None
        self.reported: Counter[int] = Counter()

    def observe(self, declared: set[str], *, behind: int = 0) -> None:
        """Signal complete and reopened windows, from a catalog that may be some changes behind."""
        if not declared:
            return
        table = self.world.catalog.load(MAIN, behind=behind)
        if head_of(table.metadata) not in ancestors(self.world.catalog.metadata[MAIN]):  # it was rolled back since
            table = self.world.catalog.load(MAIN)
        head = head_of(table.metadata)
        seen, rows = self._assess(table, declared), self._rows(head)
        through, passed = self.cursor.through_us if self.cursor else 0, self._passed(table, declared)
        assert all(through <= window.start_us for window in seen.decision.complete), "complete a second time"
        assert all(window.end_us <= passed for window in seen.decision.complete), "before every stream has passed it"
        self.cursor = seen.cursor
        for window in seen.decision.windows:
            self.reported[window.start_us] = rows[window.start_us]
        if self.cursor is not None and seen.decision.from_us is not None:
            assert self.cursor.through_us == max(through, Grain.HOUR.floor(passed)), "what all have passed is complete"
            self.check(rows)

    def unread(self) -> Set[int]:
        """Return main's snapshots from the head to the oldest with late rows that no signal has counted."""
        cursor, main = self.cursor, list(ancestors(self.world.catalog.metadata[MAIN]))
        late = [s for s in main if cursor and (s.sequence_number or 0) > cursor.sequence_number]
        late = [s for s in late if cursor and may_add_late_rows(s, cursor)]
        return {s.snapshot_id for s in main[: main.index(late[-1]) + 1]} if late else frozenset()

    def check(self, rows: Counter[int]) -> None:
        """Check that no late row was missed: each signalled window has as many rows as its last signal says."""
        assert self.cursor
        covered = range(self.cursor.from_us, self.cursor.through_us, Grain.HOUR.us)
        off = {start: (self.reported[start], rows[start]) for start in covered if self.reported[start] != rows[start]}
        assert not off, f"rows of windows, as said last and as they are: {off}"

    def rolled_back(self) -> None:
        """Take the current rows as signalled: a rollback signals no lost rows, but rows read again are signalled."""
        self.reported = self._rows(head_of(self.world.catalog.metadata[MAIN]))

    def _assess(self, table: Table, declared: set[str]) -> completion.Assessment:
        catalog: Any = mock.Mock(name="catalog")
        catalog.name, catalog.load_table = "default", lambda _: table
        signals = TableSignals(MAIN, self.cursor, 0, None)
        with mock.patch.object(completion.TableSignals, "load", return_value=signals):
            seen = completion.assess_table(catalog, [SPECS[stream] for stream in sorted(declared)])
        assert seen
        return seen

    def _passed(self, table: Table, declared: set[str]) -> int:
        """Return the lowest watermark of all streams, including streams that have not begun."""
        markers = read_markers(table.metadata.properties)
        marks = [markers[s].watermark_us if s in markers else None for s in {*declared, *markers}]
        return min((-1 if mark is None else mark for mark in marks), default=-1)

    def _rows(self, head: Any) -> Counter[int]:
        return Counter(map(window_of, self.world.rows_at(head)))
