"""The demo from start to end: starts its parts, sends the flights, watches them land, and checks the result."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog

from demo import flights
from demo.days import HOURS, LATE_FLIGHTS, LATE_HOUR, LATE_UNTIL, Days, days
from demo.landed import Summary, committed_records, summarise
from demo.parts import DemoCatalog, DemoParts, DemoSpark
from demo.publish import LiveHours, Publisher
from demo.screen import Screen, State
from frazil.errors import EnvironmentUnusable
from frazil.host.heartbeat import Heartbeat
from frazil.kafka.admin import KafkaAdmin
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.table.catalogs import load_catalog
from tests.airflow_api import AirflowApi

STREAM = "flights"
WRITER_DAG = "frazil_writer_flights"
"""The id that frazil.airflow derives from the stream. A test checks it, because the demo does not import Airflow."""
DAY_DAGS = ("frazil_partitions_demo.flights", "frazil_daily_flights_per_day", "frazil_reopened_flights_per_day")
"""The DAGs of the hourly windows and of the daily aggregation."""

DAYS_WITHIN_S = 240
"""Time after the last flight by which both days must be complete and aggregated."""

PARTITIONS = 32
STALL_S = 180
"""The demo gives up after this time without a commit while records wait."""


_CATALOG_SERVERS: dict[DemoCatalog, tuple[str, ...]] = {
    "embedded": (),
    "rest": ("SeaweedFS",),
    "postgres": ("SeaweedFS", "PostgreSQL"),
}


_SPARK_SERVERS: dict[DemoSpark, tuple[str, ...]] = {
    "local": (),
    "cluster": ("a Spark cluster",),
    "kubernetes": ("a Kubernetes node",),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    summary: Summary
    days: Days
    location: str
    """The folder of the table's files."""
    seconds: float

    @property
    def right(self) -> bool:
        return self.summary.exact and self.days.right


class Demo:
    """One run of the demo over parts that are not started yet."""

    def __init__(self, parts: DemoParts, screen: Screen) -> None:
        self._parts, self._screen = parts, screen
        self._spec: StreamSpec
        self._catalog: Catalog
        self._publisher: Publisher
        self._live: LiveHours | None = None

    def run(self) -> Outcome:
        """Send all flights, and return the outcome.

        Raises:
            FrazilError: something could not be started, or the writer makes no progress.
        """
        started = time.monotonic()
        self._start_servers()
        self._spec = find_stream(Path(os.environ["FRAZIL_STREAMS"]), STREAM)
        self._catalog = load_catalog(self._spec.table.catalog)
        everything = flights.read_flights()
        backlog, live = flights.split(everything)
        self._publisher = Publisher(self._parts.kafka.bootstrap, self._spec.source.topics[0])
        self._publisher.send(backlog, now_s=time.monotonic())
        self._publisher.flush()
        self._screen.say(f"sent {self._publisher.delivered:,} flights of 2013 up to 29 December: the backlog")
        self._start_airflow()
        self._watch(until=self._publisher.delivered)
        live_from_ms = int(time.time() * 1000)
        self._screen.say(f"the backlog is in {self._spec.table.identifier}; now the rest, live: an hour every 3 s")
        for dag_id in DAY_DAGS:
            AirflowApi.of(self._parts.airflow).set_paused(dag_id, False)
        hours = flights.hold_back(flights.by_hour(live), hour=LATE_HOUR, until=LATE_UNTIL, count=LATE_FLIGHTS)
        self._live = LiveHours(hours, started_s=time.monotonic())
        self._watch(until=everything.num_rows)
        self._screen.say("all flights are in the table; waiting until both days are complete, and aggregated …")
        ended = self._wait_for_days(everything)
        location = self._catalog.load_table(self._spec.table.identifier).location()
        return Outcome(self._summarise(everything, live_from_ms), ended, location, time.monotonic() - started)

    def _start_servers(self) -> None:
        servers = (*_SPARK_SERVERS[self._parts.spark], *_CATALOG_SERVERS[self._parts.catalog])
        self._screen.say(f"starting {' and '.join(['Kafka', *servers])} …")
        self._parts.start_cluster()
        self._parts.kafka.start()
        self._parts.start_catalog()
        self._parts.kafka.create_topic(STREAM, PARTITIONS)

    def _start_airflow(self) -> None:
        self._screen.say("starting Airflow …")
        self._parts.airflow.start()
        self._screen.say(f"{sign_in(self._parts)}. `.venv/bin/frazil status flights` shows the stream")
        client = AirflowApi.of(self._parts.airflow)
        for dag_id in (WRITER_DAG, *DAY_DAGS):
            client.wait_for_dag(dag_id, timeout_s=180)
        client.set_paused(WRITER_DAG, False)
        self._screen.say(f"its DAG {WRITER_DAG} launches the writer …")

    def _watch(self, *, until: int) -> None:
        """Send due flights and show progress until the given number of records is committed."""
        moved_s, committed = time.monotonic(), -1
        while committed < until:
            time.sleep(0.5)
            now_s = time.monotonic()
            for hour in self._live.due(now_s) if self._live else []:
                self._publisher.send(hour, now_s=now_s)
            self._publisher.poll()
            found = committed_records(self._catalog, self._spec)
            moved_s = now_s if found != committed or found == self._publisher.delivered else moved_s
            committed = found
            self._screen.show(self._state(committed, now_s=now_s), now_s=now_s)
            if now_s - moved_s > STALL_S:
                raise EnvironmentUnusable(self._stalled(committed))

    def _wait_for_days(self, everything: pa.Table) -> Days:
        """Return both days when they are right, or at the latest after `DAYS_WITHIN_S`."""
        deadline = time.monotonic() + DAYS_WITHIN_S
        while True:
            found = days(self._catalog, self._spec.table.identifier, everything)
            if found.right or time.monotonic() > deadline:
                return found
            time.sleep(2)

    def _state(self, committed: int, *, now_s: float) -> State:
        heartbeat = Heartbeat.read(self._parts.run_folder)
        return State(
            hour=self._live.hour if self._live else None,
            published=self._publisher.delivered,
            committed=committed,
            oldest_waiting_s=self._publisher.oldest_waiting_s(committed, now_s=now_s),
            writer=heartbeat.phase.value if heartbeat else "not launched yet",
        )

    def _stalled(self, committed: int) -> str:
        heartbeat = Heartbeat.read(self._parts.run_folder)
        said = (
            f" The writer's last word: {heartbeat.error or heartbeat.phase.value}."
            if heartbeat
            else " The writer never started."
        )
        return (
            f"no commit for {STALL_S} s, with {committed:,} of {self._publisher.delivered:,} flights there.{said} "
            f"Its log is {self._parts.run_folder / 'writer.log'}, its DAG {self._parts.airflow.url}/dags/{WRITER_DAG}."
        )

    def _summarise(self, everything: pa.Table, live_from_ms: int) -> Summary:
        with KafkaAdmin(resolve_kafka_properties(self._spec, os.environ), self._spec.source.topics) as offsets:
            ends = offsets.ends(offsets.describe().partitions)
        return summarise(
            self._catalog, self._spec, flights=everything, published=sum(ends.values()), live_from_ms=live_from_ms
        )


