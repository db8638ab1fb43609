"""Merges a branch's small manifests, so that readers open few even with a commit each second. `FAN_IN` manifests of one
size class become one of the next class. An entry is rewritten once per size class.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from frazil.commit.manifest_writing import WrittenEntries, metadata_folder, recently_written, write_merged
from frazil.pyiceberg_fixes import first_row_id

FAN_IN = 32
MAX_MERGED_ENTRIES = 2_048
MERGE_ENABLED = "commit.manifest-merge.enabled"
"""Iceberg's table property for merging manifests."""


@dataclass(frozen=True, slots=True)
class MergedManifest:
    manifest: ManifestFile
    replaces: frozenset[tuple[str, int | None]]
    """Paths and first row ids of the merged manifests. An upgrade to format version 3 assigns row ids."""

    def apply_to(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile] | None:
        """Replace the merged manifests in `manifests` by the new one. Returns None if one is missing."""
        others = [one for one in manifests if (one.manifest_path, first_row_id(one)) not in self.replaces]
        return [self.manifest, *others] if len(others) + len(self.replaces) == len(manifests) else None


def select_mergeable_manifests(manifests: Sequence[ManifestFile]) -> dict[ManifestFile, WrittenEntries]:
    """Return the manifests of this process to merge next. Maintenance merges others."""
    classes = defaultdict[object, dict[ManifestFile, WrittenEntries]](dict)
    for manifest in manifests:
        written = recently_written.get(manifest.manifest_path)
        if written:
            kind = (manifest.partition_spec_id, manifest.content, written.copied.kind, len(written.entries) < FAN_IN)
            classes[kind][manifest] = written
    full = next((found for found in classes.values() if len(found) >= FAN_IN), {})
    sums = accumulate(len(one.entries) for one in full.values())
    return {
        manifest: full[manifest] for manifest, entries in zip(full, sums, strict=True) if entries <= MAX_MERGED_ENTRIES
    }


def merge_manifests(manifests: Sequence[ManifestFile], table: Table, *, snapshot_id: int) -> MergedManifest | None:
    """Merge small manifests into a new one, and return it; None if fewer than two are small, or merging is off."""
    if table.properties.get(MERGE_ENABLED, "true").lower() == "false":
        return None
    found = select_mergeable_manifests(manifests)
    if len(found) < 2:
        return None
    path = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m0.avro"
    merged = write_merged(found, path=path, table=table, snapshot_id=snapshot_id)
    return MergedManifest(merged, frozenset((one.manifest_path, first_row_id(one)) for one in found))
