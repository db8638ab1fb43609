"""The cost of a record and of a commit on each catalog and storage: `python -m bench.substrate_costs`.

The writer, without a JVM, reads the same ticks from Kafka into a new table of each substrate in turn: once unmeasured,
and then `--repeats` times. Then batches are committed on each substrate in turn, as in `bench.commit`.

CPU is that of the writer's process (user and system), without Kafka and the servers. Wall times include waiting for
servers and other programs: compare only wall times of the same run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench import commit
from bench.peer.records import FRAZIL, KINDS, PARTITIONS, produce
from bench.substrates import NAMES, substrate
from frazil.dev.kafka import EmbeddedKafka
from frazil.spec.model import StreamSpec
from frazil.stream.writer import Writer
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine

TICKS = KINDS["ticks"]


def catalog_of(name: str) -> str:
    return name.replace("+", "")


def spec(name: str, number: int, bootstrap: str) -> StreamSpec:
    stream = f"ticks_{catalog_of(name)}_{number}"
    return StreamSpec.model_validate(
        {
            "name": stream,
            "source": {"topics": [TICKS.name], "format": "json", "bootstrap-servers": bootstrap},
            "table": {"identifier": f"bench.{stream}", "catalog": catalog_of(name)},
            "schema": {column.name: column.type_in(FRAZIL) for column in TICKS.columns},
            "event-time": "ts",
            "partition-by": ["hour(ts)"],
        }
    )


def drained(stream: StreamSpec, records: int) -> tuple[float, float]:
    """Run a writer until all records are in the table. Return CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    Writer(stream, engine=InProcessEngine(), until_caught_up=True).run()
    used = time.process_time() - cpu, time.perf_counter() - wall
    table = load_catalog(stream.table.catalog).load_table(stream.table.identifier)
    found = sum(task.file.record_count for task in table.scan().plan_files())
    assert found == records, f"{found} of {records} rows in {stream.table.identifier}"
    return used


def committed(batches: int) -> dict[str, tuple[list[float], list[float]]]:
    """Commit on each substrate in turn. Return each commit's wall and CPU milliseconds, by substrate."""
    opened = {name: commit.open_tables(catalog_of(name)) for name in NAMES}
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in NAMES}
    for number in range(1, batches + 1):
        for name, (tables, committer) in opened.items():
            batch = commit.journal(tables, epoch=committer.epoch, number=number)
            wall, cpu = time.perf_counter(), time.process_time()
            committer.commit(batch)
            took[name][0].append((time.perf_counter() - wall) * 1000)
            took[name][1].append((time.process_time() - cpu) * 1000)
    return took


def measure(bootstrap: str, *, records: int, repeats: int, batches: int) -> None:
    drains: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for number in range(repeats + 1):
        for name in NAMES:
            used = drained(spec(name, number, bootstrap), records)
            if number:  # the first one compiles, connects and imports
                drains[name].append(used)
    commits = committed(batches)
    print(f"{records:,} ticks, {repeats} times; {batches} commits; load {os.getloadavg()[0]:.1f}\n")
    print("| substrate | core-s per million: least (median) | wall s per million | commit wall p50, p95 | CPU p50 |")
    print("|---|---|---|---|---|")
    for name in NAMES:
        cpu, wall = ([each[i] * 1e6 / records for each in drains[name]] for i in (0, 1))
        walls, cpus = (sorted(found) for found in commits[name])
        p50, p95 = walls[len(walls) // 2], walls[len(walls) * 95 // 100]
        print(
            f"| `{name}` | {min(cpu):.2f} ({statistics.median(cpu):.2f}) | {min(wall):.2f} "
            f"| {p50:.0f} ms, {p95:.0f} ms | {cpus[len(cpus) // 2]:.1f} ms |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commits", type=int, default=100)
    options = parser.parse_args()
    records = int(options.millions * 1e6) // PARTITIONS * PARTITIONS
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        home = Path(folder)
        os.environ["FRAZIL_HOME"] = folder
        for name in NAMES:
            (home / catalog_of(name)).mkdir()
            home.chmod(0o755)
            servers.enter_context(substrate(name, home / catalog_of(name), catalog=catalog_of(name), counted=False))
        kafka = servers.enter_context(EmbeddedKafka(home / "kafka"))
        kafka.create_topic(TICKS.name, PARTITIONS, {})
        produce(kafka.bootstrap, TICKS, records)
        measure(kafka.bootstrap, records=records, repeats=options.repeats, batches=options.commits)


if __name__ == "__main__":
    main()
