"""Decides which files join the open branch, stay on it, or leave it.

The open branch has the rows of open windows (`commit.align: watermark`). Each of its manifests lists files of one time
partition, so the manifest list shows which manifests leave.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import IntegerType
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.marker import Marker, open_branch_name
from frazil.errors import SchemaIncompatible, StaleBatch
from frazil.ingest.contract import StagedFile
from frazil.partitions.completeness import Alignment
from frazil.partitions.windows import Grain
from frazil.table.branches import head_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BranchChange:
    base: Snapshot | None
    """The branch's head, or an older snapshot after a reset."""
    remaining_manifests: tuple[ManifestFile, ...] = ()
    leaving_files: tuple[DataFile, ...] = ()
    """Files that move to main, unless `drops` is set."""
    joining_files: tuple[StagedFile, ...] = ()
    to_main: tuple[StagedFile, ...] = ()
    drops: bool = False
    removes_branch: bool = False
    manifest_key: Callable[[StagedFile], str] = lambda _: ""
    """Files with different keys never share a manifest."""


class _TimeField(NamedTuple):
    """Index of the event-time field in a partition spec, and the duration of its partitions."""

    position: int
    length_us: int

    def span(self, value: bytes | None) -> tuple[int, int] | None:
        """Return a partition's start and length in microseconds. `value` is its serialised hours or days."""
        return None if value is None else (int(from_bytes(IntegerType(), value)) * self.length_us, self.length_us)


class _TimeFields:
    """The hour or day field of each partition spec, if any. The methods return start and length in microseconds."""

    def __init__(self, metadata: TableMetadata, column: str) -> None:
        source_id = metadata.schema().find_field(column).field_id
        self.fields: dict[int, _TimeField] = {}
        for spec_id, spec in metadata.specs().items():
            for position, field in enumerate(spec.fields):
                if field.source_id == source_id and isinstance(field.transform, HourTransform | DayTransform):
                    grain = Grain.HOUR if isinstance(field.transform, HourTransform) else Grain.DAY
                    self.fields.setdefault(spec_id, _TimeField(position, grain.us))

    def file_span(self, file: StagedFile) -> tuple[int, int] | None:
        field = self.fields.get(file.spec_id)
        text = file.partition[field.position] if field else None
        return field.span(base64.b64decode(text)) if field and text is not None else None

    def manifest_span(self, manifest: ManifestFile) -> tuple[int, int] | None:
        field = self.fields.get(manifest.partition_spec_id)
        return field.span(manifest.partitions[field.position].lower_bound) if field and manifest.partitions else None


def earliest_waiting_us(table: Table, stream: str, *, column: str) -> int | None:
    """Return the start of the open branch's oldest time partition (us since 1970), if rows wait there."""
    head = head_of(table.metadata, open_branch_name(stream))
    if head is None:
        return None
    times = _TimeFields(table.metadata, column)
    spans = [times.manifest_span(manifest) for manifest in head.manifests(table.io)]
    return min((span[0] for span in spans if span), default=None)


def check_aligned(
    metadata: TableMetadata, align: Alignment | None, *, table: str, files: Iterable[StagedFile] = ()
) -> None:
    """Check that the table's partitioning allows rows to wait on the open branch.

    Raises `SchemaIncompatible` unless the table is partitioned by event time, at least as finely as the windows. Raises
    `StaleBatch` if `files` were staged for an earlier, coarser partitioning.
    """
    if align is None:
        return
    fine = {i for i, f in _TimeFields(metadata, align.column).fields.items() if f.length_us <= align.grain.us}
    if metadata.default_spec_id not in fine:
        raise SchemaIncompatible(
            f"commit.align: watermark needs a table that is partitioned by {align.column}, at least by {align.grain}, "
            f"and table {table} is not: evolve its partitioning to hour({align.column})"
            + (f" or day({align.column})" if align.grain is Grain.DAY else "")
            + ", or declare commit.align: none"
        )
    if any(file.spec_id not in fine for file in files):
        raise StaleBatch(
            f"a batch for table {table} was staged before the table's partitioning changed; the batch is staged again"
        )


def align_batch(table: Table, marker: Marker, files: Sequence[StagedFile], align: Alignment) -> BranchChange:
    """Return which files join and leave the open branch with a batch. `marker` is the marker after the batch."""
    head = head_of(table.metadata, open_branch_name(marker.stream))
    times = _TimeFields(table.metadata, align.column)
    newest_us = max(marker.max_event_times_us.values(), default=None)

    def waits(span: tuple[int, int] | None) -> bool:
        return span is not None and align.waits(*span, watermark_us=marker.watermark_us, newest_us=newest_us)

    manifests = head.manifests(table.io) if head else []
    stays, leaves = _split(manifests, lambda m: waits(times.manifest_span(m)))
    joins, to_main = _split(files, lambda f: waits(times.file_span(f)))
    return BranchChange(
        head, stays, read_files(leaves, table.io), joins, to_main, manifest_key=lambda f: str(times.file_span(f))
    )


def release_waiting_files(table: Table, stream: str, files: Sequence[StagedFile] = ()) -> BranchChange:
    """Return the change that moves all waiting files, and `files`, to main. The change removes the open branch."""
    head = head_of(table.metadata, open_branch_name(stream))
    leaves = read_files(head.manifests(table.io) if head else (), table.io)
    return BranchChange(head, leaving_files=leaves, to_main=tuple(files), removes_branch=True)


def read_files(manifests: Iterable[ManifestFile], io: FileIO) -> tuple[DataFile, ...]:
    read = ExecutorFactory.get_or_create().map(lambda manifest: manifest.fetch_manifest_entry(io), manifests)
    return tuple(entry.data_file for entries in read for entry in entries)


def _split(items: Iterable[T], first: Callable[[T], bool]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    values = list(items)
    return tuple(i for i in values if first(i)), tuple(i for i in values if not first(i))
