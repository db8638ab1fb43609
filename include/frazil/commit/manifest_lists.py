"""Manifest lists: this process parses and encodes each manifest's entry once.

Each commit writes a list of all manifests of its branch: those of the previous commit, and some new ones. A list never
changes, because its name has a UUID, and all lists have the same entry for a manifest.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestFile,
    ManifestListWriterV2,
)
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.avro_forms import AvroForm, FormedAvroFile
from frazil.table.recent import Recent

MAX_CACHED = 32
"""Lists to cache: those of a stream's tables and open branch before and after a commit, and of failed attempts."""


@dataclass(slots=True)
class _Listed:
    """A manifest, and the bytes of its entry in a manifest list once they are known."""

    manifest: ManifestFile
    encoded: bytes | None = None


_SCHEMA = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
_FORM = AvroForm.resolved(_SCHEMA, _SCHEMA, name="manifest_file")


class ListWriter(ManifestListWriterV2):
    """Writes the manifest list of a table of format version 2, whose schema is resolved once."""

    def __enter__(self) -> Self:
        self._writer = FormedAvroFile(self._output_file, _FORM, metadata=self._meta)
        self._writer.__enter__()
        return self


_kept = Recent[dict[str, _Listed]](MAX_CACHED)
"""Listed manifests, by the list's path and the manifest's path."""


def manifests_of(snapshot: Snapshot, file_io: FileIO) -> list[ManifestFile]:
    """Return all manifests of a snapshot, in the list's order."""
    return [listed.manifest for listed in _listed(snapshot, file_io).values()]


def add_manifests(
    writer: ListWriter, manifests: Iterable[ManifestFile], *, of: Snapshot, parent: Snapshot | None
) -> None:
    """Write a snapshot's manifests as one block of its list; reuses the encoded entries of its parent's list."""
    before = (_kept.get(parent.manifest_list) if parent else None) or {}
    avro = writer._writer
    write_record = avro.writer
    listed = {}
    for manifest in manifests:
        one = before.get(manifest.manifest_path) or _Listed(writer.prepare_manifest(manifest))
        if one.encoded is None:
            buffer = io.BytesIO()
            write_record.write(BinaryEncoder(buffer), one.manifest)
            one.encoded = buffer.getvalue()
        listed[manifest.manifest_path] = one
    if listed:
        avro.writer = _Verbatim()  # type: ignore[assignment]
        avro.write_block([one.encoded for one in listed.values()])  # type: ignore[misc]
    _kept.keep(of.manifest_list, listed)


class _Verbatim:
    """Replaces Avro's record writer, for records that are encoded already."""

    def write(self, encoder: BinaryEncoder, record: Any) -> None:
        encoder.write(record)


def _listed(snapshot: Snapshot, file_io: FileIO) -> dict[str, _Listed]:
    known = _kept.get(snapshot.manifest_list)
    if known is None:
        known = {manifest.manifest_path: _Listed(manifest) for manifest in snapshot.manifests(file_io)}
    _kept.keep(snapshot.manifest_list, known)
    return known
