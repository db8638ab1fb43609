"""Writes and caches manifest lists, which never change. This process parses and encodes each manifest's entry once."""

from __future__ import annotations

import io
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Self

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, ManifestListWriterV2
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import TableVersion

from frazil.commit.manifest_writing import (
    IN_MEMORY,
    AvroEncoding,
    NewManifest,
    PreparedAvroFile,
    WrittenEntries,
    metadata_folder,
    recently_written,
    write_merged,
)
from frazil.pyiceberg_fixes import FIRST_ROW_ID_POSITIONS, first_row_id
from frazil.table.faster_commits import BoundedCache
from frazil.table.object_store import count_request

MAX_CACHED_ENTRIES = 2**14
"""Maximum number of entries of the cached lists. Enough for a batch of a thousand routed tables."""
FAN_IN = 32
MAX_MERGED_ENTRIES = 2_048
MERGE_ENABLED = "commit.manifest-merge.enabled"
"""Iceberg's table property for merging manifests."""


@dataclass(slots=True)
class _ListEntry:
    manifest: ManifestFile
    version: TableVersion | None = None
    encoded: bytes = b""
    """The manifest's entry as Avro bytes, for a list of format version `version`."""


@cache
def _encoding(version: TableVersion) -> AvroEncoding:
    schemas = MANIFEST_LIST_FILE_SCHEMAS
    return AvroEncoding.resolve(schemas[version], schemas[IN_MEMORY], name="manifest_file")


class ListWriter(ManifestListWriterV2):
    """Writes a manifest list of format version 2; with `next_row_id`, of version 3."""

    def __init__(  # noqa: PLR0913 - what a manifest list consists of
        self,
        output_file: OutputFile,
        snapshot_id: int,
        parent_snapshot_id: int | None,
        sequence_number: int,
        compression: AvroCompressionCodec,
        *,
        next_row_id: int | None = None,
    ) -> None:
        super().__init__(output_file, snapshot_id, parent_snapshot_id, sequence_number, compression)
        self.next_row_id = next_row_id
        if next_row_id is not None:
            self._format_version = 3
            self._meta |= {"format-version": "3", "first-row-id": str(next_row_id)}

    @property
    def version(self) -> TableVersion:
        return self._format_version

    def __enter__(self) -> Self:
        self._writer = PreparedAvroFile(self._output_file, _encoding(self.version), metadata=self._meta)
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        """Return a copy with sequence numbers and, in version 3, the first row's id."""
        prepared = super().prepare_manifest(ManifestFile(*manifest_file._data))
        is_data = prepared.content is ManifestContent.DATA
        if self.next_row_id is not None and is_data and first_row_id(prepared) is None:
            prepared[FIRST_ROW_ID_POSITIONS[ManifestFile]] = self.next_row_id
            # Files of manifests from before format version 3 have no row ids, even if they are not new.
            self.next_row_id += (prepared.existing_rows_count or 0) + (prepared.added_rows_count or 0)
        return prepared


_cache = BoundedCache[dict[str, _ListEntry]](MAX_CACHED_ENTRIES, lambda entries: 1 + len(entries))
"""Entries of each manifest list, by two paths: the list's and the manifest's."""
MAX_CACHED_PATHS = 4_096
_paths = BoundedCache[tuple[str, ...]](MAX_CACHED_PATHS)
"""Paths of each list's manifests, by the list's path. The writer removes an expired snapshot's entry."""


def read_manifests(snapshot: Snapshot, file_io: FileIO) -> list[ManifestFile]:
    """Return a snapshot's manifests, in the order of its manifest list."""
    entries = _cache.get(snapshot.manifest_list)
    if entries is None:
        count_request("reads", snapshot.manifest_list)
        entries = {manifest.manifest_path: _ListEntry(manifest) for manifest in snapshot.manifests(file_io)}
    _cache.keep(snapshot.manifest_list, entries)
    return [entry.manifest for entry in entries.values()]


