"""The cost of compaction: `python -m bench.compaction --gigabytes 1`.

Creates a table of ticks by hour, in files of about 3 MB as a busy stream commits them. Compacts this table in three
ways: as `frazil maintain` does, with pages of v1 and of v2, and with the defaults of Iceberg's procedure
(`CALL rewrite_data_files(table)`). Each way has its own Spark and the same files, because main is rolled back in
between. Prints MB of input per second and per core-second. CPU is user and system time of the whole process tree during
the action, including the JVM's compilers and collectors. With `--regular`, most columns are constant or count upwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from bench.meter.process_tree import SampledTree
from frazil.cli.maintain import local_spark_settings
from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import find_maintained
from frazil.spark.application import start_session
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

TABLE = "bench.ticks"
ROWS = 120_000
"""Rows of one file: about 3 MB."""
HOURS = 4
BEGIN_US = 1_388_361_600_000_000
STREAM = """\
name: ticks
source: {topics: [ticks], format: json, bootstrap-servers: "127.0.0.1:1"}
table: bench.ticks
schema: {symbol: string not null, price: double not null, size: int, venue: string, note: string, at: timestamptz}
event-time: at
partition-by: [hour(at)]
"""
VARIANTS = {
    "frazil maintain": "ours",
    "frazil maintain, pages of v2": "v2",
    "CALL rewrite_data_files(table)": "plain",
}


def columns(rows: int) -> dict[str, pa.Array]:
    """Return columns with drifting prices, and one column that hardly compresses."""
    random = np.random.default_rng()
    number = random.integers(0, 2**31, rows)
    hour = BEGIN_US + int(random.integers(HOURS)) * 3_600_000_000
    return {
        "symbol": pa.array(np.char.add("SYM", (number % 10_000).astype(str))),
        "price": pa.array(np.round(100 + random.normal(0, 0.1, rows).cumsum(), 4)),
        "size": pa.array((number % 1_000).astype(np.int32)),
        "venue": pa.array(np.char.add("XNYS-ARCA-", (number % 50).astype(str))),
        "note": pa.array(np.char.add("order-", number.astype(str))),
        "at": pa.array(hour + np.sort(random.integers(0, 3_600_000_000, rows))).cast(pa.timestamp("us", "UTC")),
    }


def regular(rows: int) -> dict[str, pa.Array]:
    """Return columns that hardly differ from row to row."""
    number = np.arange(rows)
    return {
        "symbol": pa.array(np.char.add("SYM", (number % 50).astype(str))),
        "price": pa.array(np.full(rows, 9.0)),
        "size": pa.array(number.astype(np.int32)),
        "venue": pa.array(np.full(rows, "XNYS")),
        "note": pa.array(np.full(rows, "none")),
        "at": pa.array(BEGIN_US + number // 10 * 200_000).cast(pa.timestamp("us", "UTC")),
    }


def make(spec: StreamSpec, gigabytes: float, rows: Callable[[int], dict[str, pa.Array]]) -> Table:
    stream = MadeStream(spec, now_ms=0, partitions=1, columns=rows)
    end_us, offset = BEGIN_US + HOURS * 3_600_000_000, 0
    while True:
        stream.land({0: (offset, offset + ROWS)}, times=EventTimes(newest_us={0: end_us}))
        offset += ROWS
        summary = stream.tables.main.current().current_snapshot().summary  # type: ignore[union-attr]
        if int(summary["total-files-size"] or 0) >= gigabytes * 1e9:  # type: ignore[index]
            return stream.tables.main.refresh()


def run(variant: str, folder: Path) -> None:
    """Compact once in this process. Prints JSON."""
    spec, catalog = load_stream(folder / "ticks.yaml"), load_catalog(None)
    with catalog.load_table(TABLE).transaction() as change:
        change.set_properties({"write.parquet.page-version": "v2" if variant == "v2" else "v1"})
    properties = plain_spark() if variant == "plain" else local_spark_settings(None)
    spark = start_session("bench", None, properties=properties)
    spark.sql(f"SELECT count(*) FROM {catalog.name}.{TABLE}").collect()
    tree = SampledTree()
    began, before = time.monotonic(), tree.cpu_s()
    if variant != "plain":
        now_ms, table = time.time_ns() // 1_000_000, find_maintained([spec], TABLE)
        (outcome,) = maintain(lambda: spark, catalog, table, actions=[Action.COMPACTION], now_ms=now_ms)
        if outcome.ending is not Ending.DONE:
            raise SystemExit(str(outcome))
        removed, size = outcome.numbers["files-removed"], outcome.numbers["bytes"]
    else:
        row = spark.sql(f"CALL {catalog.name}.system.rewrite_data_files(table => '{TABLE}')").collect()[0]
        removed, size = row["rewritten_data_files_count"], row["rewritten_bytes_count"]
    seconds, cpu = time.monotonic() - began, (tree.cpu_s() - before).total()
    snapshot = catalog.load_table(TABLE).current_snapshot()
    assert snapshot
    assert snapshot.summary
    after = {"files": snapshot.summary["total-data-files"], "after": int(snapshot.summary["total-files-size"] or 0)}
    # The parent reads the last line.
    print(json.dumps({"removed": removed, "bytes": size, "seconds": seconds, "cpu": cpu, **after}))
    spark.stop()


def plain_spark() -> dict[str, str]:
    """A default Spark, with Iceberg's runtime."""
    ours = {"spark.driver.extraJavaOptions", "spark.driver.memory"}
    return {key: value for key, value in local_spark_settings(None).items() if key not in ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--regular", action="store_true")
    parser.add_argument("--run", choices=VARIANTS.values(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run, Path(os.environ["FRAZIL_HOME"]))
        return
    with tempfile.TemporaryDirectory(prefix="bench-compaction-") as folder:
        os.environ.setdefault("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))
        os.environ |= {"FRAZIL_HOME": folder, "HOME": folder, "SPARK_LOCAL_IP": "127.0.0.1"}
        (Path(folder) / "ticks.yaml").write_text(STREAM)
        table = make(
            load_stream(Path(folder) / "ticks.yaml"), arguments.gigabytes, regular if arguments.regular else columns
        )
        snapshot = table.current_snapshot()
        assert snapshot
        assert snapshot.summary
        print(f"{snapshot.summary['total-data-files']} files of {snapshot.summary['total-records']} rows")
        for _ in range(arguments.repeats):
            for label, variant in VARIANTS.items():
                table.refresh().manage_snapshots().set_current_snapshot(snapshot_id=snapshot.snapshot_id).commit()
                child = [sys.executable, "-m", "bench.compaction", "--run", variant]
                said = subprocess.run(child, stdout=subprocess.PIPE, check=True, text=True).stdout
                found = json.loads(said.splitlines()[-1])
                mb = found["bytes"] / 1e6
                print(
                    f"{label:32} {found['removed']:4.0f} files of {mb:6,.1f} MB to {found['files']} of "
                    f"{found['after'] / 1e6:,.1f} MB: "
                    f"{found['seconds']:6.1f} s, {found['cpu']:6.1f} core-s, {mb / found['seconds']:6.1f} MB/s, "
                    f"{mb / found['cpu']:6.1f} MB/core-s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
