"""Measures a quality gate with each engine, on passing and failing suites: `python -m bench.gate --millions 1`.

The window is one hour of repeated flights, with one file per minute. The passing suite is the demo's. Each gate is a
separate process, measured from start to end, including the import of Great Expectations and the JVM's start. CPU is
user and system time of the process and its JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from demo.flights import read_flights
from frazil.quality.gate import GateRequest, run_gates
from frazil.spark import jars
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table

INCLUDE = Path(__file__).parent.parent / "include"
FILES = 60
HOUR_US = 3_600_000_000
BEGIN_US = int(datetime(2013, 12, 30, 15, tzinfo=UTC).timestamp()) * 1_000_000


def make(rows: int) -> Table:
    table = ensure_table(load_catalog(None), load_stream(INCLUDE / "streams" / "flights.yaml"))
    flights = read_flights()
    each = rows // FILES
    for number in range(FILES):
        offsets = np.arange(number * each, (number + 1) * each)
        at = pa.array(BEGIN_US + offsets * HOUR_US // rows).cast(pa.timestamp("us", "UTC"))
        columns = {name: flights[name].take(pa.array(offsets % len(flights))) for name in flights.column_names}
        columns |= {"scheduled_departure": at, "kafka_timestamp": at, "kafka_topic": pa.array(["flights"] * each)}
        columns |= {"kafka_partition": pa.array((offsets % 4).astype(np.int32)), "kafka_offset": pa.array(offsets // 4)}
        schema = schema_to_pyarrow(table.schema())
        table.append(pa.table({name: columns[name] for name in schema.names}).cast(schema))
    return table


def failing(folder: Path) -> Path:
    """Return the demo's suite with three failing expectations."""
    content = json.loads((INCLUDE / "expectations" / "demo.flights.json").read_text())
    strict = {"dep_delay": {"max_value": 60}, "origin": {"value_set": ["EWR"]}, "air_time": {"min_value": 100}}
    for expectation in content["expectations"]:
        if set(expectation["kwargs"]) & {"max_value", "value_set"}:
            expectation["kwargs"] |= strict.get(expectation["kwargs"]["column"], {})
    path = folder / "failing.json"
    path.write_text(json.dumps(content))
    return path


def timed(request: GateRequest) -> None:
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    (found,) = run_gates([request], timeout_s=600)
    seconds = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{request.engine:5} {request.suite.name:17} {found.rows:>10,} rows, {len(found.failures)} failures: "
        f"wall {seconds:6.1f} s, CPU {cpu:6.1f} s, largest process so far {after.ru_maxrss / 1024:,.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=1, help="rows in the window")
    parser.add_argument("--engines", nargs="+", default=["arrow", "spark"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        table = make(int(options.millions * 1e6))
        request = GateRequest(
            suite=INCLUDE / "expectations" / "demo.flights.json",
            catalog=None,
            table="demo.flights",
            snapshot_id=table.metadata.current_snapshot_id or 0,
            event_time="scheduled_departure",
            from_us=BEGIN_US,
            to_us=BEGIN_US + HOUR_US,
            partition="2013-12-30T15",
            docs=Path(folder) / "docs",
            spark={"spark.jars": ",".join(str(jar) for jar in jars.ensure_jars("spark"))},
        )
        for engine in options.engines:
            for suite in (request.suite, failing(Path(folder))):
                timed(replace(request, engine=engine, suite=suite))


if __name__ == "__main__":
    main()
