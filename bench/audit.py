"""Measures `frazil audit` on an hour of a busy table: `python -m bench.audit --millions 10 --hours 2`.

Each hour has 60 commits over 32 topic-partitions, written and committed by the real code. The audit compares the
tables' files with the commit records: first one hour, as the hourly DAG does, then all hours, as `frazil audit` does
without a window. CPU is the user and system time of the whole process. The files were just written, so they come from
the page cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from frazil.audit.findings import Audit
from frazil.audit.stream_audit import audit_stream
from frazil.commit.history import Period
from frazil.spec.load import load_stream
from tests.made_batches import MadeStream

PARTITIONS = 32
COMMITS_AN_HOUR = 60
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
BEGIN_MS = (time.time_ns() // 1_000_000 // HOUR_MS + 1) * HOUR_MS
"""The next full hour: no commit is older than its table."""
STREAM = """\
name: ticks
source: {topics: [ticks], bootstrap-servers: "127.0.0.1:1"}
table: bench.ticks
schema:
  symbol: string not null
  price: double not null
  size: int
  at: timestamptz not null
event-time: at
partition-by: [hour(at)]
"""


def ticks(stream: MadeStream, rows: int) -> Mapping[str, pa.Array]:
    numbers = np.arange(rows)
    symbols = pa.array([f"SYM{n:05}" for n in range(2000)])
    return {
        "symbol": symbols.take(pa.array(numbers * 7919 % 2000)),
        "price": pa.array(numbers * 104_729 % 5_000_000 / 10_000),
        "size": pa.array((numbers * 31 % 999).astype(np.int32)),
        "at": pa.array(stream.now_ms * 1000 - numbers % 60_000_000).cast(pa.timestamp("us", "UTC")),
    }


def make(folder: Path, *, rows_an_hour: int, hours: int) -> MadeStream:
    (folder / "ticks.yaml").write_text(STREAM)
    stream = MadeStream(load_stream(folder / "ticks.yaml"), BEGIN_MS, partitions=PARTITIONS)
    stream.columns = lambda rows: ticks(stream, rows)
    each = rows_an_hour // COMMITS_AN_HOUR // PARTITIONS
    for number in range(hours * COMMITS_AN_HOUR):
        stream.now_ms = BEGIN_MS + number * MINUTE_MS + MINUTE_MS // 2
        stream.land(dict.fromkeys(range(PARTITIONS), (number * each, (number + 1) * each)))
    return stream


def timed(name: str, stream: MadeStream, window: Period | None) -> Audit:
    cpu, wall = time.process_time(), time.perf_counter()
    found = audit_stream(stream.tables, window=window)
    seconds = time.perf_counter() - wall
    rows = sum(p.rows for p in found.partitions)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:12} {found.batches:>4} batches, {rows:>11,} rows, clean: {found.clean}: wall {seconds:6.2f} s, "
        f"CPU {time.process_time() - cpu:6.2f} s, peak memory so far {memory:,.0f} MiB",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=10, help="rows an hour")
    parser.add_argument("--hours", type=int, default=2, help="hours in the table; the last one is audited")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        began = time.perf_counter()
        stream = make(Path(folder), rows_an_hour=int(options.millions * 1e6), hours=options.hours)
        print(f"made in {time.perf_counter() - began:.0f} s", flush=True)
        end_ms = BEGIN_MS + options.hours * HOUR_MS
        for _ in range(options.repeats):
            timed("last hour", stream, Period(end_ms - HOUR_MS, end_ms))
        timed("everything", stream, None)


if __name__ == "__main__":
    main()
