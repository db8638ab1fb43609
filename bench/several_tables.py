"""Compares an atomic commit to five tables with a commit to one table, and with five commits in turn.

`python -m bench.several_tables [--commits 60] [--substrate postgres+local] [--delay-ms 0]`. Each commit adds one staged
file to each table. The three ways take turns after each commit, on separate tables, so that the machine's load affects
them equally. The data files do not exist, because a commit never opens them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from bench.commit import encoded
from bench.substrates import NAMES, substrate
from frazil import clock
from frazil.commit.compare_and_swap import Change, RetryPolicy, TableCommit, TableHandle, commit_snapshots
from frazil.commit.snapshot import SnapshotWriter
from frazil.ingest.contract import StagedFile
from frazil.spec.iceberg import table_schema
from frazil.spec.load import find_stream
from frazil.table.atomic_catalogs import CommitTables, find_commit_tables
from frazil.table.catalogs import load_catalog

TABLES = 5


def made(catalog: Catalog, way: str, count: int) -> list[TableHandle]:
    spec = find_stream(Path(__file__).parent.parent / "include" / "streams", "flights")
    catalog.create_namespace_if_not_exists("bench")
    names = [f"bench.{way}_{number}" for number in range(count)]
    for name in names:
        catalog.create_table(name, table_schema(spec))
    return [TableHandle(catalog, name) for name in names]


def staged(table: Table, number: int) -> StagedFile:
    columns = [column.field_id for column in table.schema().fields]
    return StagedFile(
        target="main",
        path=f"{table.location()}/data/{number:08d}.parquet",
        records=3200,
        bytes=100_000,
        schema_id=table.metadata.current_schema_id,
        spec_id=table.metadata.default_spec_id,
        sort_order_id=None,
        partition=(),
        column_sizes=dict.fromkeys(columns, 5000),
        value_counts=dict.fromkeys(columns, 3200),
        null_value_counts=dict.fromkeys(columns, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(columns, encoded(b"aaaaaaaa")),
        upper_bounds=dict.fromkeys(columns, encoded(b"zzzzzzzz")),
        split_offsets=(4,),
    )


def commit_of(handle: TableHandle, number: int) -> TableCommit[int]:
    writer = SnapshotWriter((staged(handle.current(), number),))

    def propose(table: Table) -> Change[int]:
        prepared = writer.prepare(table, summary={"bench": str(number)}, now_ms=clock.now_ms())
        marked = SetPropertiesUpdate(updates={"bench.number": str(number)})
        return Change(prepared.requirements, (*prepared.updates, marked), number, ("bench.number", str(number)))

    return TableCommit(handle, propose, (writer,))


def timed(tables: Sequence[TableHandle], number: int, commit_atomically: CommitTables | None) -> tuple[float, float]:
    """Make one commit, and return its wall and CPU milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    commit_snapshots(
        [commit_of(handle, number) for handle in tables],
        retry_policy=RetryPolicy(),
        commit_atomically=commit_atomically,
    )
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def measure(commits: int) -> None:
    catalog = load_catalog(None)
    commit_atomically = find_commit_tables(catalog)
    ways = {
        "one table": (made(catalog, "one", 1), None),
        "five at once": (made(catalog, "commit_atomically", TABLES), commit_atomically),
        "five in turn": (made(catalog, "in_turn", TABLES), None),
    }
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(1, commits + 1):
        for way, (tables, how) in ways.items():
            took[way].append(timed(tables, number, how))
    warm = {way: sorted(each[commits // 5 :]) for way, each in took.items()}
    single = warm["one table"][len(warm["one table"]) // 2][0]
    print(f"{'':>14}  {'wall p50 ms':>11}  {'wall p95 ms':>11}  {'CPU p50 ms':>10}  of one table's p50")
    for way, each in warm.items():
        p50, p95 = each[len(each) // 2][0], each[len(each) * 95 // 100][0]
        cpu = sorted(used for _, used in each)[len(each) // 2]
        print(f"{way:>14}  {p50:>11.1f}  {p95:>11.1f}  {cpu:>10.1f}  {p50 / single:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--substrate", choices=NAMES, default="postgres+local")
    parser.add_argument("--delay-ms", type=int, default=0, help="how long each request takes on its way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_HOME"] = folder
        with substrate(options.substrate, Path(folder), delay_s=options.delay_ms / 1000):
            measure(options.commits)


if __name__ == "__main__":
    main()
