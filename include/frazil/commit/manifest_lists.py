"""Writes and caches manifest lists, so that this process parses and encodes each manifest's entry only once. A list
never changes, because its name has a UUID.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import DEFAULT_READ_VERSION, MANIFEST_LIST_FILE_SCHEMAS, ManifestFile, ManifestListWriterV2
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.manifest_writing import AvroEncoding, PreparedAvroFile
from frazil.table.recent import BoundedCache
from frazil.table.storage_requests import count_request

MAX_CACHED_LISTS = 32
"""Enough for a stream's tables and open branch before and after a commit, and for failed attempts."""


@dataclass(slots=True)
class _ListEntry:
    manifest: ManifestFile
    encoded: bytes | None = None


_SCHEMA = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
_ENCODING = AvroEncoding.resolve(_SCHEMA, _SCHEMA, name="manifest_file")


class ListWriter(ManifestListWriterV2):
    """Writes a manifest list of format version 2. Its schema is resolved once per process."""

    def __enter__(self) -> Self:
        self._writer = PreparedAvroFile(self._output_file, _ENCODING, metadata=self._meta)
        self._writer.__enter__()
        return self


_cache = BoundedCache[dict[str, _ListEntry]](MAX_CACHED_LISTS)
"""Entries by path of the manifest list, then of the manifest."""
MAX_CACHED_PATHS = 4_096
_paths = BoundedCache[tuple[str, ...]](MAX_CACHED_PATHS)
"""The manifests' paths by path of the manifest list, until the writer expires the snapshot."""


def read_manifests(snapshot: Snapshot, file_io: FileIO) -> list[ManifestFile]:
    """Return all manifests of a snapshot, in the order of its manifest list."""
    entries = _cache.get(snapshot.manifest_list)
    if entries is None:
        count_request("reads", snapshot.manifest_list)
        entries = {manifest.manifest_path: _ListEntry(manifest) for manifest in snapshot.manifests(file_io)}
    _cache.keep(snapshot.manifest_list, entries)
    return [entry.manifest for entry in entries.values()]


def manifest_paths(snapshot: Snapshot, file_io: FileIO) -> tuple[str, ...]:
    """Return the paths of a snapshot's manifests, without a read if this process wrote the snapshot."""
    known = _paths.get(snapshot.manifest_list)
    return tuple(m.manifest_path for m in snapshot.manifests(file_io)) if known is None else known


def live_manifests(snapshot: Snapshot | None, file_io: FileIO) -> list[ManifestFile]:
    """Return the manifests that list live files."""
    manifests = read_manifests(snapshot, file_io) if snapshot else []
    return [m for m in manifests if m.has_added_files() or m.has_existing_files()]


def add_manifests(
    writer: ListWriter, manifests: Iterable[ManifestFile], *, snapshot: Snapshot, parent: Snapshot | None
) -> None:
    """Write a snapshot's manifests as one block of its list. Reuses entries encoded for the parent's list."""
    before = (_cache.get(parent.manifest_list) if parent else None) or {}
    count_request("writes", snapshot.manifest_list)
    avro = writer._writer
    write_record = avro.writer
    entries = {}
    for manifest in manifests:
        entry = before.get(manifest.manifest_path) or _ListEntry(writer.prepare_manifest(manifest))
        if entry.encoded is None:
            buffer = io.BytesIO()
            write_record.write(BinaryEncoder(buffer), entry.manifest)
            entry.encoded = buffer.getvalue()
        entries[manifest.manifest_path] = entry
    if entries:
        avro.writer = _EncodedRecordWriter()  # type: ignore[assignment]
        avro.write_block([entry.encoded for entry in entries.values()])  # type: ignore[misc]
    _cache.keep(snapshot.manifest_list, entries)
    _paths.keep(snapshot.manifest_list, tuple(entries))


class _EncodedRecordWriter:
    """Replaces Avro's record writer, for records that are already encoded."""

    def write(self, encoder: BinaryEncoder, record: Any) -> None:
        encoder.write(record)
