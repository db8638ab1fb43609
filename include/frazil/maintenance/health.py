"""The measured health of a table: immutable numbers, and the ratios that alerts and maintenance plans use.

Times are in milliseconds since 1970, UTC. Everything except `partitions` comes from the table's metadata, the newest
snapshot's summary and manifest list, and the newest commit records. No manifest is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PartitionKey = tuple[int, tuple[object, ...]]
"""Identifies a partition: the id of its partition spec, and its values."""


def p10(sizes: Sequence[int]) -> int:
    """Return the tenth percentile of the sizes; 0 if there are no sizes."""
    return sorted(sizes)[(len(sizes) - 1) // 10] if sizes else 0


@dataclass(frozen=True, slots=True)
class Deletes:
    """Delete files of one partition, and their effect on its data files.

    Merges by frazil and Spark write one delete file per data file. Other engines may share one among data files.
    """

    bytes: int = 0
    rows: int = 0
    """Number of deleted rows in live data files. For a shared delete file, all rows that it lists count."""
    shared: int = 0
    """Number of delete files that apply to several data files."""
    dangling: tuple[str, ...] = ()
    """Paths of delete files whose only data file is gone."""
    due_files: int = 0
    """Number of data files in which at least `maintenance.compaction.deleted-rows` percent of the rows are deleted."""
    due_bytes: int = 0
    due_largest_bytes: int = 0
    due_small_files: int = 0
    """Number of small files among the `due_files`."""
    due_small_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """Live data files of one partition of one partition spec, counted from the manifests (`--deep`)."""

    spec_id: int
    values: tuple[object, ...]
    """The partition's values as stored in manifests: a day or hour is the number of days or hours since 1970."""
    path: str
    """Path in Iceberg's form, such as `scheduled_departure_day=2013-12-30`; empty if the table is not partitioned."""
    files: int
    bytes: int
    small_files: int
    """Number of files below three quarters of the target size, Iceberg's limit for compaction."""
    small_bytes: int
    delete_files: int
    window_end_us: int | None
    """End of the partition's event-time range, in microseconds since 1970; None if the partition has no event time."""
    window_begin_us: int | None = None
    """Start of the same range; None if the partition has no event time."""
    p10_bytes: int = 0
    deletes: Deletes = Deletes()

    @property
    def key(self) -> PartitionKey:
        return self.spec_id, self.values


@dataclass(frozen=True, slots=True)
class RecentFiles:
    """Data files that the newest commits added to the table."""

    commits: int
    files: int
    bytes: int
    p10_bytes: int
    partitions: int
    """Number of partitions to which a commit wrote, summed over these commits."""

    @property
    def files_per_partition(self) -> float:
        return self.files / max(self.partitions, 1)


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """Health of one stream that feeds the table. Unknown values are None."""

    name: str
    lag: int | None
    """Number of records in Kafka that are not committed yet, from a writer on this host or from Kafka."""
    last_commit_at_ms: int | None
    """Time of the stream's newest batch; if the history has none, the time of the snapshot in the stream's marker."""
    watermark_ms: int | None
    longest_interval_ms: int = 0
    """Longest declared time between two commits of the stream, throttled or not."""
    lag_problem: str | None = None
    """Why the lag could not be read; None if the lag is known, or was not requested."""
    caught_up_at_ms: int | None = None
    """When this host's last writer had last committed every record in Kafka; None if another writer has committed."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """One measurement of one table."""

    table: str
    at_ms: int
    snapshot_id: int | None
    target_file_bytes: int
    data_files: int
    data_bytes: int
    """Size of data files and delete files according to the snapshot's summary; 0 if the summary does not have it."""
    rows: int
    delete_files: int
    manifests: int
    manifests_bytes: int
    """Total size of all manifests, according to the manifest list."""
    manifest_list_bytes: int
    metadata_bytes: int
    """Uncompressed size of the current `metadata.json`, which each commit reads and writes."""
    snapshots: int
    oldest_snapshot_at_ms: int | None
    last_compaction_at_ms: int | None
    """Time of the last commit that rewrote data files. If None, the next two count from the start of the history."""
    files_since_compaction: int
    """Number of data files by which the table has grown. Files that replace others, as in merges, do not count."""
    bytes_since_compaction: int
    recent: RecentFiles | None
    streams: tuple[StreamHealth, ...]
    """Streams that feed the table; empty for dead letters and signals, which may get no rows for months."""
    partitions: Sequence[PartitionFiles] | None = None
    """File counts by partition; None unless the measurement is deep."""
    main_snapshots: int = 0
    """Number of snapshots in main's history. Older snapshots that only a marker or tag keeps do not count."""
    main_oldest_at_ms: int | None = None
    """Time of the oldest snapshot that `main_snapshots` counts."""
    deleted_rows: int = 0
    """Number of deleted rows that are still stored in data files, according to the newest snapshot's summary."""
    merged: bool = False
    """Whether a stream merges its batches into the table, which adds delete files."""

    @property
    def deleted_percent(self) -> float:
        """Percentage of the rows in data files that are deleted: readers read these rows for nothing."""
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
