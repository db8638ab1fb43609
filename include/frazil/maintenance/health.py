"""A table's health as measured: frozen numbers, and the ratios that decisions and alerts use.

Bytes are bytes; times are milliseconds since 1970, UTC. Everything but `partitions` comes from the table's metadata,
its newest snapshot's summary and manifest list, and the newest commit records; no manifest is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PartitionKey = tuple[int, tuple[object, ...]]
"""Identifies a partition: the spec's id and the values."""


def p10(sizes: Sequence[int]) -> int:
    """The size that a tenth of them do not exceed; 0 if there are none."""
    return sorted(sizes)[(len(sizes) - 1) // 10] if sizes else 0


@dataclass(frozen=True, slots=True)
class Deletes:
    """A partition's delete files, and what they leave of its data files.

    A merge of frazil writes delete files of one data file each, and so does Spark. Others' may be shared.
    """

    bytes: int = 0
    """Of the delete files."""
    rows: int = 0
    """Rows that they delete and that are still in live data files; of shared ones, all that they name."""
    shared: int = 0
    """Delete files that are not of one data file alone: whoever reads any data file of the partition reads them."""
    dangling: tuple[str, ...] = ()
    """Paths of delete files whose one data file is gone."""
    due_files: int = 0
    """Data files of whose rows `maintenance.compaction.deleted-rows` percent or more are deleted."""
    due_bytes: int = 0
    due_largest_bytes: int = 0
    due_small_files: int = 0
    """Those of them that are small."""
    due_small_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The live data files of one partition of one spec, from the manifests (`--deep`)."""

    spec_id: int
    values: tuple[object, ...]
    """The partition's values as in manifests: a day is the number of days since 1970, an hour that of hours."""
    path: str
    """As Iceberg writes it: `scheduled_departure_day=2013-12-30`; empty if the table is not partitioned."""
    files: int
    bytes: int
    small_files: int
    """Files below three quarters of the target size, which is Iceberg's own bound for compaction."""
    small_bytes: int
    delete_files: int
    window_end_us: int | None
    """The end of the partition's event time, in microseconds since 1970; None if it has none."""
    window_begin_us: int | None = None
    """The beginning of the partition's event time."""
    p10_bytes: int = 0
    """The size that a tenth of its files do not exceed."""
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
    """The size that a tenth of these files do not exceed."""
    partitions: int
    """Partitions that these commits wrote to, summed over the commits."""

    @property
    def files_per_partition(self) -> float:
        """Per commit."""
        return self.files / max(self.partitions, 1)


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """A stream that feeds the table. Unknown values are None."""

    name: str
    lag: int | None
    """Records in Kafka that are not committed; known if its writer runs on this host or Kafka was asked."""
    last_commit_at_ms: int | None
    """When its newest batch was committed; if the history has none any more, its marker's snapshot."""
    watermark_ms: int | None
    longest_interval_ms: int = 0
    """The longest declared time between its commits, throttled or not."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """One measurement of one table."""

    table: str
    at_ms: int
    snapshot_id: int | None
    target_file_bytes: int
    data_files: int
    data_bytes: int
    """Delete files included, as summaries count them; 0 despite files if no summary says."""
    rows: int
    delete_files: int
    manifests: int
    manifests_bytes: int
    """The lengths of all manifests together, from the manifest list."""
    manifest_list_bytes: int
    metadata_bytes: int
    """The uncompressed length of the current `metadata.json`, which each commit reads and writes."""
    snapshots: int
    oldest_snapshot_at_ms: int | None
    last_compaction_at_ms: int | None
    """When data files were last rewritten, as far as the history goes; if never, growth counts from its beginning."""
    files_since_compaction: int
    """By how many data files the table has grown since. Files in the place of others that merges replaced are none."""
    bytes_since_compaction: int
    recent: RecentFiles | None
    streams: tuple[StreamHealth, ...]
    """None for dead letters and signals, which may be silent for months while all is well."""
    partitions: Sequence[PartitionFiles] | None = None
    """Only in a deep measurement."""
    main_snapshots: int = 0
    """Snapshots in one line back from main's head, without single ones beyond it that a marker or a tag holds."""
    main_oldest_at_ms: int | None = None
    """The oldest of them."""
    deleted_rows: int = 0
    """Rows that delete files name, and that are still in data files, according to the newest snapshot's summary."""
    merged: bool = False
    """Whether a stream merges its batches into the table, which leaves a delete file for a data file."""

    @property
    def deleted_percent(self) -> float:
        """Of the rows in data files, how many percent are deleted: readers read these for nothing."""
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
