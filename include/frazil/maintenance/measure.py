"""Measures a table's health from metadata, the newest manifest list, each stream's newest 12 commit records, and this
host's heartbeats. The cost does not grow with rows or files. Opens only manifests of an upsert stream's newest 12
merges, unless the measurement is deep (`frazil.maintenance.partition_files`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from itertools import islice

from confluent_kafka import KafkaException
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.commit_checks import check_ancestry, check_same_source
from frazil.commit.history import (
    ancestors,
    ancestors_and_older_snapshots,
    commit_records,
    is_compaction,
    is_fold,
    is_replace,
    last_commit_ms,
)
from frazil.commit.journal import JournalStore
from frazil.commit.marker import Marker, read_marker
from frazil.commit.open_streams import open_kafka
from frazil.commit.staging_targets import target_file_bytes
from frazil.errors import FrazilError, MarkerUnreadable, RolledBack, SpecError
from frazil.host.launcher import Observation
from frazil.host.local import LocalLauncher
from frazil.ingest.contract import Target
from frazil.kafka.admin import TIMEOUT_S
from frazil.maintenance.due import Action, find_due_actions
from frazil.maintenance.health import ManifestGroup, RecentFiles, StreamHealth, TableHealth, are_large, p10
from frazil.maintenance.partition_files import read_partitions
from frazil.maintenance.tables import MaintainedTable, TableKind, maintained_tables, template_table
from frazil.offsets.spans import count_unread
from frazil.spec.model import StreamSpec
from frazil.status.freshness import freshness_limit_ms, freshness_ms
from frazil.supervise.decision import get_fresh_heartbeat, get_known_lag, is_fenced
from frazil.table.branches import count_live_rows, head_of, summary_value
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.declared_tables import list_matching_names

logger = logging.getLogger(__name__)

MAX_COMMIT_RECORDS = 12
"""Maximum number of commit records that are read per stream."""


class NotMadeByRoute(SpecError):
    """A table with a name of a route's template that the route did not create."""


def load_maintained(catalog: Catalog, maintained: MaintainedTable) -> Table:
    """Load the table. Raises NoSuchTableError, NotMadeByRoute, and the catalog's errors."""
    table = catalog.load_table(maintained.identifier)
    if maintained.kind is not TableKind.ROUTED:
        return table
    if any(spec.sinks.owns(maintained.identifier, table.properties) for spec in maintained.streams):
        return table
    raise NotMadeByRoute(
        f"table {maintained.identifier} has a name like the tables of stream {maintained.streams[0].name!r}'s route, "
        "but the route did not create it, so maintenance skips it. Add it to route.tables if the stream should write "
        "to it"
    )


class LagQuery(Enum):
    NEVER = auto()
    FOR_ALERTS = auto()
    """Ask Kafka only if an alert needs the lag."""
    ALWAYS = auto()


def measure(
    catalog: Catalog,
    maintained: MaintainedTable,
    *,
    now_ms: int,
    deep: bool = False,
    lag_query: LagQuery = LagQuery.NEVER,
) -> TableHealth | None:
    """Return the table's health, if it exists. `deep` adds partitions. Raises storage errors."""
    with translate_catalog_errors(catalog.name):
        try:
            table = load_maintained(catalog, maintained)
        except NoSuchTableError:
            return None
        return _measure_table(table, maintained, now_ms=now_ms, deep=deep, lag_query=lag_query)


def _measure_table(
    table: Table, maintained: MaintainedTable, *, now_ms: int, deep: bool, lag_query: LagQuery
) -> TableHealth:
    metadata = table.metadata
    head = head_of(metadata)
    manifests = head.manifests(table.io) if head else []
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    rows = count_live_rows(head) if head else 0
    main_at_ms = [snapshot.timestamp_ms for snapshot in ancestors(metadata)]
    target = target_file_bytes(table)
    compacted_at_ms, files_since, bytes_since = _growth_since_compaction(metadata, target_bytes=target)
    folded_ms = [snapshot.timestamp_ms for snapshot in metadata.snapshots if is_fold(snapshot)]
    watched = maintained.streams if maintained.kind is TableKind.MAIN else ()
    return TableHealth(
        table=maintained.name,
        at_ms=now_ms,
        snapshot_id=head.snapshot_id if head else None,
        target_file_bytes=target,
        data_files=_summary_count(head, "total-data-files", _live_files(data)),
        data_bytes=_summary_count(head, "total-files-size"),
        rows=max(_live_rows(data) - _live_rows(deletes), 0) if rows is None else rows,
        delete_files=_summary_count(head, "total-delete-files", _live_files(deletes)),
        manifests=len(manifests),
        manifests_bytes=sum(m.manifest_length for m in manifests),
        manifest_list_bytes=len(table.io.new_input(head.manifest_list)) if head else 0,
        metadata_bytes=_metadata_bytes(table),
        snapshots=len(metadata.snapshots),
        oldest_snapshot_at_ms=min((s.timestamp_ms for s in metadata.snapshots), default=None),
        last_compaction_at_ms=compacted_at_ms,
        files_since_compaction=files_since,
        bytes_since_compaction=bytes_since,
        recent=_recent_files(table, maintained),
        streams=tuple(_measure_stream(metadata, spec, now_ms=now_ms, lag_query=lag_query) for spec in watched),
        partitions=read_partitions(table, manifests, maintained, target_bytes=target) if deep else None,
        main_snapshots=len(main_at_ms),
        main_oldest_at_ms=min(main_at_ms, default=None),
        deleted_rows=_summary_count(head, "total-position-deletes", _live_rows(deletes)),
        merged=any(spec.sinks.mode.replaces_rows for spec in watched),
        format_version=metadata.format_version,
        folds=len(folded_ms),
        last_fold_at_ms=max(folded_ms, default=None),
        manifest_groups=group_manifests(manifests),
    )


