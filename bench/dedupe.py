"""The cost that `dedupe` adds to a batch, by the number of rows in its window.

    .venv/bin/python -m bench.dedupe [--rows 1000000] [--windows 0,1,10] [--repeated 0.2]

Creates a table of clicks (a long key, an event time, a text), partitioned by hour, with `--windows` million rows of the
last hour in files of a million rows. One process then merges one batch, staged in two files. A share of the batch
repeats rows of the window or, if the window is empty, of the batch itself. Prints the CPU (user and system) of
planning, of looking up keys, of rewriting files that have repeats, and of writing manifests. Also prints the CPU of a
plain append, and the process's peak memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.commit.merging import DEDUPE_MODE, REPEATED_KEY, MergeConfig, MergeWriter
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.staging_targets import target_table
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeRules
from frazil.table.catalogs import load_catalog

HOUR_US = 3_600_000_000
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestamptzType(), required=True),
    NestedField(3, "note", StringType(), required=False),
    NestedField(4, "kafka_topic", StringType(), required=True),
    NestedField(5, "kafka_partition", IntegerType(), required=True),
    NestedField(6, "kafka_offset", LongType(), required=True),
    NestedField(7, "kafka_timestamp", TimestamptzType(), required=False),
)
RULES = MergeRules(("id",), event_time="at", within_us=HOUR_US, window_us=HOUR_US)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--windows", default="0,1,10", help="millions of rows")
    parser.add_argument("--repeated", type=float, default=0.2)
    arguments = parser.parse_args()
    for millions in map(int, arguments.windows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FRAZIL_HOME"] = folder
            # Each in a process of its own: what making the table took is not in the memory of what is measured.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
                batch = processes.submit(prepare, millions, Path(folder), arguments).result()
                print(processes.submit(measure, millions, batch, arguments.rows).result(), flush=True)


def prepare(millions: int, folder: Path, arguments: argparse.Namespace) -> tuple[StagedFile, ...]:
    table = _made(millions, folder)
    return _staged(table, _batch(arguments.rows, millions, arguments.repeated), "batch")


def measure(millions: int, batch: tuple[StagedFile, ...], rows: int) -> str:
    table = load_catalog(None).load_table("bench.clicks")
    plain = _cpu(lambda: SnapshotWriter(batch).prepare(table, summary={}, now_ms=_now()))
    reported: dict[str, str] = {}

    def dedupe() -> None:
        files = tuple(dataclasses.replace(file, content="candidates") for file in batch)
        merging = MergeConfig(lambda _: RULES, mode=DEDUPE_MODE)
        prepared = MergeWriter("s", files, merging).prepare(table, summary={}, now_ms=_now())
        assert prepared.snapshot.summary is not None
        reported.update(prepared.snapshot.summary.additional_properties)

    before = _peak_mib()
    cost = _cpu(dedupe)
    return (
        f"window of {millions} million rows: {cost:.2f} core-s for {rows:,} rows, {reported[REPEATED_KEY]} repeated; a "
        "plain "
        f"append {plain:.2f}; peak memory {_peak_mib():,} MiB, {before:,} of it before"
    )


def _peak_mib() -> int:
    """Return this process's own peak memory. `getrusage` would include the peak of its parent."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))


def _now() -> int:
    return time.time_ns() // 1_000_000


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _made(millions: int, folder: Path) -> Table:
    catalog = load_catalog(None)
    catalog.create_namespace_if_not_exists("bench")
    spec = PartitionSpec(PartitionField(2, 1000, HourTransform(), "at_hour"))
    table = catalog.create_table("bench.clicks", SCHEMA, partition_spec=spec, location=str(folder / "clicks"))
    for number in range(millions):
        files = _staged(table, _rows(np.arange(1_000_000) + number * 1_000_000), f"window-{number}")
        prepared = SnapshotWriter(files).prepare(table, summary={}, now_ms=_now())
        catalog.commit_table(table, prepared.requirements, prepared.updates)
        table = catalog.load_table("bench.clicks")
    return table


def _batch(count: int, millions: int, repeated: float) -> pa.Table:
    """Return a batch: new keys, and a share of repeats from the window or, without a window, from the batch itself."""
    draw = np.random.default_rng(1)
    again = int(count * repeated)
    new = 10**9 + np.arange(count - again)
    there = draw.integers(0, millions * 1_000_000, again) if millions else draw.choice(new, again)
    return _rows(draw.permutation(np.concatenate([new, there])))


def _rows(keys: np.ndarray) -> pa.Table:
    count = len(keys)
    times = pa.array((keys * 7_919) % HOUR_US, pa.timestamp("us", "UTC"))
    values = {
        "id": pa.array(keys, pa.int64()),
        "at": times,
        "note": pa.array(keys % 997).cast(pa.string()),
        "kafka_topic": pa.array(["clicks"]).take(pa.array(np.zeros(count, np.int64))),
        "kafka_partition": pa.array(keys % 8, pa.int32()),
        "kafka_offset": pa.array(np.arange(count)),
        "kafka_timestamp": times,
    }
    return pa.table(values)


def _staged(table: Table, rows: pa.Table, name: str) -> tuple[StagedFile, ...]:
    target = target_table(table, folder=f"{table.location()}/data/{name}")
    found: list[StagedFile] = []
    for task, part in enumerate((rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2))):
        writer = TableWriter(target, "main", io=table.io, file_name=file_namer(task, 0))
        schema = writer.layout.arrow_schema
        writer.add(part.select(schema.names).cast(schema))
        found += writer.finish()
    return tuple(found)


if __name__ == "__main__":
    main()