def manifest_paths(snapshot: Snapshot, file_io: FileIO) -> tuple[str, ...]:
    cached = _paths.get(snapshot.manifest_list)
    return tuple(m.manifest_path for m in snapshot.manifests(file_io)) if cached is None else cached


def live_manifests(snapshot: Snapshot | None, file_io: FileIO) -> list[ManifestFile]:
    manifests = read_manifests(snapshot, file_io) if snapshot else []
    return [m for m in manifests if m.has_added_files() or m.has_existing_files()]


def add_manifests(writer: ListWriter, manifests: Iterable[ManifestFile], *, path: str, parent: Snapshot | None) -> None:
    """Write the entries of `manifests` as one block. Reuses encoded entries of the parent's list."""
    cached = (_cache.get(parent.manifest_list) if parent else None) or {}
    count_request("writes", path)
    avro = writer._writer
    write_record = avro.writer
    entries = {}
    for manifest in manifests:
        entry = cached.get(manifest.manifest_path)
        if entry is None or entry.version != writer.version:
            buffer = io.BytesIO()
            prepared = writer.prepare_manifest(manifest)
            write_record.write(BinaryEncoder(buffer), prepared)
            entry = _ListEntry(prepared, writer.version, buffer.getvalue())
        entries[manifest.manifest_path] = entry
    if entries:
        avro.writer = _EncodedRecordWriter()  # type: ignore[assignment]
        avro.write_block([entry.encoded for entry in entries.values()])  # type: ignore[misc]
    _cache.keep(path, entries)
    _paths.keep(path, tuple(entries))


class _EncodedRecordWriter:
    """Replaces Avro's record writer. The records are already encoded."""

    def write(self, encoder: BinaryEncoder, record: Any) -> None:
        encoder.write(record)


@dataclass(frozen=True, slots=True)
class MergedManifest:
    manifest: ManifestFile
    replaces: frozenset[tuple[str, int | None]]
    """Paths and first row ids of the merged manifests. An upgrade to format version 3 assigns row ids."""

    def apply_to(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile] | None:
        """Replace the merged manifests in `manifests` by the new one. Returns None if a merged one is missing."""
        unmerged = [m for m in manifests if (m.manifest_path, first_row_id(m)) not in self.replaces]
        return [self.manifest, *unmerged] if len(unmerged) + len(self.replaces) == len(manifests) else None


def select_mergeable_manifests(manifests: Sequence[ManifestFile]) -> dict[ManifestFile, WrittenEntries]:
    """Return the manifests to merge next. This process wrote them; maintenance merges other manifests."""
    classes = defaultdict[object, dict[ManifestFile, WrittenEntries]](dict)
    for manifest in manifests:
        written = recently_written.get(manifest.manifest_path)
        if written:
            kind = (manifest.partition_spec_id, manifest.content, written.copied.kind, len(written.entries) < FAN_IN)
            classes[kind][manifest] = written
    full = next((found for found in classes.values() if len(found) >= FAN_IN), {})
    sums = accumulate(len(mergeable.entries) for mergeable in full.values())
    return {
        manifest: full[manifest] for manifest, entries in zip(full, sums, strict=True) if entries <= MAX_MERGED_ENTRIES
    }


def merge_manifests(manifests: Sequence[ManifestFile], table: Table, *, snapshot_id: int) -> MergedManifest | None:
    """Merge small manifests into a new one, and return the new manifest.

    Returns None if fewer than two manifests are small, or merging is off.
    """
    if table.properties.get(MERGE_ENABLED, "true").lower() == "false":
        return None
    mergeable = select_mergeable_manifests(manifests)
    if len(mergeable) < 2:
        return None
    path = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m0.avro"
    merged = write_merged(mergeable, NewManifest(path, table, snapshot_id))
    return MergedManifest(merged, frozenset((m.manifest_path, first_row_id(m)) for m in mergeable))
