"""Writes the same records with frazil and its peers: `make bench BENCH=peers`, or with options

    .venv/bin/python -m bench.peers --millions 10 --rounds 2 --records ticks --systems frazil,flink,spark --keep

The records are created once, in one embedded broker with 32 partitions. In each round, every system in turn writes all
of them into its own table. CPU is that of the whole process tree, as the kernel counts it. Then every row's `trade_id`
is checked: each must exist exactly once. The first use downloads the peers' jars (about 600 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from bench.meter.process_tree import measured
from bench.peer.records import FIRST_ID, KINDS, PARTITIONS, Records, avro_schema, produce
from bench.peer.report import Run, page
from bench.peer.systems import CATALOG, NAMESPACE, SYSTEMS, Job, System, declared
from frazil.dev.kafka import EmbeddedKafka, EmbeddedRegistry
from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog

RESULTS = Path(__file__).parent / "results"
PLOT = Path("docs/explanation/peers.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--records", choices=sorted(KINDS), default="ticks")
    parser.add_argument("--format", choices=("json", "avro"), default="json", help="avro: frazil and flink alone")
    parser.add_argument("--systems", help="comma-separated; all that read the format, if left out")
    parser.add_argument("--transform", action="store_true", help="ticks with a filter, renames and casts")
    parser.add_argument("--keep", action="store_true", help="write the page and the runs to bench/results/")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw the newest runs in bench/results/")
    options = parser.parse_args()
    if options.draw:
        draw()
        return
    names = options.systems.split(",") if options.systems else [n for n in SYSTEMS if reads(n, options.format)]
    systems = [SYSTEMS[name] for name in names]
    records, count = KINDS[options.records], int(options.millions * 1e6)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        configure(home)
        with EmbeddedKafka(home / "kafka") as kafka, registry_of(options.format, home) as registry:
            kafka.create_topic(records.name, PARTITIONS)
            schema_id = register(registry, records) if registry else None
            produce(kafka.bootstrap, records, count, schema_id=schema_id)
            track = Track(kafka, registry, home, records, count, options.transform)
            runs = [track.run(system, number) for number in range(1, options.rounds + 1) for system in systems]
    text = page(runs, records, count, systems, encoding=options.format)
    print(text)
    if options.keep:
        RESULTS.mkdir(exist_ok=True)
        kind = records.name if options.format == "json" else f"{options.format}-{records.name}"
        stem = RESULTS / f"peers-{kind}-{datetime.now(UTC):%Y-%m-%d}"
        stem.with_suffix(".md").write_text(text)
        stem.with_suffix(".json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")


def reads(system: str, encoding: str) -> bool:
    """Return whether the system can read the encoding. Spark cannot read a registry's Avro, and the Kafka Connect
    converters for it on Maven Central are incomplete.
    """
    return encoding == "json" or system in {"frazil", "flink"}


def registry_of(encoding: str, home: Path) -> AbstractContextManager[EmbeddedRegistry | None]:
    return EmbeddedRegistry(home / "registry") if encoding == "avro" else nullcontext()


def register(registry: EmbeddedRegistry, records: Records) -> int:
    """Register the records' schema, and return its id. Raises requests.HTTPError."""
    url = f"{registry.url}/subjects/{records.name}-value/versions"
    answer = requests.post(url, json={"schema": json.dumps(avro_schema(records.columns))}, timeout=30)
    answer.raise_for_status()
    return int(answer.json()["id"])


