"""Simulates a day of a busy table, with and without maintenance: `python -m bench.maintenance_day`.

A real day with one commit every 5 s and 32 files per commit has 17,280 commits and 552,960 files. Here, the 24 hours of
event time have a 60th of these commits (`--commits 12` per hour), each of 32 files of 1,000 rows. The real committer
adds the same files to two tables. After each hour, `maintain` runs on one of them, with default settings except
`expiry.keep`, whose 6 h become six simulated hours. Measurements take place just before maintenance, the worst moment.

A query counts rows and averages a price by symbol over one hour of event time. This is a random complete hour, the same
for each table, or the hour that is still written. Each query loads the table from the catalog, without cached metadata.
Queries also run on a copy that Spark has just rewritten into one manifest and one snapshot. Tables are queried in turn,
so that other programs on the machine affect them equally. DuckDB reads the files that PyIceberg plans.

Writes docs/explanation/maintenance-day.svg, and prints the same numbers as a table. For a first try:
`--hours 2 --commits 3 --plot x.svg`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from bench.day.plot import draw
from bench.day.queries import ENGINES, Readers, compacted_copy
from bench.day.report import report
from bench.day.samples import Samples
from bench.day.tables import BEGIN_US, HOUR_US, Day, now_ms
from frazil.maintenance.measure import measure
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.spark import jars
from frazil.table.catalogs import load_catalog, spark_properties

KEEP_HOURS = 6
SELDOM = 8
"""The table without maintenance and the open hour are queried only every eighth time, because they take long."""
WARM_UP = 10
"""Warm-up queries of each engine, because a JVM compiles frequently used code."""
COMPARED = ("maintained", "compacted")
"""`compacted` is a copy of all rows, created again for each comparison."""


@dataclasses.dataclass
class Simulation:
    day: Day
    catalog: Catalog
    readers: Readers
    repeats: int
    samples: Samples = dataclasses.field(default_factory=Samples)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(2)
        self._hour_began_ms = [now_ms()]

    def hour(self, hour: int, *, ask: bool) -> None:
        """Make one hour's commits, and measure just before maintenance runs, at the worst moment."""
        took = [self.day.commit() for _ in range(self.day.commits)]
        for table, commits_ms in zip(("maintained", "unattended"), zip(*took, strict=True), strict=True):
            self._look(hour, table)
            plans = {f"plan {engine}": self.readers.plan(engine, name(table)) for engine in ("PyIceberg", "Spark")}
            self.samples.add(hour, table, plans | {"commit": statistics.median(commits_ms)})
        if ask:
            compacted_copy(self.readers, name("maintained"), name("compacted"))
            for engine in ENGINES:
                self._ask(hour, engine)
        self._maintain(hour)
        self._look(hour, "maintained")
        if hour == 1:
            for engine in ENGINES * WARM_UP:
                self.readers.query(engine, name("maintained"), BEGIN_US, BEGIN_US + HOUR_US)

    def _look(self, hour: int, table: str) -> None:
        found = measure(self.catalog, self._table(table), now_ms=now_ms())
        if found is None:
            raise RuntimeError(f"table {table} is gone")
        fields = ("data_files", "manifests", "manifest_list_bytes", "metadata_bytes", "snapshots")
        self.samples.add(hour, table, {field: getattr(found, field) for field in fields})

    def _ask(self, hour: int, engine: str) -> None:
        """Query random complete hours, the same for every table, and the open hour."""
        for turn, chosen in enumerate(self._random.integers(hour - 1, size=self.repeats)):
            some = turn % SELDOM == 0
            for table in np.roll((*COMPARED, "unattended") if some else COMPARED, turn):
                self._query(hour, engine, table, int(chosen))
            for table in COMPARED if some else ():
                self._query(hour, engine, table, hour - 1)

    def _query(self, hour: int, engine: str, table: str, of: int) -> None:
        begin_us = BEGIN_US + of * HOUR_US
        rows, cost = self.readers.query(engine, name(table), begin_us, begin_us + HOUR_US)
        if rows != self.day.rows_an_hour:
            raise RuntimeError(f"{engine} found {rows} rows of hour {of} in table {table}")
        kind = f"{'open' if of == hour - 1 else 'complete'} {engine}"
        self.samples.add(hour, table, {f"{kind} wall": cost.wall_ms, f"{kind} CPU": cost.cpu_ms})

    def _maintain(self, hour: int) -> None:
        began, table = time.perf_counter(), self._table("maintained")
        self._hour_began_ms.append(now_ms())
        if hour >= KEEP_HOURS:
            keep = timedelta(milliseconds=now_ms() - self._hour_began_ms[hour - KEEP_HOURS])
            expiry = table.settings.expiry.model_copy(update={"keep": keep})
            table = dataclasses.replace(table, settings=table.settings.model_copy(update={"expiry": expiry}))
        for outcome in maintain(lambda: self.readers.spark, self.catalog, table, now_ms=now_ms()):
            print(f"  {outcome}", flush=True)
            if outcome.ending is Ending.FAILED:
                raise RuntimeError(outcome.sentence)
        self.samples.add(hour, "maintained", {"maintenance": (time.perf_counter() - began) * 1000})

    def _table(self, table: str) -> MaintainedTable:
        return find_maintained([stream.spec for stream in self.day.streams], name(table))


def name(table: str) -> str:
    return f"bench.{table}"


def start_spark(catalog: str | None = None) -> SparkSession:
    """Start Spark with two cores. Each query loads its table from the catalog, as the other engines do."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    properties = {
        "spark.jars": ",".join(str(jar) for jar in jars.ensure_jars("spark")),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        f"spark.sql.catalog.{catalog or 'default'}.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in (spark_properties(catalog) | properties).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--commits", type=int, default=12, help="an hour; the table of the issue has 720")
    parser.add_argument("--files", type=int, default=32, help="a commit")
    parser.add_argument("--rows", type=int, default=1000, help="a file")
    parser.add_argument("--repeats", type=int, default=40, help="of each query and engine")
    parser.add_argument("--ask-every", type=int, default=6, help="hours between two rounds of queries")
    explanation = Path(__file__).parent.parent / "docs" / "explanation"
    parser.add_argument("--plot", type=Path, default=explanation / "maintenance-day.svg")
    parser.add_argument("--samples", type=Path, help="where the numbers go too, as JSON lines")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FRAZIL_HOME": folder, "PYICEBERG_HOME": folder}
        spark = start_spark()
        try:
            day = Day(Path(folder), chosen.commits, chosen.files, chosen.rows)
            catalog = load_catalog(None)
            simulation = Simulation(day, catalog, Readers(catalog, spark), chosen.repeats)
            began = time.perf_counter()
            for hour in range(1, chosen.hours + 1):
                simulation.hour(hour, ask=hour > 1 and (hour % chosen.ask_every == 0 or hour == chosen.hours))
                print(f"hour {hour}: {time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
                if chosen.samples:
                    simulation.samples.save(chosen.samples)
        finally:
            spark.stop()
    print("\n".join(report(simulation.samples)))
    draw(simulation.samples, chosen.plot)


if __name__ == "__main__":
    main()
