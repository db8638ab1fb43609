"""A stream with one record per minute, whose hours become complete."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog

from frazil.signals.completion import Assessment, assess_table, signal_windows
from frazil.signals.signal_table import Signal, TableSignals
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

NOON = 1_388_404_800_000_000
"""2013-12-30T12:00:00Z."""
MINUTE = 60_000_000
HOUR = 60 * MINUTE
NOW_MS = 2_000_000_000_000


class Minutes:
    """A stream of two partitions with one record per minute from noon on. Its table is partitioned by day."""

    def __init__(self, folder: Path, name: str = "minutes", extra: str = "", by: str = "day") -> None:
        path = folder / f"{name}.yaml"
        path.write_text(
            f"name: {name}\nsource: {{topics: [{name}], bootstrap-servers: '127.0.0.1:1'}}\ntable: demo.minutes\n"
            f"schema: {{at: timestamptz not null}}\nevent-time: at\npartition-by: [{by}(at)]\ncomplete: hour\n{extra}"
        )
        self.spec = load_stream(path)
        self.made = MadeStream(self.spec, NOW_MS, partitions=2)
        self.read = 0
        self.counts = True
        """Whether its commits say how many rows of each window they bring."""

    def send(self, first: int, last: int, *, rejected: int = 0) -> None:
        """Commit the records of the minutes `[first, last)` as one batch."""
        times = [NOON + m * MINUTE for m in range(first, last)]
        windows = Counter(us // HOUR * HOUR for us in times) if self.counts else None
        self.made.columns = lambda _: {"at": pa.array(times)}
        begin, self.read = self.read, self.read + len(times) + rejected
        self.made.land(
            {0: (begin, self.read), 1: (0, 0)},
            rejected={0: range(self.read - rejected, self.read)},
            times=EventTimes(dict.fromkeys((0, 1), max(times)), windows),
        )

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog(None)

    def assess(self, *others: Minutes) -> Assessment:
        seen = assess_table(self.catalog, [self.spec, *(o.spec for o in others)])
        assert seen is not None
        return seen

    def signal(self, gates: Any = None) -> list[tuple[str, int, int, int]]:
        """Assess and signal. Return (key, revision, rows, late rows) of each signalled window."""
        return [facts(s) for s in signal_windows(self.catalog, self.assess(), clock_ms=NOW_MS, gates=gates)]

    def signal_with(self, other: Minutes) -> list[tuple[str, int, int, int]]:
        return [facts(s) for s in signal_windows(self.catalog, self.assess(other), clock_ms=NOW_MS)]

    def stored(self) -> list[tuple[str, int, int, int]]:
        return [facts(s) for s in TableSignals.load(self.catalog, "demo.minutes").after(0)]


def facts(s: Signal) -> tuple[str, int, int, int]:
    return (s.partition[-3:], s.revision, s.rows, s.late_rows)