def _summary_count(snapshot: Snapshot | None, name: str, otherwise: int = 0) -> int:
    """Return a number from the snapshot's summary, or `otherwise`."""
    text = summary_value(snapshot, name)
    return otherwise if text is None else int(text)


def group_manifests(manifests: Iterable[ManifestFile]) -> tuple[ManifestGroup, ...]:
    """Group the manifests by partition spec and content."""
    sizes = defaultdict[tuple[int, bool], list[int]](list)
    for manifest in manifests:
        group = manifest.partition_spec_id, manifest.content is ManifestContent.DELETES
        sizes[group].append(manifest.manifest_length)
    return tuple(ManifestGroup(*group, len(found), sum(found)) for group, found in sorted(sizes.items()))


def _live_files(manifests: Sequence[ManifestFile]) -> int:
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def _live_rows(manifests: Sequence[ManifestFile]) -> int:
    return sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in manifests)


def _metadata_bytes(table: Table) -> int:
    file = table.io.new_input(table.metadata_location)
    if not table.metadata_location.endswith(".gz.metadata.json"):
        return len(file)
    with file.open() as stream:  # a gzip file ends with its uncompressed length: RFC 1952, 2.3.1, ISIZE
        stream.seek(-4, 2)
        return int.from_bytes(stream.read(4), "little")


def _growth_since_compaction(metadata: TableMetadata, *, target_bytes: int) -> tuple[int | None, int, int]:
    """Return when data files were last rewritten (ms), and main's growth in files and bytes since then. Without a
    rewrite in the history, all files count if the table's files are small.
    """
    files = size = 0
    head, main = head_of(metadata), {snapshot.snapshot_id for snapshot in ancestors(metadata)}
    for snapshot in ancestors_and_older_snapshots(metadata):
        if is_compaction(snapshot):
            if snapshot.snapshot_id not in main:  # snapshots after it have expired
                files = _summary_count(head, "total-data-files") - _summary_count(snapshot, "total-data-files")
                size = _summary_count(head, "total-files-size") - _summary_count(snapshot, "total-files-size")
            return snapshot.timestamp_ms, max(files, 0), max(size, 0)
        if snapshot.snapshot_id in main and not is_replace(snapshot):
            files += _summary_count(snapshot, "added-data-files") - _summary_count(snapshot, "deleted-data-files")
            size += _summary_count(snapshot, "added-files-size") - _summary_count(snapshot, "removed-files-size")
    all_files, all_bytes = (_summary_count(head, name) for name in ("total-data-files", "total-files-size"))
    if not are_large(all_files, all_bytes, target_bytes):
        return None, all_files, all_bytes
    return None, max(files, 0), max(size, 0)


def _recent_files(table: Table, maintained: MaintainedTable) -> RecentFiles | None:
    """Return totals of the files that the newest batches added; None without such files, and for a route's tables."""
    if maintained.kind in {TableKind.SIGNALS, TableKind.ROUTED}:
        return None
    batches = [files for spec in maintained.streams for files in _files_by_batch(table, spec, maintained.kind)]
    sizes = [f.bytes for files in batches for f in files]
    if not sizes:
        return None
    return RecentFiles(
        commits=len(batches),
        files=len(sizes),
        bytes=sum(sizes),
        p10_bytes=p10(sizes),
        partitions=sum(len({f.partition for f in files}) for files in batches),
    )


@dataclass(frozen=True, slots=True)
class _AddedFile:
    bytes: int
    partition: object


def _files_by_batch(table: Table, spec: StreamSpec, kind: TableKind) -> list[list[_AddedFile]]:
    """Return lists of the data files that a stream's newest batches added, one list per batch."""
    newest = islice(commit_records(table.metadata, spec.name), MAX_COMMIT_RECORDS)
    if kind is TableKind.MAIN and spec.sinks.mode.replaces_rows:
        files = [list_added_files(snapshot, table, ManifestContent.DATA) for snapshot, _ in newest]
        return [[_AddedFile(f.file_size_in_bytes, (f.spec_id, str(f.partition))) for f in added] for added in files]
    journals = JournalStore.of_table(table, spec.name)
    target: Target = "main" if kind is TableKind.MAIN else "dead-letters"
    records = [record for _, path in newest if (record := journals.read(path)) is not None]
    return [[_AddedFile(f.bytes, (f.spec_id, f.partition)) for f in record.staged_for(target)] for record in records]


