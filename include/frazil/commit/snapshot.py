"""Writes one snapshot of a branch from staged files: its manifests, its manifest list, and the table updates. Replaces
PyIceberg's `Transaction`, which retries without frazil's requirements, writes every file with the default spec, and
copies the metadata about fourteen times.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, UpdateMetrics, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Record

from frazil.commit.manifest_lists import ListWriter, MergedManifest, add_manifests, live_manifests, merge_manifests
from frazil.commit.manifest_writing import (
    ManifestLayout,
    NewManifest,
    avro_codec,
    manifest_content,
    metadata_folder,
    write_added,
    write_with_removals,
)
from frazil.ingest.contract import Content, StagedFile
from frazil.merge.table_files import PATH_ID, POSITION_ID, PUFFIN_SUFFIX, VECTOR_OFFSET
from frazil.pyiceberg_fixes import file_key, next_row_id
from frazil.table.branches import MAIN, head_of
from frazil.table.metadata_times import next_ms

FOREVER_MS = 2**63 - 1

MAX_SUMMARY_CHARACTERS = 2_000
"""Maximum length of a snapshot summary, which every metadata file contains."""


@dataclass(frozen=True, slots=True)
class PreparedSnapshot:
    snapshot: Snapshot
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


@dataclass(frozen=True, slots=True)
class BaseManifests:
    """The manifests that a new snapshot keeps from its branch, and the files that leave the branch.

    Only main's snapshots mark files that leave as deleted. On another branch, these files move to main, and expiry
    could delete them.
    """

    remaining_manifests: Sequence[ManifestFile]
    removed_files: Sequence[DataFile]
    summary: Summary | None
    """Summary of the previous snapshot, including `removed_files`; None before the first snapshot."""
    written: Sequence[ManifestFile] = ()
    """The manifests in `remaining_manifests` that were rewritten because files were deleted."""


@dataclass(slots=True)
class SnapshotWriter:
    """Writes a commit's manifests once, and a manifest list for each attempt.

    A new branch's first snapshot has no parent. All attempts share a snapshot id, because the manifests contain the id.
    Without files, each attempt has its own id, so that an unnoticed success does not block the next attempt.
    """

    files: Sequence[StagedFile]
    branch: str = MAIN
    moved: Sequence[DataFile] = ()
    base: BaseManifests | None = None
    manifest_key: Callable[[StagedFile], str] = lambda _: ""
    """Files with different keys never share a manifest."""
    operation: Operation | None = None
    """The snapshot's operation; None derives it from the files."""
    snapshot_id: int | None = None
    commit_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    manifests: list[ManifestFile] = field(default_factory=list)
    attempts: list[PreparedSnapshot] = field(default_factory=list)
    merged: MergedManifest | None = None
    merged_in: set[str] = field(default_factory=set)
    """The manifest lists with the merged manifest."""

    @property
    def may_have_unused_files(self) -> bool:
        return bool(self.attempts or self.manifests)

    def prepare(
        self, table: Table, *, summary: Mapping[str, str], now_ms: int, before: Snapshot | None = None
    ) -> PreparedSnapshot:
        """Return the next attempt. If `before` is given, the same update first adds the snapshot `before`."""
        metadata, parent = table.metadata, head_of(table.metadata, self.branch)
        if self.snapshot_id is None or (self.attempts and not (self.files or self.moved)):
            self.snapshot_id = metadata.new_snapshot_id()
        if not self.manifests:
            self.manifests = self._write_manifests(table, self.snapshot_id)
        path = f"{metadata_folder(metadata)}/snap-{self.snapshot_id}-{len(self.attempts)}-{self.commit_id}.avro"
        base = self.base or self._base(table, parent, path, self.snapshot_id)
        number = 1 + (before.sequence_number or 0) if before else metadata.next_sequence_number()
        first_row_id = next_row_id(metadata, before)
        with ListWriter(
            table.io.new_output(path),
            self.snapshot_id,
            parent.snapshot_id if parent else None,
            number,
            avro_codec(metadata),
            next_row_id=first_row_id,
        ) as writer:
            add_manifests(writer, [*self.manifests, *base.remaining_manifests], path=path, parent=parent)
        snapshot = Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            manifest_list=path,
            sequence_number=number,
            timestamp_ms=next_ms(metadata, now_ms),
            summary=_build_summary(self.files, self.moved, extra=summary, base=base, operation=self.operation),
            schema_id=metadata.current_schema_id,
            first_row_id=first_row_id,
            added_rows=None if first_row_id is None else (writer.next_row_id or 0) - first_row_id,
        )
        prepared = PreparedSnapshot(
            snapshot=snapshot,
            updates=(AddSnapshotUpdate(snapshot=snapshot), _move_branch(metadata, snapshot, self.branch)),
            requirements=(
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertRefSnapshotId(ref=self.branch, snapshot_id=snapshot.parent_snapshot_id),
                AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
                AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
                *self._new_branch_requirements(metadata),
            ),
        )
        self.attempts.append(prepared)
        return prepared

    def _base(self, table: Table, parent: Snapshot | None, path: str, snapshot_id: int) -> BaseManifests:
        """Return the branch's live manifests. If main has many small ones, the first attempt merges them."""
        live = live_manifests(parent, table.io)
        if self.branch == MAIN and self.files and not self.attempts:
            self.merged = merge_manifests(live, table, snapshot_id=snapshot_id)
        fewer = self.merged.apply_to(live) if self.merged else None
        if fewer:
            self.merged_in.add(path)
        return BaseManifests(fewer or live, (), parent.summary if parent else None)

    def _new_branch_requirements(self, metadata: TableMetadata) -> tuple[TableRequirement, ...]:
        """Require an unchanged main for a branch's first snapshot. Otherwise the sequence number might decrease."""
        main = head_of(metadata)
        if self.branch in metadata.refs or main is None:
            return ()
        return (AssertRefSnapshotId(ref=MAIN, snapshot_id=main.snapshot_id),)

    def delete_unused(self, table: Table) -> None:
        """Delete files of failed attempts that are no longer needed. `table` is the table after the attempts.

        A manifest list is deleted once its sequence number is below the table's next sequence number: every catalog
        then refuses the list's attempt. Manifests are deleted only if no later snapshot lists them. Otherwise, the
        manifests' own snapshot may have landed and expired.
        """
        waste = [a.snapshot.manifest_list for a in self.attempts if _cannot_land(a, table.metadata, self.branch)]
        by_base, by_merge = self.base.written if self.base else (), (self.merged.manifest,) if self.merged else ()
        written = {m.manifest_path for m in (*self.manifests, *by_base, *by_merge)}
        if len(waste) == len(self.attempts):
            if not self._is_any_listed(written, table):
                waste += sorted(written)
                self.manifests = []
        elif self.merged and self.merged_in.issubset(waste):  # a later attempt landed without it
            merged = {self.merged.manifest.manifest_path}
            waste += [] if self._is_any_listed(merged, table) else sorted(merged)
        self.attempts = [a for a in self.attempts if a.snapshot.manifest_list not in waste]
        for path in waste:
            with contextlib.suppress(FileNotFoundError):  # expired, and deleted by the expiry
                table.io.delete(path)

    def _is_any_listed(self, ours: Collection[str], table: Table) -> bool:
        """Return whether a snapshot since the first attempt lists one of these manifests."""
        first = min((a.snapshot.sequence_number or 0 for a in self.attempts), default=0)
        return bool(ours and self.attempts) and any(
            any(m.manifest_path in ours for m in snapshot.manifests(table.io))
            for snapshot in table.metadata.snapshots
            if (snapshot.sequence_number or 0) >= first
        )

    def _write_manifests(self, table: Table, snapshot_id: int) -> list[ManifestFile]:
        folder = metadata_folder(table.metadata)
        paths = (f"{folder}/{self.commit_id}-m{number}.avro" for number in itertools.count())
        return [
            write_added(files, layout, manifest_content(files[0].content), NewManifest(path, table, snapshot_id))
            for path, (layout, files) in zip(paths, self._group_by_layout(table.metadata), strict=False)
        ]

    def _group_by_layout(self, metadata: TableMetadata) -> Iterator[tuple[ManifestLayout, list[DataFile]]]:
        """Group files by content, spec and schema. Moved files may use any schema with the spec's columns."""

        def key(file: StagedFile) -> tuple[str, int, int, str]:
            return (file.content, file.spec_id, file.schema_id, self.manifest_key(file))

        for _, group in itertools.groupby(sorted(self.files, key=key), key=key):
            files = list(group)
            layout = ManifestLayout.for_staged_file(files[0], metadata)
            yield layout, [to_data_file(f, spec=layout.spec, schema=layout.schema) for f in files]
        by_spec = attrgetter("spec_id")
        for spec_id, moved in itertools.groupby(sorted(self.moved, key=by_spec), key=by_spec):
            yield ManifestLayout.for_spec(metadata.specs()[spec_id], metadata), list(moved)