def checkout() -> Path:
    """Return the folder that has dags/, plugins/ and include/."""
    return Path(__file__).resolve().parents[1]


def report(outcome: Outcome, parts: DemoParts) -> str:
    """Show the summary."""
    s, d = outcome.summary, outcome.days
    fresh = (
        f"p50 {s.live.p50_s:.1f} s, p95 {s.live.p95_s:.1f} s ({s.live.rows:,} live flights, Kafka to commit)"
        if s.live
        else "no live flight landed"
    )
    result = "every flight is in the table exactly once" if s.exact else "NOT every flight is there exactly once"
    late = (
        f"{', '.join(w.key for w in d.reopened)} reopened by {d.late} late flights" if d.reopened else "NONE reopened"
    )
    if d.different is None:
        daily = "LATE: not compared, for they are not all made yet; nothing says that they are wrong"
    elif d.different:
        daily = f"DIFFERENT from the source's in {d.different:,} rows"
    else:
        daily = "equal to those of the source file"
    lines = [
        f"rows        {s.rows:,} of {s.expected:,}",
        f"files       {s.files:,} in {s.commits:,} commits",
        f"freshness   {fresh}",
        f"duplicates  {s.duplicates:,}",
        f"gaps        {s.gaps:,}",
    ]
    if s.different or s.dead_letters:
        lines.append(f"different   {s.different:,} rows from the source; {s.dead_letters:,} dead letters")
    lines += [
        f"complete    {d.complete} of {len(HOURS)} hours of 30 and 31 December signalled, {late}",
        f"aggregates  of both days, made by Airflow when they were complete: {daily}",
    ]
    if d.history:
        lines.append(f"history     {d.history:,} windows of before were signalled, and NONE should be")
    lines.append(f"result      {result}, after {outcome.seconds:.0f} s")
    lines += [f"table       {_shown(outcome.location)}", f"Airflow     {sign_in(parts)}"]
    return "\n".join(f"  {line}" for line in lines)


def sign_in(parts: DemoParts) -> str:
    """Return the address of Airflow, with user and password."""
    return f"{parts.airflow.url}: sign in as admin with the password {parts.airflow.password}"


def _shown(location: str) -> str:
    """Return a folder relative to the current one, or an address unchanged."""
    return os.path.relpath(location.removeprefix("file://")) if location.startswith("file:") else location
