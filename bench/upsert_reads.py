"""The cost of reading an upsert table after many batches, compared with a compacted copy.

    .venv/bin/python -m bench.upsert_reads --rows 2000000 --days 20 --changes 200000 --batches 100

`frazil run` merges all changes of a topic into a table like that of `bench.upserts`, in `--batches` batches without
maintenance. Spark then writes the same rows to a copy. Each query runs on both tables in turn, so that the machine's
load affects them equally. It loads the table from the catalog without cached metadata, and both results must be equal.
Prints the p95 of each kind of query; CPU is that of this process and the JVM. With `--maintain`, the queries run again
while `frazil maintain` works on the first table in separate processes, and after it. `make bench BENCH=upsert_reads`
runs it, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from pyiceberg.table import DataScan

from bench.day.queries import ENGINES, Cost, Readers, in_spark
from bench.maintenance_day import start_spark
from bench.meter.process_tree import measured
from bench.peer.systems import CATALOG, NAMESPACE
from bench.peers import configure
from bench.upsert.systems import ORDERS, systems
from bench.upsert.workload import FIRST_DAY, Changes
from bench.upserts import PARTITIONS, Track, produce
from frazil.dev.kafka import EmbeddedKafka
from frazil.table.catalogs import load_catalog

TABLES = (f"{NAMESPACE}.frazil", f"{NAMESPACE}.compacted")
WARM_UP = 3
Found = tuple[int, float]
"""The number of rows, and the sum of their amounts, which is zero for a count."""


class KeyedReaders(Readers):
    """Queries one key, one day, the sum of all rows, and their count. Each query loads the table from the catalog."""

    def ask(self, engine: str, kind: str, table: str, day: date, id: int) -> tuple[Found, Cost]:
        """Run a query. Return its result and its cost."""
        query: dict[str, Callable[..., Found]] = {"PyIceberg": self._arrow, "DuckDB": self._duck, "Spark": self._sql}
        return self.timed(query[engine], kind, table, day, id)

    def _arrow(self, kind: str, table: str, day: date, id: int) -> Found:
        scan = self._planned(kind, table, day, id)
        if kind == "count":
            return scan.count(), 0.0
        rows = scan.to_arrow()
        return len(rows), pc.sum(rows["amount"]).as_py() or 0.0

    def _duck(self, kind: str, table: str, day: date, id: int) -> Found:
        """Read the files that PyIceberg plans, without the rows that its delete files delete."""
        tasks = list(self._planned(kind, table, day, id).plan_files())
        if not tasks:
            return 0, 0.0
        files = [task.file.file_path.removeprefix("file://") for task in tasks]
        deletes = sorted({file.file_path.removeprefix("file://") for task in tasks for file in task.delete_files})
        source = f"read_parquet({files!r}, filename = true, file_row_number = true) t"
        left = (
            f" AND NOT EXISTS (SELECT 1 FROM read_parquet({deletes!r}) d"
            " WHERE d.file_path = 'file://' || t.filename AND d.pos = t.file_row_number)"
        )
        return self._row(self.memory.execute(_sql(kind, source, day, id) + (left if deletes else "")).fetchone())

    def _sql(self, kind: str, table: str, day: date, id: int) -> Found:
        return self._row(self.spark.sql(_sql(kind, in_spark(self.catalog, table), day, id)).first())

    def _row(self, row: tuple[int, float | None] | None) -> Found:
        return (row[0], row[1] or 0.0) if row else (0, 0.0)

    def _planned(self, kind: str, table: str, day: date, id: int) -> DataScan:
        of_day: BooleanExpression = EqualTo("day", day.isoformat())
        chosen = {"key": And(of_day, EqualTo("id", id)), "day": of_day}.get(kind, AlwaysTrue())
        return self.catalog.load_table(table).scan(chosen, selected_fields=("amount",))


def _sql(kind: str, source: str, day: date, id: int) -> str:
    """Return a query that ends in a condition, to which further conditions may be added."""
    what = "count(*), 0.0" if kind == "count" else "count(*), sum(amount)"
    where = {"key": f"day = DATE '{day}' AND id = {id}", "day": f"day = DATE '{day}'"}.get(kind, "true")
    return f"SELECT {what} FROM {source} WHERE {where}"


def merge(options: argparse.Namespace, home: Path) -> None:
    """Create the table, and let frazil merge all changes. Raises RuntimeError if frazil ends with an error."""
    with EmbeddedKafka(home / "kafka") as kafka:
        kafka.create_topic(ORDERS.name, PARTITIONS)
        changes = Changes(options.rows, options.days)
        produce(kafka.bootstrap, changes, options.changes)
        track, system = Track(kafka.bootstrap, home, changes), systems(options.changes // options.batches)["frazil"]
        track.table(system.name, {})
        log = home / "frazil.log"
        usage = measured(system.command(track.job(system.name)), log=log, timeout_s=7200)
        if usage.exit_code:
            raise RuntimeError(f"frazil ended with {usage.exit_code}:\n{log.read_text()[-5000:]}")
        table = load_catalog(CATALOG).load_table(TABLES[0])
        if not track.exact(table):
            raise RuntimeError("the table has not what the changes make of it")
    last = table.current_snapshot()
    assert last
    assert last.summary
    counts = ", ".join(f"{last.summary[f'total-{what}']} {what}" for what in ("data-files", "delete-files"))
    manifests = len(last.manifests(table.io))
    print(f"{usage.cpu_s:.1f} core-s, {len(table.metadata.snapshots)} snapshots, {counts}, {manifests} manifests")


def compare(options: argparse.Namespace, readers: KeyedReaders, home: Path) -> None:
    """Run the same queries on both tables. Raises RuntimeError if results differ, or if maintenance fails."""
    source, copy = (in_spark(readers.catalog, table) for table in TABLES)
    readers.spark.sql(
        f"CREATE TABLE {copy} USING iceberg PARTITIONED BY (day) TBLPROPERTIES ('format-version'='2', "
        f"'write.parquet.compression-codec'='zstd') AS SELECT * FROM {source}"
    )
    ask_both(options, readers, range(-WARM_UP, options.repeats))
    if options.maintain:
        streams = home / "frazil" / "streams"
        command = [str(Path(sys.executable).with_name("frazil")), "maintain", TABLES[0], "--streams", str(streams)]
        with subprocess.Popen(command) as maintenance:
            print("while maintenance ran:")
            ask_both(options, readers, itertools.takewhile(lambda _: maintenance.poll() is None, itertools.count()))
        if maintenance.returncode:
            raise RuntimeError(f"maintenance ended with {maintenance.returncode}")
        print("after it:")
        ask_both(options, readers, range(options.repeats))


def ask_both(options: argparse.Namespace, readers: KeyedReaders, turns: Iterable[int]) -> None:
    draw = np.random.default_rng(3)
    took: dict[tuple[str, str], dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    for turn in turns:
        id = int(draw.integers(options.rows))
        day = FIRST_DAY + timedelta(days=id % options.days)
        for engine in ENGINES:
            for kind in ("key", "day", "all", "count"):
                found = {}
                for table in np.roll(TABLES, turn):
                    found[table], cost = readers.ask(engine, kind, str(table), day, id)
                    if turn >= 0:
                        took[kind, engine][str(table)].append(cost)
                (rows, total), (same, as_much) = found.values()
                if rows != same or abs(total - as_much) > 1e-6 * abs(total):
                    raise RuntimeError(f"{engine} answers {kind} of {day}, {id} with {found}")
    heads = ("query", "engine", "times", "CPU ms, p50 and p95", "compacted copy", "p95, of the copy's")
    print(f"| {' | '.join(heads)} | wall ms, p95 | compacted copy |\n|{'---|' * 8}")
    for (kind, engine), of in sorted(took.items()):
        (p50, p95), (copy_p50, copy_p95) = (_quantiles([cost.cpu_ms for cost in of[table]]) for table in TABLES)
        wall, copy_wall = (_quantiles([cost.wall_ms for cost in of[table]])[1] for table in TABLES)
        cpu = f"{p50:.0f}, {p95:.0f} | {copy_p50:.0f}, {copy_p95:.0f} | {p95 / copy_p95:.2f}"
        print(f"| {kind} | {engine} | {len(of[TABLES[0]])} | {cpu} | {wall:.0f} | {copy_wall:.0f} |")


def _quantiles(values: list[float]) -> tuple[float, float]:
    return statistics.median(values), float(np.percentile(values, 95))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--days", type=int, default=20, help="partitions")
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=20, help="of each query, engine and table")
    parser.add_argument("--maintain", action="store_true", help="ask again while `frazil maintain` runs, and after it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
        configure(Path(name))
        merge(options, Path(name))
        spark = start_spark(CATALOG)
        try:
            compare(options, KeyedReaders(load_catalog(CATALOG), spark), Path(name))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
