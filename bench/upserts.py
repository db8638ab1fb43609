"""Merges the same changes with frazil and its peers: `make bench BENCH=upserts`, or with options

    .venv/bin/python -m bench.upserts --rows 20000000 --changes 1000000 --batches 10 --systems frazil,merge,flink --keep

A table of orders, partitioned by day, is written once. Each system in turn gets a table with its files, and merges all
changes of a topic in about `--batches` batches. CPU is that of the whole process tree. Bytes written are those of all
data and delete files that the system's snapshots added. After the changes, Spark reads single days and the whole table.
The rows are compared with the expected rows, except for Flink, which applies stale changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
from confluent_kafka import Producer
from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from bench.meter.process_tree import measured
from bench.peer.systems import CATALOG, NAMESPACE, Job, System, spark_submit
from bench.peers import RESULTS, configure
from bench.upsert.systems import KEY, ORDERS, PROPERTIES, declared, systems
from bench.upsert.workload import FIRST_UPDATE, Changes, base
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.staging_targets import target_table
from frazil.dev.kafka import EmbeddedKafka
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog

PARTITIONS = 8
COLUMNS = (
    "",
    "CPU core-s",
    "times frazil's",
    "wall s",
    "peak MiB",
    "commits",
    "MB written",
    "data files",
    "delete files",
    "as expected",
    "a day read, p95 s",
    "all read, s",
    "reads, core-s",
)


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of one system's run, its output, and the cost of reading the table afterwards."""

    system: str
    cpu_s: float
    wall_s: float
    peak_mib: int
    snapshots: int
    written_mb: float
    files: int
    delete_files: int
    exact: bool | None
    day_p95_s: float
    whole_s: float
    read_cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--days", type=int, default=200, help="partitions")
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--systems", default="frazil,merge,merge-on-read,flink")
    parser.add_argument("--keep", action="store_true", help="write the page and the runs to bench/results/")
    options = parser.parse_args()
    offered = systems(options.changes // options.batches)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
        home = Path(name)
        configure(home)
        with EmbeddedKafka(home / "kafka") as kafka:
            kafka.create_topic(ORDERS.name, PARTITIONS)
            changes = Changes(options.rows, options.days)
            produce(kafka.bootstrap, changes, options.changes)
            track = Track(kafka.bootstrap, home, changes)
            runs = [track.run(offered[name]) for name in options.systems.split(",")]
            unchanged = track.reads("untouched", track.table("untouched", {}))
    text = page(runs, changes, options, unchanged)
    print(text)
    if options.keep:
        stem = RESULTS / f"upserts-{datetime.now(UTC):%Y-%m-%d}"
        stem.with_suffix(".md").write_text(text)
        stem.with_suffix(".json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")


def produce(bootstrap: str, changes: Changes, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for number, (id, value) in enumerate(changes.make(count)):
        producer.produce(ORDERS.name, value, key=str(id), partition=id % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("changes were left in the producer")


@dataclass
class Track:
    """A topic of changes, and the files of the table before them."""

    bootstrap: str
    home: Path
    changes: Changes
    staged: tuple[StagedFile, ...] = ()

    def job(self, name: str) -> Job:
        table = name.replace("-", "_")
        place = (self.home / table, self.home / "catalog.db", self.home / "warehouse", table)
        return Job(ORDERS, self.bootstrap, None, *place)

    def table(self, name: str, properties: dict[str, str]) -> Table:
        """Create a table with the rows before the changes."""
        catalog, job = load_catalog(CATALOG), self.job(name)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        upsert = {"mode", "key", "order-by", "delete", "merge"}
        reported = {k: v for k, v in declared(job, how="auto", per_batch=1).items() if k not in upsert}
        spec = StreamSpec.model_validate(reported)
        columns = iceberg.table_schema(spec)
        keyed = Schema(*columns.fields, identifier_field_ids=[columns.find_field(k).field_id for k in KEY])
        layout = iceberg.partition_spec(spec, columns)
        properties = {"format-version": "2", **properties}
        identifier = (NAMESPACE, job.table)
        table = catalog.create_table(identifier, keyed, partition_spec=layout, properties=properties)
        if not self.staged:
            self.staged = self._staged(table)
        _commit(catalog, table, self.staged)
        return catalog.load_table(identifier)

    def _staged(self, table: Table) -> tuple[StagedFile, ...]:
        target = target_table(table, folder=f"{self.home.as_uri()}/base")
        writer = TableWriter(
            target, "main", io=load_file_io({}, location=target.folder), file_name=file_namer(0, 0), buffer_bytes=2**25
        )
        for rows in base(self.changes.rows, self.changes.days):
            writer.add(rows.select(writer.layout.arrow_schema.names).cast(writer.layout.arrow_schema))
        return tuple(writer.finish())

    def run(self, system: System) -> Run:
        """Run a system once. Raises RuntimeError if it ends with an error, TimeoutError if it does not end."""
        table = self.table(system.name, PROPERTIES.get(system.name, {}))
        before = table.current_snapshot()
        job, log = self.job(system.name), self.home / f"{system.name}.log"
        usage = measured(system.command(job), log=log, timeout_s=7200)
        if usage.exit_code:
            raise RuntimeError(f"{system.name} ended with {usage.exit_code}:\n{log.read_text()[-5000:]}")
        table = load_catalog(CATALOG).load_table((NAMESPACE, job.table))
        made = [s for s in table.metadata.snapshots if before and s.snapshot_id != before.snapshot_id and s.summary]
        written = sum(int(s.summary["added-files-size"] or 0) for s in made)  # type: ignore[index]
        day_p95, whole, read_cpu = self.reads(system.name, table)
        last = table.current_snapshot()
        assert last
        assert last.summary
        run = Run(
            system.name,
            round(usage.cpu_s, 1),
            round(usage.wall_s, 1),
            usage.peak_bytes >> 20,
            len(made),
            round(written / 1e6, 1),
            int(last.summary["total-data-files"] or 0),
            int(last.summary["total-delete-files"] or 0),
            None if system.name == "flink" else self.exact(table),
            *(round(value, 3) for value in (day_p95, whole, read_cpu)),
        )
        print(run, flush=True)
        return run

    def reads(self, name: str, table: Table) -> tuple[float, float, float]:
        """Return the 95th percentile of reads of a day (s), the median of reads of the whole table (s), and the
        core-seconds.
        """
        log, days = self.home / f"{name}-reads.log", str(self.changes.days)
        script = Path(__file__).parent / "upsert" / "read_main.py"
        command = spark_submit(self.job(name), script, f"{CATALOG}.{'.'.join(table.name())}", days, "3")
        usage = measured(command, log=log)
        lines = [line for line in log.read_text().splitlines() if line.startswith("READ ")]
        if not lines:
            raise RuntimeError(f"the reads of {name} ended with {usage.exit_code}:\n{log.read_text()[-3000:]}")
        found = json.loads(lines[0].removeprefix("READ "))
        return statistics.quantiles(found["days"], n=20)[-1], statistics.median(found["whole"]), usage.cpu_s

    def exact(self, table: Table) -> bool:
        rows = ids = seconds = 0
        start = int(FIRST_UPDATE.timestamp())
        for batch in table.scan(selected_fields=("id", "updated_at")).to_arrow_batch_reader():
            rows += len(batch)
            ids += pc.sum(batch["id"]).as_py() or 0
            seconds += pc.sum(pc.divide(batch["updated_at"].cast("int64"), 1_000_000)).as_py() or 0
            seconds -= start * len(batch)
        found, expected = (rows, ids, seconds), self.changes.expected()
        if found != expected:
            print(f"found {found}, expected {expected}", flush=True)
        return found == expected


def _commit(catalog: Catalog, table: Table, files: tuple[StagedFile, ...]) -> None:
    prepared = SnapshotWriter(files).prepare(table, summary={}, now_ms=time.time_ns() // 1_000_000)
    catalog.commit_table(table, prepared.requirements, prepared.updates)


def page(runs: list[Run], changes: Changes, options: argparse.Namespace, unchanged: tuple[float, float, float]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(changes.kinds.items()))
    title = f"{options.changes:,} changes into {options.rows:,} rows in {options.days} partitions"
    before = f"a day is read in {unchanged[0]:.2f} s (p95), the whole table in {unchanged[1]:.2f} s"
    lines = [
        f"# {title}, {options.batches} batches",
        "",
        f"Changes: {kinds}. Keys by Zipf's law, on all days. Before the changes {before}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    own = next((run.cpu_s for run in runs if run.system == "frazil"), None)
    for run in runs:
        share = f"{run.cpu_s / own:.2f}" if own else ""
        exact = "—" if run.exact is None else "yes" if run.exact else "**no**"
        cells = (run.system, run.cpu_s, share, run.wall_s, run.peak_mib, run.snapshots, run.written_mb, run.files)
        more = (run.delete_files, exact, run.day_p95_s, run.whole_s, run.read_cpu_s)
        lines.append(f"| {' | '.join(map(str, (*cells, *more)))} |")
    offered = systems(options.changes // options.batches)
    return "\n".join([*lines, "", *(f"- **{run.system}**: {offered[run.system].described}." for run in runs), ""])


if __name__ == "__main__":
    main()
