"""Measures, minute by minute, what a table costs its writer and its readers while it is written. Writes a CSV file."""

from __future__ import annotations

import csv
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.manifest import DataFile, ManifestEntryStatus, clear_manifest_cache
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from bench.meter.process_tree import SampledTree

MAX_SNAPSHOTS = 100
"""Maximum number of snapshots per minute that are sampled for the freshness."""
SQL = 'SELECT count(*), avg(price) FROM read_parquet({!r}) WHERE epoch_ms("at") >= {}'
Row = dict[str, float]


@dataclass(slots=True)
class Minutes:
    """Measures freshness, commits and CPU since the last `note`, and the current metadata, files and query time."""

    catalog: Catalog
    name: str
    writer: SampledTree
    log: Path
    rows: list[Row] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    ages_s: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _seen: set[int] = field(default_factory=set)
    _log_bytes: int = 0
    _records: int = 0
    _cpu_s: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._cpu_s = self.writer.cpu_s()

    def note(self) -> Row:
        row: Row = {"minute": round((time.monotonic() - self.began) / 60, 1)}
        table = self.catalog.load_table(self.name)
        row |= self._freshness(table) | self._commits() | self._cpu(table) | _sizes(table)
        row |= query(self.catalog, self.name)
        self.rows.append(row)
        return row

    def landed(self) -> int:
        """Return the number of records in the table now."""
        return _total(self.catalog.load_table(self.name), "total-records")

    def write(self, path: Path) -> None:
        """Write all rows. Called after each minute, so that an interrupted benchmark leaves its results."""
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]), restval="")
            writer.writeheader()
            writer.writerows(self.rows)

    def _freshness(self, table: Table) -> Row:
        """Return the seconds from Kafka's timestamp to the commit, for rows appended since the last `note`."""
        new = [each for each in table.metadata.snapshots if each.snapshot_id not in self._seen]
        self._seen |= {each.snapshot_id for each in new}
        appends = [each for each in new if each.summary and each.summary.operation == Operation.APPEND]
        ages = [age for each in appends[:: -(-len(appends) // MAX_SNAPSHOTS) or 1] for age in _ages_s(table, each)]
        if not ages:
            return {"fresh_p50_s": 0, "fresh_p95_s": 0, "fresh_worst_s": 0}
        self.ages_s += ages
        found = np.concatenate(ages)
        p50, p95 = np.percentile(found, [50, 95])
        return {"fresh_p50_s": round(p50, 2), "fresh_p95_s": round(p95, 2), "fresh_worst_s": round(found.max(), 2)}

    def _commits(self) -> Row:
        with self.log.open("rb") as file:
            file.seek(self._log_bytes)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._log_bytes += len(text)
        took = [float(found) for found in re.findall(rb"committed in ([0-9.]+) s", text)]
        self.commit_s += took
        p50, p95 = np.percentile(took or [0.0], [50, 95]) * 1000
        return {"commits": len(took), "commit_p50_ms": round(p50), "commit_p95_ms": round(p95),
                "commit_worst_ms": round(max(took, default=0) * 1000)}  # fmt: skip

    def _cpu(self, table: Table) -> Row:
        used, records = self.writer.cpu_s(), _total(table, "total-records")
        since, added = used - self._cpu_s, records - self._records
        self._cpu_s, self._records = used, records
        millions = max(added, 1) / 1e6
        found = {"records": added, "core_s_per_million": round(since.total() / millions, 3)}
        return found | {f"{role} core_s": round(since[role], 1) for role in ("driver", "JVM", "Python worker")}


def _ages_s(table: Table, snapshot: Snapshot) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    ages = []
    for file in _added(table, snapshot):
        with table.io.new_input(file.file_path).open() as opened:
            written = pq.read_table(opened, columns=["kafka_timestamp"])["kafka_timestamp"]
        ages.append(snapshot.timestamp_ms / 1e3 - pc.cast(written, "int64").to_numpy() / 1e6)
    return ages


def _added(table: Table, snapshot: Snapshot) -> list[DataFile]:
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]


def _sizes(table: Table) -> Row:
    head = table.current_snapshot()
    return {
        "snapshots": len(table.metadata.snapshots),
        "metadata_kb": round(len(table.io.new_input(table.metadata_location)) / 1000),
        "manifests": len(head.manifests(table.io)) if head else 0,
        "files": _total(table, "total-data-files"),
        "table_mb": round(_total(table, "total-files-size") / 1e6),
    }


def query(catalog: Catalog, name: str) -> Row:
    """Measure a DuckDB query of the last minute, and the plan of all files. Each loads the table from the catalog."""
    clear_manifest_cache()
    began = time.perf_counter()
    every = len(list(catalog.load_table(name).scan().plan_files()))
    planned = time.perf_counter()
    clear_manifest_cache()
    since_ms = time.time_ns() // 1_000_000 - 60_000
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat()
    scan = catalog.load_table(name).scan(GreaterThanOrEqual("at", since))
    files = [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
    with duckdb.connect() as memory:
        rows = (memory.execute(SQL.format(files, since_ms)).fetchone() or (0,))[0] if files else 0
    return {"plan_files": every, "plan_ms": round((planned - began) * 1000), "query_files": len(files),
            "query_rows": rows, "query_ms": round((time.perf_counter() - planned) * 1000)}  # fmt: skip


def _total(table: Table, what: str) -> int:
    head = table.current_snapshot()
    return int(head.summary[what]) if head and head.summary else 0