@dataclass(slots=True)
class RewriteAttempt:
    """One attempt of a commit that rewrites files: its snapshot, and the table's state before the snapshot."""

    writer: SnapshotWriter
    files: Collection[str]
    """The paths of the new files. The files of `writer` are its manifests."""
    head: Snapshot | None
    reported: Mapping[str, str]
    folder: str = ""

    def is_repeatable(self, head: Snapshot | None, folder: str = "") -> bool:
        """Return whether the same attempt can be made again: its outcome is unknown, and the table is unchanged."""
        return bool(self.writer.files) and (self.head, self.folder) == (head, folder)


def base_without_files(
    removed: Collection[str],
    manifests: Iterable[ManifestFile],
    read_entries: Callable[[ManifestFile], Sequence[ManifestEntry]],
    *,
    table: Table,
    snapshot_id: int,
) -> BaseManifests:
    """Return the manifests that main's next snapshot keeps. Rewrites manifests of files with the keys `removed`."""
    remaining_manifests: list[ManifestFile] = []
    written: list[ManifestFile] = []
    leaves: list[DataFile] = []
    for manifest in manifests:
        entries = read_entries(manifest)
        leaving = [entry.data_file for entry in entries if file_key(entry.data_file) in removed]
        if leaving:
            path = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m{len(written)}.avro"
            new = NewManifest(path, table, snapshot_id)
            manifest = write_with_removals(removed, manifest, entries, new)  # noqa: PLW2901 - it replaces the old one
            written.append(manifest)
        remaining_manifests.append(manifest)
        leaves += leaving
    if missing := set(removed) - set(map(file_key, leaves)):
        raise ValueError(f"no manifest lists the files to remove: {sorted(missing)}")
    head = head_of(table.metadata)
    return BaseManifests(remaining_manifests, leaves, head.summary if head else None, written)


