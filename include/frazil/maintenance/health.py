"""A table's measured health: frozen numbers, and the ratios that decisions and alerts use.

Bytes are bytes; times are milliseconds since 1970, UTC. Everything except `partitions` comes from the table's metadata,
its newest snapshot's summary and manifest list, and the newest commit records, without opening a manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PartitionKey = tuple[int, tuple[object, ...]]
"""Identifies a partition: the spec's id and the values."""


def p10(sizes: Sequence[int]) -> int:
    """The tenth percentile of sizes; 0 if there are none."""
    return sorted(sizes)[(len(sizes) - 1) // 10] if sizes else 0


@dataclass(frozen=True, slots=True)
class Deletes:
    """A partition's delete files and their effect on its data files.

    frazil's and Spark's merges write one delete file per data file. Other engines may share delete files.
    """

    bytes: int = 0
    """Size of the delete files."""
    rows: int = 0
    """Deleted rows that are still in live data files; for shared delete files, all rows that they name."""
    shared: int = 0
    """Delete files that cover several data files: a reader of any data file of the partition reads them."""
    dangling: tuple[str, ...] = ()
    """Paths of delete files whose one data file is gone."""
    due_files: int = 0
    """Data files in which at least `maintenance.compaction.deleted-rows` percent of the rows are deleted."""
    due_bytes: int = 0
    due_largest_bytes: int = 0
    due_small_files: int = 0
    """Small files among `due_files`."""
    due_small_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The live data files of one partition of one spec, from the manifests (`--deep`)."""

    spec_id: int
    values: tuple[object, ...]
    """The partition's values as in manifests: a day is a number of days since 1970, an hour a number of hours."""
    path: str
    """Path in Iceberg's form: `scheduled_departure_day=2013-12-30`; empty if the table is not partitioned."""
    files: int
    bytes: int
    small_files: int
    """Files below three quarters of the target size, Iceberg's own bound for compaction."""
    small_bytes: int
    delete_files: int
    window_end_us: int | None
    """The end of the partition's event time, in microseconds since 1970; None if it has none."""
    window_begin_us: int | None = None
    """The beginning of the partition's event time."""
    p10_bytes: int = 0
    """Tenth percentile of its files' sizes."""
    deletes: Deletes = Deletes()

    @property
    def key(self) -> PartitionKey:
        return self.spec_id, self.values


@dataclass(frozen=True, slots=True)
class RecentFiles:
    """The data files that the newest commits added."""

    commits: int
    files: int
    bytes: int
    p10_bytes: int
    """Tenth percentile of these files' sizes."""
    partitions: int
    """Partitions that these commits wrote to, summed over the commits."""

    @property
    def files_per_partition(self) -> float:
        """Files per partition and commit."""
        return self.files / max(self.partitions, 1)


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """A stream that feeds the table. Unknown values are None."""

    name: str
    lag: int | None
    """Uncommitted records in Kafka; known if its writer runs on this host or Kafka was asked."""
    last_commit_at_ms: int | None
    """Time of its newest batch; if the history has no batch, the time of its marker's snapshot."""
    watermark_ms: int | None
    longest_interval_ms: int = 0
    """The longest declared time between its commits, throttled or not."""
    lag_problem: str | None = None
    """Why the lag could not be read; None if it is known, or was not read."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """One measurement of one table."""

    table: str
    at_ms: int
    snapshot_id: int | None
    target_file_bytes: int
    data_files: int
    data_bytes: int
    """Includes delete files, as summaries do; 0 despite files if no summary has the size."""
    rows: int
    delete_files: int
    manifests: int
    manifests_bytes: int
    """Total length of all manifests, from the manifest list."""
    manifest_list_bytes: int
    metadata_bytes: int
    """The uncompressed length of the current `metadata.json`, which each commit reads and writes."""
    snapshots: int
    oldest_snapshot_at_ms: int | None
    last_compaction_at_ms: int | None
    """Time of the last rewrite of data files, within the history; if none, growth counts from the history's start."""
    files_since_compaction: int
    """Growth in data files since then. Files that replace others, as in merges, do not count."""
    bytes_since_compaction: int
    recent: RecentFiles | None
    streams: tuple[StreamHealth, ...]
    """Streams that feed the table; empty for dead letters and signals, which may be silent for months."""
    partitions: Sequence[PartitionFiles] | None = None
    """Only in a deep measurement."""
    main_snapshots: int = 0
    """Snapshots in one line back from main's head, without single older ones that a marker or a tag holds."""
    main_oldest_at_ms: int | None = None
    """Time of the oldest of them."""
    deleted_rows: int = 0
    """Deleted rows that are still in data files, according to the newest snapshot's summary."""
    merged: bool = False
    """Whether a stream merges its batches into the table, which adds delete files for data files."""

    @property
    def deleted_percent(self) -> float:
        """Percentage of rows in data files that are deleted: readers read them in vain."""
        return 100 * self.deleted_rows / max(self.rows + self.deleted_rows, 1)

    @property
    def delete_files_per_file(self) -> float:
        return self.delete_files / max(self.data_files, 1)

    @property
    def average_file_bytes(self) -> float:
        return self.data_bytes / max(self.data_files, 1)

    @property
    def manifest_list_bytes_per_file(self) -> float:
        return self.manifest_list_bytes / max(self.data_files, 1)

    @property
    def manifests_per_file(self) -> float:
        return self.manifests / max(self.data_files, 1)
