"""The cost of a commit as a table's history grows: `python -m bench.commit [SNAPSHOTS] [--substrate NAME]`.

Commits one staged file per batch, over 32 topic-partitions, to the embedded catalog (SQLite, local files) or another
substrate of `bench.substrates`. At each mark, prints wall and CPU time of the last 100 commits, and the sizes of the
files that a reader opens. *reader ms* is the time to load the table and plan a scan. For HTTP servers, also prints the
number of requests per commit. 3,600 commits are an hour at one commit per second. No maintenance runs; with
`--no-expiry`, the writer expires no snapshots either. The data files do not exist, because a commit never opens them.
"""

from __future__ import annotations

import argparse
import base64
import os
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from pyiceberg.conversions import to_bytes
from pyiceberg.types import DateType

from bench.substrates import NAMES, substrate
from frazil.commit.committer import Committer
from frazil.commit.expiry import Pins
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey
from frazil.commit.stream_tables import StreamTables
from frazil.commit.writer_expiry import WriterExpiry
from frazil.ingest.contract import RangeProgress, StagedFile
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import find_stream
from frazil.spec.maintenance import Expiry
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table

MARKS = (20, 50, 100, 200, 500, 1000, 1500, 2000, 3600)
PARTITIONS = [("flights", number) for number in range(32)]
RECENT = 100
RECORDS = 100
SOURCE = SourceIdentity("cluster", {"flights": "topic-id"})


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def open_tables(name: str | None = None) -> tuple[StreamTables, Committer]:
    spec = find_stream(Path(__file__).parent.parent / "include" / "streams", "flights")
    catalog = load_catalog(name)
    tables = StreamTables.open(
        spec.name,
        {"main": ensure_table(catalog, spec), "dead-letters": ensure_dead_letters(catalog, spec)},
        clock_ms=lambda: time.time_ns() // 1_000_000,
    )
    return tables, Committer.take_over(tables, source=SOURCE, initial=lambda: dict.fromkeys(PARTITIONS, 0))


def journal(tables: StreamTables, *, epoch: int, number: int) -> Journal:
    """Return the journal of one batch. Each batch reads the next `RECORDS` records of every partition into one file."""
    metadata = tables.main.current().metadata
    start, end = (number - 1) * RECORDS, number * RECORDS
    columns = range(1, 20)
    file = StagedFile(
        target="main",
        path=f"{metadata.location}/data/flights/{epoch:08d}/{number:08d}/0-0.parquet",
        records=RECORDS * len(PARTITIONS),
        bytes=100_000,
        schema_id=metadata.current_schema_id,
        spec_id=metadata.default_spec_id,
        sort_order_id=None,
        partition=(encoded(to_bytes(DateType(), 16000 + number // 1440)),),
        column_sizes=dict.fromkeys(columns, 5000),
        value_counts=dict.fromkeys(columns, 3200),
        null_value_counts=dict.fromkeys(columns, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(columns, encoded(b"aaaaaaaa")),
        upper_bounds=dict.fromkeys(columns, encoded(b"zzzzzzzz")),
        split_offsets=(4,),
    )
    return Journal(
        stream="flights",
        key=BatchKey(epoch, number),
        table_uuid=str(metadata.table_uuid),
        created_at_ms=0,
        source=SOURCE,
        progress=tuple(RangeProgress(*tp, start, end, RECORDS, 0, 1_388_000_000_000_000 + number) for tp in PARTITIONS),
        files=(file,),
        newest_dead_letters=None,
        idle=frozenset(),
        offsets_after=dict.fromkeys(PARTITIONS, end),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshots", nargs="?", type=int, default=MARKS[-1])
    parser.add_argument("--substrate", choices=NAMES)
    parser.add_argument("--no-expiry", action="store_true")
    parser.add_argument("--delay-ms", type=int, default=0, help="how long each request takes on its way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        delay_s = options.delay_ms / 1000
        there = substrate(options.substrate, Path(folder), delay_s=delay_s) if options.substrate else None
        with there or nullcontext(Counter()) as calls:
            measure(options.snapshots, calls, expires=not options.no_expiry)


def measure(last: int, calls: Counter[str], *, expires: bool) -> None:
    tables, committer = open_tables()
    expiry = WriterExpiry(Expiry(), Pins, tables.clock_ms) if expires else None
    tables.main.expiry = expiry
    wall_ms: list[float] = []
    cpu_ms: list[float] = []
    before = Counter(calls)
    print(
        f"{'commits':>7}  {'wall p50':>8}  {'p95':>6}  {'worst ms':>8}  {'CPU p50':>7}  {'mean ms':>7}  "
        f"{'metadata kB':>11}  {'snapshots':>9}  {'list kB':>7}  {'manifests':>9}  {'reader ms':>9}  {'CPU':>5}  "
        f"{'objects':>7}  requests a commit"
    )
    for number in range(1, last + 1):
        batch = journal(tables, epoch=committer.epoch, number=number)
        wall, cpu = time.perf_counter(), time.process_time()
        committer.commit(batch)
        wall_ms.append((time.perf_counter() - wall) * 1000)
        if expiry:
            expiry.continue_after(tables.main.current())
        cpu_ms.append((time.process_time() - cpu) * 1000)
        if number in MARKS:
            recent, used = sorted(wall_ms[-RECENT:]), sorted(cpu_ms[-RECENT:])
            count = len(recent)
            reported = ", ".join(f"{kind} {n / number:.2g}" for kind, n in sorted((calls - before).items()))
            table = tables.main.current()
            head = table.current_snapshot()
            assert head is not None
            wall, cpu = time.perf_counter(), time.process_time()
            planned = len([*load_catalog(None).load_table(tables.main.identifier).scan().plan_files()])
            wall, cpu = (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000
            if planned != number:
                raise RuntimeError(f"a reader finds {planned} of {number} files")
            folder = f"{table.location()}/metadata"
            metadata, listed = (len(table.io.new_input(of)) for of in (table.metadata_location, head.manifest_list))
            print(
                f"{number:>7}  {recent[count // 2]:>8.1f}  {recent[count * 95 // 100]:>6.1f}  {recent[-1]:>8.1f}  "
                f"{used[count // 2]:>7.1f}  {sum(used) / count:>7.1f}  "
                f"{metadata / 1000:>11.0f}  {len(table.metadata.snapshots):>9}  {listed / 1000:>7.1f}  "
                f"{len(head.manifests(table.io)):>9}  {wall:>9.0f}  {cpu:>5.0f}  "
                f"{len(tables.main.store.list_files(folder)):>7}  {reported}",
                flush=True,
            )


if __name__ == "__main__":
    main()