def list_added_files(snapshot: Snapshot, table: Table, *kinds: ManifestContent) -> Iterator[DataFile]:
    """Yield the files that a snapshot's commit added. `kinds` selects data files, delete files or both."""
    for manifest in snapshot.manifests(table.io):
        is_new = manifest.added_snapshot_id == snapshot.snapshot_id and manifest.has_added_files()
        if is_new and manifest.content in kinds:
            entries = manifest.fetch_manifest_entry(table.io)
            yield from (entry.data_file for entry in entries if entry.status is ManifestEntryStatus.ADDED)


def _measure_stream(metadata: TableMetadata, spec: StreamSpec, *, now_ms: int, lag_query: LagQuery) -> StreamHealth:
    marker, problem = None, None
    try:
        marker = read_marker(metadata.properties, spec.name)
        if marker:
            check_ancestry(metadata, marker, table=spec.table.identifier)
    except (MarkerUnreadable, RolledBack) as error:  # `frazil status` and the writer's exit say so
        marker, problem = None, str(error)
    marked = metadata.snapshot_by_id(marker.snapshot_id) if marker else None
    last_ms = last_commit_ms(metadata, spec.name) or (marked.timestamp_ms if marked else None)
    watermark_ms = None if marker is None or marker.watermark_us is None else marker.watermark_us // 1000
    interval_ms = spec.commit.longest_interval // timedelta(milliseconds=1)
    health = StreamHealth(spec.name, None, last_ms, watermark_ms, interval_ms)
    if writer := observe_writer(spec.name):
        heartbeat, live = writer.heartbeat, get_fresh_heartbeat(writer, now_ms=now_ms)
        overtaken = heartbeat and marker and is_fenced(heartbeat, epoch=marker.key.epoch)
        health = replace(
            health,
            lag=get_known_lag(live) if live else None,
            caught_up_at_ms=heartbeat.caught_up_at_ms if heartbeat and not overtaken else None,
        )
    stale = (freshness_ms(health, now_ms=now_ms) or 0) > freshness_limit_ms(spec)
    needed = lag_query is LagQuery.FOR_ALERTS and (stale or spec.maintenance.alerts.lag is not None)
    if health.lag is None and marker and (needed or lag_query is LagQuery.ALWAYS):
        answer = kafka_lag(spec, marker)
        return replace(health, lag_problem=answer) if isinstance(answer, str) else replace(health, lag=answer)
    return replace(health, lag_problem=problem if health.lag is None else None)


def observe_writer(stream: str) -> Observation | None:
    try:
        return LocalLauncher(stream).observe()
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("the run folder of stream %s cannot be read: %r", stream, error)
        return None


def kafka_lag(spec: StreamSpec, marker: Marker) -> int | str:
    """Return the number of offsets between the marker and the ends of Kafka's logs, or why it is unknown."""
    try:
        with open_kafka(spec, timeout_s=TIMEOUT_S) as kafka:
            observed = kafka.describe()
            check_same_source(marker.source, observed.identity, stream=spec.name)
            first, ends = kafka.earliest(observed.partitions), kafka.ends(observed.partitions)
    except (FrazilError, KafkaException) as error:  # the latter for properties that librdkafka refuses
        logger.warning("the lag of stream %s is unknown: %s", spec.name, error)
        return " ".join(str(error).split())
    return count_unread(marker.offsets, first, ends)


def route_tables(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """Return the maintained tables of the stream's route, sorted by name, including all that match its template."""
    declared = [t for t in maintained_tables(specs) if t.kind is TableKind.ROUTED and t.streams[0].name == spec.name]
    return sorted([*declared, *find_template_tables(catalog, spec, specs)], key=lambda table: table.name)


def find_template_tables(catalog: Catalog, spec: StreamSpec, specs: Sequence[StreamSpec]) -> list[MaintainedTable]:
    """Return the undeclared tables that the stream's template may have created."""
    declared = {table.identifier for table in maintained_tables(specs) if table.catalog == spec.table.catalog}
    with translate_catalog_errors(catalog.name):
        new = [name for name in list_matching_names(catalog, spec.sinks) if name not in declared]
        return [template_table(spec, name, specs) for name in new]


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table with its due actions, and the measurement that shows them."""

    table: MaintainedTable
    health: TableHealth
    reasons: dict[Action, str]

    @property
    def urgency(self) -> tuple[int, int]:
        return self.health.files_since_compaction, self.health.snapshots


def measure_due_table(
    catalog: Catalog, table: MaintainedTable, *, actions: Collection[str], now_ms: int
) -> DueTable | None:
    """Measure a route's table, and return it with its due actions, if it exists. Raises the errors of `measure`."""
    health = measure(catalog, table, now_ms=now_ms)
    if health is None:
        return None
    answers = find_due_actions(health, table.settings, full_check_at=table.full_check_at)
    return DueTable(table, health, {action: a.reason for action, a in answers.items() if a.due and action in actions})
