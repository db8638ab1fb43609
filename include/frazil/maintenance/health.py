"""The measured health of a table: numbers, and the ratios that alerts and plans use. Times are ms since 1970. All
values except `partitions` come from metadata, the newest snapshot's summary and manifest list, and the newest commit
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PartitionKey = tuple[int, tuple[object, ...]]
"""A partition spec's id, and the partition's values."""


def p10(sizes: Sequence[int]) -> int:
    return sorted(sizes)[(len(sizes) - 1) // 10] if sizes else 0


def are_large(files: int, size: int, target_bytes: int) -> bool:
    """Return whether files of this total size are, on average, near the target."""
    return 4 * size >= 3 * files * target_bytes


@dataclass(frozen=True, slots=True)
class Deletes:
    """A partition's delete files. Each applies to one data file, or is shared by several."""

    bytes: int = 0
    rows: int = 0
    """Deleted rows in live data files, including all rows of shared delete files."""
    shared: int = 0
    """Delete files that apply to several data files, or delete by column values."""
    dangling: tuple[str, ...] = ()
    """Delete files whose only data file no longer exists."""
    due_files: int = 0
    """Data files with at least `maintenance.compaction.deleted-rows` percent of deleted rows."""
    due_bytes: int = 0
    due_largest_bytes: int = 0
    due_small_files: int = 0
    due_small_bytes: int = 0
    scaled_due_files: int = 0
    """Small data files with many deleted rows for their size. The limit is `maintenance.compaction.deleted-rows`
    percent at the target size, and half of this limit at half of the target size.
    """


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """A partition's live data files, counted from the manifests (`--deep`)."""

    spec_id: int
    values: tuple[object, ...]
    """Values as stored in manifests: days or hours count from 1970."""
    path: str
    """The partition's path, such as `scheduled_departure_day=2013-12-30`; "" without partitions."""
    files: int
    bytes: int
    small_files: int
    """Number of files below three quarters of the target size."""
    small_bytes: int
    delete_files: int
    window_end_us: int | None
    """End of the partition's event-time range (us since 1970), if it has one."""
    window_begin_us: int | None = None
    p10_bytes: int = 0
    deletes: Deletes = Deletes()

    @property
    def key(self) -> PartitionKey:
        return self.spec_id, self.values


@dataclass(frozen=True, slots=True)
class RecentFiles:
    commits: int
    files: int
    bytes: int
    p10_bytes: int
    partitions: int
    """Number of partitions to which each commit wrote, summed over commits."""

    @property
    def files_per_partition(self) -> float:
        return self.files / max(self.partitions, 1)


@dataclass(frozen=True, slots=True)
class ManifestGroup:
    """The manifests of one partition spec that list data files, or of those that list delete files."""

    spec_id: int
    deletes: bool
    manifests: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """One stream that feeds the table. Unknown values are None."""

    name: str
    lag: int | None
    """Uncommitted records in Kafka, according to this host's writer or to Kafka."""
    last_commit_at_ms: int | None
    """Time of the newest batch, or of the marker's snapshot."""
    watermark_ms: int | None
    longest_interval_ms: int = 0
    """The longest time between two commits under throttling."""
    lag_problem: str | None = None
    """Why the lag could not be read, if so."""
    caught_up_at_ms: int | None = None
    """When this host's last writer had committed all records; None if another has taken over since."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    table: str
    at_ms: int
    snapshot_id: int | None
    target_file_bytes: int
    data_files: int
    data_bytes: int
    rows: int
    delete_files: int
    manifests: int
    manifests_bytes: int
    """Total size of the manifests, according to the manifest list."""
    manifest_list_bytes: int
    metadata_bytes: int
    """Size of the uncompressed `metadata.json`, which each commit reads and writes."""
    snapshots: int
    oldest_snapshot_at_ms: int | None
    last_compaction_at_ms: int | None
    """Time of the last compaction; None if it is not in the history. Then `files_since_compaction` and
    `bytes_since_compaction` count from the history's start, or all files if files are small on average.
    """
    files_since_compaction: int
    """Increase in data files since the last compaction. Files that a merge only replaces do not count."""
    bytes_since_compaction: int
    recent: RecentFiles | None
    streams: tuple[StreamHealth, ...]
    """The health of each stream; empty for dead letters and signals."""
    partitions: Sequence[PartitionFiles] | None = None
    """The partitions' files, if the measurement is deep."""
    main_snapshots: int = 0
    """Number of snapshots in main's history, except those that only a marker or tag keeps."""
    main_oldest_at_ms: int | None = None
    deleted_rows: int = 0
    """Number of deleted rows still in data files, according to the summary."""
    merged: bool = False
    """Whether a stream merges into the table, and so adds delete files."""
    format_version: int = 2
    folds: int = 0
    """Number of snapshots in which a writer replaced its own small files, as `fold-files` declares."""
    last_fold_at_ms: int | None = None
    manifest_groups: tuple[ManifestGroup, ...] = ()
    """The manifests that can be merged with each other."""

    @property
    def deleted_percent(self) -> float:
        """Percentage of deleted rows among the rows in data files."""
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
