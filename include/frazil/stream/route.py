"""A stream's route during one epoch: its tables, and the rows that they are missing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table

from frazil.commit.followers import NO_BATCH, RETRY_TIMEOUT_S, Followers, LaggingTable
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import sweep_routed
from frazil.commit.waiting_files import sweep_waiting_files
from frazil.errors import RouteBehind
from frazil.events import StreamEvent, TablesBehind, WaitingRowsCommitted
from frazil.ingest.contract import StageContext, Target
from frazil.ingest.schema_drift import SchemaDrift
from frazil.spec.model import StreamSpec
from frazil.spec.route import Route
from frazil.spec.units import format_duration, shorten_list
from frazil.stream.evolve import EvolutionResult
from frazil.stream.routed_tables import RoutedTables
from frazil.table.catalogs import load_catalog
from frazil.timetext import format_utc

MAX_NAMED = 5


@dataclass(slots=True)
class StreamRoute:
    spec: StreamSpec
    tables: StreamTables
    followers: Followers
    emit: Callable[[StreamEvent], None]
    routed: RoutedTables | None = None
    """The routed tables; None if no route is declared, even if rows still wait."""
    tried_at_s: float = 0.0
    """Monotonic time of the last attempt to commit waiting rows."""
    _reported: bool = True
    """Whether the last report named tables, even one of an earlier epoch."""

    @classmethod
    def begin(
        cls,
        spec: StreamSpec,
        tables: StreamTables,
        marker: Marker,
        followers: Followers | None,
        emit: Callable[[StreamEvent], None],
    ) -> StreamRoute:
        """Commit rows left for the routed tables, sweep unneeded files, and open the tables. Raises RouteBehind."""
        route = cls(spec, tables, followers or Followers(tables, NO_BATCH), emit)
        route.followers.on_late_rows = lambda rows: emit(WaitingRowsCommitted(rows))
        if followers is None or (not spec.sinks.has_routed_tables and marker.routed is None):
            return route
        ended = route._commit_overdue_rows()
        sweep_waiting_files(tables, followers.waiting, below_epoch=marker.key.epoch, complete=marker.routed or NO_BATCH)
        if not ended:
            route.report()  # rows that have waited for too long stop the stream before more rows wait
        if spec.route is not None:
            catalog = load_catalog(spec.table.catalog)
            route.routed = RoutedTables(spec, spec.route, catalog, tables, followers.behind)
            route.routed.open(marker)
        sweep_routed(tables, below_epoch=marker.key.epoch)
        return route

    def _commit_overdue_rows(self) -> bool:
        """Commit the waiting rows. Retries overdue rows for a while. Returns True if the writer is asked to end."""
        retry_policy = dataclasses.replace(self.tables.retry_policy, total_s=RETRY_TIMEOUT_S)
        deadline, attempt = retry_policy.clock() + retry_policy.total_s, 0
        self.followers.commit()
        while self._is_overdue and (left_s := deadline - retry_policy.clock()) > 0:
            if retry_policy.wait(min(left_s, retry_policy.wait_s(attempt))):
                return True
            attempt += 1
            self.followers.commit()
        return False

    @property
    def behind(self) -> bool:
        return bool(self.followers.behind)

    @property
    def _lag(self) -> timedelta:
        """How long a routed table may be missing rows (`route.lag`)."""
        return self.spec.route.lag if self.spec.route else Route.model_fields["lag"].default

    @property
    def _is_overdue(self) -> bool:
        oldest_ms = min((table.since_ms for table in self.followers.behind.values()), default=None)
        return oldest_ms is not None and self.tables.clock_ms() - oldest_ms > self._lag / timedelta(milliseconds=1)

    def add_targets(self, context: StageContext, key: BatchKey, default_marker: Marker) -> StageContext:
        if self.routed is None:
            return context
        self.routed.retry_absent(default_marker)
        return self.routed.add_targets(context, key)

    def create_tables(self, values: Collection[str], default_marker: Marker) -> None:
        """Create tables for new route values, up to the limit. Raises the errors of `RoutedTables.create_tables`."""
        if self.routed:
            self.routed.create_tables(values, default_marker)

    def is_absent(self, target: Target) -> bool:
        return self.routed is not None and target in self.routed.absent

    def evolve_tables(
        self, drift: Mapping[Target, Sequence[SchemaDrift]], main: Table
    ) -> Iterable[tuple[Target, EvolutionResult | None]]:
        return self.routed.evolve_tables(drift, main).items() if self.routed else ()

    def commit_batch(self) -> None:
        self.tried_at_s = time.monotonic()
        self.followers.commit()

    def follow(self) -> None:
        """Retry commits to tables that are missing rows, once per commit interval. Raises RouteBehind."""
        interval_s = self.spec.commit.interval / timedelta(seconds=1)
        if (self.followers.waiting or self._reported) and time.monotonic() - self.tried_at_s >= interval_s:
            self.tried_at_s = time.monotonic()
            self.followers.commit()
            self.report()

    def report(self) -> None:
        """Report the tables that are missing rows. Raises RouteBehind after `route.lag`."""
        behind = sorted(self.followers.behind.values(), key=lambda table: table.since_ms)
        if not behind:
            if self._reported:
                self._reported = False
                self.emit(TablesBehind(frozenset(), f"all tables of the route of {self.spec.name!r} have all rows"))
            return
        self._reported = True
        until_ms = behind[0].since_ms + self._lag // timedelta(milliseconds=1)
        remedy = f"The writer keeps retrying, and ends with RouteBehind after {format_utc(until_ms)}"
        sentence = f"{describe_lagging_tables(behind)}. {remedy}{remedy_pointer(self.spec.name, behind)}"
        self.emit(TablesBehind(frozenset(table.target for table in behind), sentence))
        if self._is_overdue:
            fix = behind[0].find_remedy(self.spec.name, "Fix the table and start the writer again")
            raise RouteBehind(
                f"{describe_lagging_tables(behind)}. This has lasted for longer than route.lag "
                f"({format_duration(self._lag)}). The rows are kept",
                stream=self.spec.name,
                remedy="Once this is fixed, start the writer again" if behind[0].explanation.remedy else fix,
            )


def describe_lagging_tables(behind: Sequence[LaggingTable]) -> str:
    return "; ".join(shorten_list([*map(str, behind)], MAX_NAMED, "table"))


def remedy_pointer(stream: str, behind: Sequence[LaggingTable]) -> str:
    """Return the command that shows the remedies; "" if the message already has them."""
    if len(behind) <= MAX_NAMED and all(table.explanation.remedy for table in behind):
        return ""
    return f". `frazil route {stream}` shows the remedy"
