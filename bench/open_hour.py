"""What queries of the hour that is still written cost: `python -m bench.open_hour [--commits 1800] [--rows 2000]`.

The real committer commits the same files to two tables. On one of them, the writer also folds its small files
(`maintenance.compaction.fold-files`), here in the same thread, so that its CPU is known. At `--moments` random moments,
each engine counts rows and averages a price of the hour so far, without caches. It reads this table and a copy that
Spark has just rewritten; the last time, it also reads the table that is not folded. Prints the p95 of all moments.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from bench.day.queries import ENGINES, Readers, compacted_copy
from bench.day.tables import BEGIN_US, HOUR_US, Day, now_ms
from bench.maintenance_day import name, start_spark
from frazil.commit.writer_folding import WriterFolding
from frazil.table.catalogs import load_catalog

TABLES = ("maintained", "unattended", "compacted")
TITLES = dict(zip(TABLES, ("folded", "not folded", "compacted"), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1800, help="an hour")
    parser.add_argument("--rows", type=int, default=2000, help="a commit")
    parser.add_argument("--fold-files", type=int, default=8)
    parser.add_argument("--moments", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="runs per query, table, engine and moment")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FRAZIL_HOME": folder, "PYICEBERG_HOME": folder}
        spark = start_spark()
        try:
            measure(chosen, Day(Path(folder), chosen.commits, 1, chosen.rows), Readers(load_catalog(None), spark))
        finally:
            spark.stop()


def measure(chosen: argparse.Namespace, day: Day, readers: Readers) -> None:
    tables = day.maintained.tables
    folding = WriterFolding(tables.stream, tables.main, chosen.fold_files, now_ms, lambda work: work())  # type: ignore[arg-type, return-value]
    cpu_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
    files: dict[str, list[int]] = defaultdict(list)
    folding_s = committing_s = 0.0
    moments = np.random.default_rng(4).integers(chosen.commits // 4, chosen.commits, chosen.moments).tolist()
    for commit in range(1, chosen.commits + 1):
        began = time.process_time()
        day.commit()
        committed = time.process_time()
        folding.continue_after(day.maintained.staged)
        committing_s, folding_s = committing_s + committed - began, folding_s + time.process_time() - committed
        if commit in moments:
            compacted_copy(readers, name("maintained"), name("compacted"))
            for turn in range(-1, chosen.repeats):
                for engine in ENGINES:
                    for table in np.roll(TABLES if commit == max(moments) else (TABLES[0], TABLES[2]), turn):
                        rows, cost = readers.query(engine, name(str(table)), BEGIN_US, BEGIN_US + HOUR_US)
                        if rows != commit * chosen.rows:
                            raise RuntimeError(f"{engine} found {rows} rows of {commit * chosen.rows} in table {table}")
                        if turn >= 0:
                            cpu_ms[engine, str(table)].append(cost.cpu_ms)
            for table in TABLES:
                head = readers.catalog.load_table(name(table)).current_snapshot()
                files[table].append(int((head and head.summary and head.summary["total-data-files"]) or 0))
    rows = chosen.commits * chosen.rows
    what = f"{chosen.commits} commits of {chosen.rows} rows, load {os.getloadavg()[0]:.1f}"
    cost = f"folding {folding_s:.1f} ({folding_s / rows * 1e6:.2f} per million rows)"
    print(f"{what}: CPU of writing and committing a table {committing_s / 2:.1f} core-s, of {cost}")
    print(f"| query p95, CPU ms | {' | '.join(TITLES.values())} | folded, of compacted |\n|{'---|' * 5}")
    for engine in ENGINES:
        p95 = [float(np.percentile(cpu_ms[engine, table], 95)) for table in TABLES]
        print(f"| {engine} | {' | '.join(f'{value:.0f}' for value in p95)} | {p95[0] / p95[2]:.2f} |")
    print(f"| files | {' | '.join(', '.join(map(str, files[table])) for table in TABLES)} | |")


if __name__ == "__main__":
    main()
