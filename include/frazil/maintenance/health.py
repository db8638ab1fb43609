"""A table's health as it was measured: frozen numbers, and the ratios that decisions and alerts are made of.

Bytes are bytes; times are milliseconds since 1970, UTC. All but `partitions` comes from the table's metadata, its
newest snapshot's summary and manifest list, and the newest commit records: no manifest is opened for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def p10(sizes: Sequence[int]) -> int:
    """The size that a tenth of them do not exceed; 0 of none."""
    return sorted(sizes)[(len(sizes) - 1) // 10] if sizes else 0


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The live data files of one partition of one spec, from the manifests (`--deep`)."""

    spec_id: int
    values: tuple[object, ...]
    """The partition's values as manifests hold them: a day is days since 1970, an hour is hours."""
    path: str
    """As Iceberg writes it: `scheduled_departure_day=2013-12-30`; empty where the table is not partitioned."""
    files: int
    bytes: int
    small_files: int
    """Below three quarters of the target size, Iceberg's own bound of what compaction takes."""
    small_bytes: int
    delete_files: int
    window_end_us: int | None
    """The end of the partition's time of the event, in microseconds since 1970; None where it has no such part."""
    window_begin_us: int | None = None
    """And its beginning."""
    p10_bytes: int = 0
    """The size that a tenth of its files do not exceed."""


@dataclass(frozen=True, slots=True)
class RecentFiles:
    """What the newest commits added, from their commit records."""

    commits: int
    files: int
    bytes: int
    p10_bytes: int
    """The size that a tenth of these files do not exceed."""
    partitions: int
    """That these commits wrote to, counted anew in each commit."""

    @property
    def files_per_partition(self) -> float:
        """Of one commit."""
        return self.files / max(self.partitions, 1)


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """A stream that feeds the table. What is unknown is None."""

    name: str
    lag: int | None
    """Records in Kafka that are not committed; known where its writer runs on this host, or Kafka was asked."""
    last_commit_at_ms: int | None
    """Of its newest batch; where the history has none any more, of the snapshot that its marker came with."""
    watermark_ms: int | None
    longest_interval_ms: int = 0
    """How far its commits may be apart as declared, throttled or not."""


@dataclass(frozen=True, slots=True)
class TableHealth:
    """One measurement of one table."""

    table: str
    at_ms: int
    snapshot_id: int | None
    target_file_bytes: int
    data_files: int
    data_bytes: int
    """With those of delete files, as summaries count them; 0 beside files where no summary says."""
    rows: int
    delete_files: int
    manifests: int
    manifests_bytes: int
    """The manifests' own lengths together, as the manifest list has them."""
    manifest_list_bytes: int
    metadata_bytes: int
    """Of the current `metadata.json`, uncompressed: what each commit reads and writes."""
    snapshots: int
    oldest_snapshot_at_ms: int | None
    last_compaction_at_ms: int | None
    """The newest snapshot of a rewrite of data files that the history still has; without one, what was added since
    is counted as far back as the history goes."""
    files_since_compaction: int
    bytes_since_compaction: int
    recent: RecentFiles | None
    streams: tuple[StreamHealth, ...]
    """None for dead letters and signals, which may rest for months while all is well."""
    partitions: Sequence[PartitionFiles] | None = None
    """Only of a deep measurement."""
    main_snapshots: int = 0
    """In one line from main's head back: without single snapshots beyond it that a marker or a tag holds."""
    main_oldest_at_ms: int | None = None
    """Of that line."""

    @property
    def average_file_bytes(self) -> float:
        return self.data_bytes / max(self.data_files, 1)

    @property
    def manifest_list_bytes_per_file(self) -> float:
        return self.manifest_list_bytes / max(self.data_files, 1)

    @property
    def manifests_per_file(self) -> float:
        return self.manifests / max(self.data_files, 1)
