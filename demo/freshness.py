"""The freshness of a table: for every row, the time from the broker's timestamp to the commit of its snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

TIMESTAMP = "kafka_timestamp"


@dataclass(frozen=True, slots=True)
class Freshness:
    """Statistics of the seconds from the broker's timestamp to the commit."""

    rows: int
    p50_s: float
    p95_s: float
    worst_s: float


def freshness(table: Table, *, since_ms: int = 0) -> Freshness | None:
    """Return the freshness of rows that reached the broker at or after `since_ms`; None without such rows.

    Reads only the timestamp column, from files of unexpired snapshots.
    """
    ages = [age_ms for age_ms in _ages_ms(table, since_ms) if len(age_ms)]
    if not ages:
        return None
    seconds = np.concatenate(ages) / 1000
    p50, p95 = np.percentile(seconds, [50, 95])
    return Freshness(len(seconds), float(p50), float(p95), float(seconds.max()))


def _ages_ms(table: Table, since_ms: int) -> Iterator[npt.NDArray[np.int64]]:
    for snapshot in table.metadata.snapshots:
        # A rewrite adds no new rows.
        if snapshot.timestamp_ms < since_ms or (snapshot.summary and snapshot.summary.operation is Operation.REPLACE):
            continue
        for entry in _added(table, snapshot):
            with table.io.new_input(entry.data_file.file_path).open() as file:
                column = pq.read_table(file, columns=[TIMESTAMP])[TIMESTAMP]
            written_ms = pc.divide(pc.cast(column, "int64"), 1000).to_numpy()
            yield snapshot.timestamp_ms - written_ms[written_ms >= since_ms]


def _added(table: Table, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """Yield the data files that a commit added, even if they were rewritten later, unless they have expired."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                    yield entry