def _cannot_land(attempt: PreparedSnapshot, metadata: TableMetadata, branch: str) -> bool:
    head = head_of(metadata, branch)
    return (
        all(s.manifest_list != attempt.snapshot.manifest_list for s in metadata.snapshots)
        and (attempt.snapshot.sequence_number or 0) < metadata.next_sequence_number()
        # The first snapshot of a branch is refused only because the branch now exists.
        and attempt.snapshot.parent_snapshot_id != (head.snapshot_id if head else None)
    )


_CONTENT: Mapping[Content, DataFileContent] = {
    "data": DataFileContent.DATA,
    "position-deletes": DataFileContent.POSITION_DELETES,
}


def to_data_file(file: StagedFile, *, spec: PartitionSpec, schema: Schema) -> DataFile:
    """Convert a staged file for a manifest entry. Raises ValueError for a change file."""
    if file.content not in _CONTENT:
        raise ValueError(f"{file.path} has content {file.content!r}, which cannot be added to a table")
    types: list[Any] = [field.field_type for field in spec.partition_type(schema).fields]  # always primitive
    values = [
        None if text is None else from_bytes(kind, base64.b64decode(text))
        for kind, text in zip(types, file.partition, strict=True)
    ]
    vector: dict[str, Any] = {}
    if is_vector := file.path.endswith(PUFFIN_SUFFIX):
        vector = {
            "referenced_data_file": base64.b64decode(file.lower_bounds[PATH_ID]).decode(),
            "content_offset": VECTOR_OFFSET,
            "content_size_in_bytes": file.column_sizes[POSITION_ID],
        }
    built = DataFile.from_args(
        content=_CONTENT[file.content],
        file_path=file.path,
        file_format=FileFormat.PUFFIN if is_vector else FileFormat.PARQUET,
        partition=Record(*values),
        record_count=file.records,
        file_size_in_bytes=file.bytes,
        column_sizes={} if is_vector else dict(file.column_sizes),
        value_counts=dict(file.value_counts),
        null_value_counts=dict(file.null_value_counts),
        nan_value_counts=dict(file.nan_value_counts),
        lower_bounds={k: base64.b64decode(v) for k, v in file.lower_bounds.items()},
        upper_bounds={k: base64.b64decode(v) for k, v in file.upper_bounds.items()},
        split_offsets=None if is_vector else list(file.split_offsets),
        sort_order_id=file.sort_order_id,
        key_metadata=None,
        equality_ids=None,
        **vector,
    )
    built.spec_id = file.spec_id
    return built


def _build_summary(
    files: Sequence[StagedFile],
    moved: Sequence[DataFile],
    *,
    extra: Mapping[str, str],
    base: BaseManifests,
    operation: Operation | None,
) -> Summary:
    metrics = UpdateMetrics()
    partitions: set[tuple[int, object]] = set()
    for file in files:
        metrics.added_file_size += file.bytes
        if file.content == "data":
            metrics.added_data_files += 1
            metrics.added_records += file.records
        else:
            metrics.added_delete_files += 1
            metrics.added_pos_delete_files += 1
            metrics.added_pos_deletes += file.records
        partitions.add((file.spec_id, file.partition))
    for added in moved:
        metrics.add_file(added)
    for removed in base.removed_files:
        metrics.remove_file(removed)
    partitions |= {(f.spec_id, str(f.partition)) for f in (*moved, *base.removed_files)}
    counts = metrics.to_dict()
    if partitions:
        counts["changed-partition-count"] = str(len(partitions))
    overwrites = base.removed_files or metrics.added_delete_files
    derived = Operation.OVERWRITE if overwrites else Operation.APPEND
    summary = update_snapshot_summaries(Summary(operation=derived, **counts, **extra), base.summary)
    # PyIceberg computes totals only for operations that it makes itself.
    return summary if operation is None else Summary(operation=operation, **summary.additional_properties)


def _move_branch(metadata: TableMetadata, snapshot: Snapshot, branch: str) -> SetSnapshotRefUpdate:
    """Return the update that moves the branch. A new branch other than main never expires."""
    ref: SnapshotRef | None = metadata.refs.get(branch)
    return SetSnapshotRefUpdate(
        ref_name=branch,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot.snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms if ref else None if branch == MAIN else FOREVER_MS,
        max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
        min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
    )
