"""The result of the demo's two live days: which hours were signalled, and whether their aggregates are right."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog

from demo import aggregates
from frazil.partitions.windows import Grain, Window, microseconds, windows_between
from frazil.signals.signal_table import TableSignals

DAYS = (date(2013, 12, 30), date(2013, 12, 31))
_BEGIN, _END = (microseconds(datetime(*day, tzinfo=UTC)) for day in ((2013, 12, 30), (2014, 1, 1)))
LATE_HOUR, LATE_UNTIL, LATE_FLIGHTS = 15, 38, 5
"""Five flights of the 15th live hour arrive with the 38th, hours after their day is complete."""
HOURS = tuple(windows_between(Grain.HOUR, _BEGIN, _END))


@dataclass(frozen=True, slots=True)
class Days:
    """The current result of the two days."""

    complete: int
    """Hours that were signalled."""
    reopened: tuple[Window, ...]
    """Hours that late flights reopened."""
    late: int
    """The number of late flights."""
    history: int
    """Signalled windows before the two days; there should be none."""
    different: int | None
    """Rows of daily aggregates that differ from those of the source file; None before all hours are signalled and both
    days are aggregated.
    """

    @property
    def right(self) -> bool:
        """Whether all hours were signalled, late flights reopened only their hour, and the aggregates agree."""
        is_right = (self.complete, self.reopened, self.late) == (len(HOURS), (HOURS[LATE_HOUR],), LATE_FLIGHTS)
        return is_right and not self.history and self.different == 0


def days(catalog: Catalog, table: str, flights: pa.Table) -> Days:
    """Read the signals of a table and its aggregates, and compare them with the source's `flights`."""
    signals = TableSignals.load(catalog, table)
    newest = signals.newest(from_us=_BEGIN, to_us=_END)
    reopened = tuple(sorted(w for w, s in newest.items() if s.revision > 1))
    complete = sum(s.sent for s in newest.values())
    return Days(
        complete=complete,
        reopened=reopened,
        late=sum(newest[w].late_rows for w in reopened),
        history=len(signals.newest(from_us=0, to_us=_BEGIN)) if signals.cursor else 0,
        # Before the last hour is signalled, the aggregates cannot be right, and reading them costs time.
        different=aggregates.differences(catalog, flights, DAYS) if complete == len(HOURS) else None,
    )