def draw() -> None:
    """Draw the newest stored runs of each kind of record: each system's minimum CPU, and its median."""
    from bench.peer.plots import bars  # matplotlib, which a run has no need of

    groups: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in KINDS:
        kept = sorted(RESULTS.glob(f"peers-{kind}-*.json"))
        if not kept:
            continue
        cpu: dict[str, list[float]] = {}
        runs = [Run(**run) for run in json.loads(kept[-1].read_text())]
        for run in runs:
            cpu.setdefault(run.system, []).append(run.cpu_s)
        title = f"{runs[0].rows:,} {kind}, start included"
        groups[title] = {name: (min(cpu[name]), statistics.median(cpu[name])) for name in SYSTEMS if name in cpu}
    if not groups:
        raise SystemExit(f"{RESULTS} has no runs of peers: run with --keep first")
    bars(PLOT, groups, "CPU core-s, least of the rounds, and their median")


def configure(home: Path) -> None:
    """Declare all systems' catalog in the environment of this process and its children."""
    prefix = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"
    (home / "warehouse").mkdir()
    os.environ["FRAZIL_HOME"] = str(home / "home")
    os.environ[f"{prefix}TYPE"] = "sql"
    os.environ[f"{prefix}URI"] = f"sqlite:///{home / 'catalog.db'}"
    os.environ[f"{prefix}WAREHOUSE"] = (home / "warehouse").as_uri()


@dataclass(frozen=True)
class Track:
    """A topic with `count` records for the systems to read."""

    kafka: EmbeddedKafka
    registry: EmbeddedRegistry | None
    home: Path
    records: Records
    count: int
    transform: bool

    def run(self, system: System, number: int) -> Run:
        """Run a system once. Raises RuntimeError if it ends with an error, TimeoutError if it does not end."""
        table = f"{system.name}_{number}"
        warehouse = self.home / "warehouse"
        place = (self.home / table, self.home / "catalog.db", warehouse, table)
        job = Job(self.records, self.kafka.bootstrap, self.registry, *place, self.transform)
        catalog = load_catalog(CATALOG)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        if not system.makes_table:
            create_table(catalog, job)
        if not system.ends_by_itself:
            self.kafka.create_topic(f"control-{table}", 1)
        log = self.home / f"{table}.log"

        def all_there() -> bool:
            return not system.ends_by_itself and total(catalog, table, "records") >= self.count

        usage = measured(system.command(job), log=log, done=all_there)
        if usage.exit_code:
            raise RuntimeError(f"{system.name} ended with {usage.exit_code}:\n{log.read_text()[-5000:]}")
        rows, exact = self.check(catalog.load_table((NAMESPACE, table)))
        files, size = total(catalog, table, "data-files"), total(catalog, table, "files-size")
        cpu, wall = round(usage.cpu_s, 1), round(usage.wall_s, 1)
        run = Run(system.name, number, cpu, wall, usage.peak_bytes >> 20, files, round(size / 1e6, 1), rows, exact)
        print(run, flush=True)
        if rows < self.count:
            print(log.read_text()[-5000:], flush=True)
        catalog.drop_table((NAMESPACE, table))
        shutil.rmtree(warehouse)
        warehouse.mkdir()
        return run

    def check(self, table: Table) -> tuple[int, bool]:
        """Return the number of rows, and whether each record is there exactly once."""
        ids = table.scan(selected_fields=("trade_id",)).to_arrow()["trade_id"]
        once = len(ids) == pc.count_distinct(ids).as_py() == self.count
        limits = {"min": FIRST_ID, "max": FIRST_ID + self.count - 1}
        return len(ids), once and pc.min_max(ids).as_py() == limits


def create_table(catalog: Catalog, job: Job) -> None:
    """Create the table that frazil would create, but without the Kafka coordinates."""
    spec = StreamSpec.model_validate({**declared(job), "coordinates": False})
    columns = iceberg.table_schema(spec)
    catalog.create_table((NAMESPACE, job.table), columns, partition_spec=iceberg.partition_spec(spec, columns))


def total(catalog: Catalog, table: str, what: str) -> int:
    snapshot = catalog.load_table((NAMESPACE, table)).current_snapshot()
    return int(snapshot.summary[f"total-{what}"]) if snapshot and snapshot.summary else 0


if __name__ == "__main__":
    main()
