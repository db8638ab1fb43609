"""The branch where rows of open windows wait (`commit.align: watermark`): which files stay on it, join or leave it.

Each of its manifests has files of one value of the table's time partition, so that the manifest list alone says which
of them leave.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import IntegerType
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.commit.marker import Marker, open_branch
from frazil.errors import SchemaIncompatible, StaleBatch
from frazil.ingest.contract import StagedFile
from frazil.partitions.open_windows import Alignment
from frazil.partitions.windows import Grain
from frazil.table.branches import head_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BranchChange:
    """What one update does to a stream's open branch, and what main gets from it."""

    base: Snapshot | None
    """The snapshot that the branch continues: its head, or an older one if a reset puts it back."""
    stays: tuple[ManifestFile, ...] = ()
    leaves: tuple[DataFile, ...] = ()
    joins: tuple[StagedFile, ...] = ()
    to_main: tuple[StagedFile, ...] = ()
    drops: bool = False
    """Files that leave go nowhere, instead of to main."""
    ends: bool = False
    """The branch is removed."""
    apart: Callable[[StagedFile], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class TimeField:
    """Where a partition spec has the event time, and how long a value's time is."""

    position: int
    length_us: int

    @classmethod
    def of(cls, spec: PartitionSpec, source_id: int) -> TimeField | None:
        for position, field in enumerate(spec.fields):
            if field.source_id == source_id and isinstance(field.transform, HourTransform | DayTransform):
                grain = Grain.HOUR if isinstance(field.transform, HourTransform) else Grain.DAY
                return cls(position, grain.us)
        return None

    def start_us(self, value: bytes | None) -> int | None:
        """Of a partition value as Iceberg serialises it: hours or days since 1970. None for rows without a time."""
        return None if value is None else int(from_bytes(IntegerType(), value)) * self.length_us


@dataclass(frozen=True, slots=True)
class _Times:
    """The event time's place in each of a table's partition specs."""

    fields: dict[int, TimeField]

    @classmethod
    def of(cls, metadata: TableMetadata, column: str) -> _Times:
        source = metadata.schema().find_field(column).field_id
        found = {spec_id: TimeField.of(spec, source) for spec_id, spec in metadata.specs().items()}
        return cls({spec_id: field for spec_id, field in found.items() if field})

    def of_file(self, file: StagedFile) -> tuple[int, int] | None:
        """Start and length of the time that a file lies in; None where it has none."""
        field = self.fields.get(file.spec_id)
        text = file.partition[field.position] if field else None
        return self._span(field, None if text is None else base64.b64decode(text))

    def of_manifest(self, manifest: ManifestFile) -> tuple[int, int] | None:
        field = self.fields.get(manifest.partition_spec_id)
        summary = manifest.partitions[field.position] if field and manifest.partitions else None
        return self._span(field, summary.lower_bound if summary else None)

    @staticmethod
    def _span(field: TimeField | None, value: bytes | None) -> tuple[int, int] | None:
        start_us = field.start_us(value) if field else None
        return None if field is None or start_us is None else (start_us, field.length_us)


def earliest_waiting_us(table: Table, stream: str, *, column: str) -> int | None:
    """Where the time begins of the oldest rows that wait on the stream's open branch; None where none do."""
    head = head_of(table.metadata, open_branch(stream))
    if head is None:
        return None
    times = _Times.of(table.metadata, column)
    spans = [times.of_manifest(manifest) for manifest in head.manifests(table.io)]
    return min((span[0] for span in spans if span), default=None)


def check_aligned(
    metadata: TableMetadata, align: Alignment | None, *, table: str, files: Iterable[StagedFile] = ()
) -> None:
    """No file spans windows: the table is partitioned by the event time, at least as finely as they are.

    Raises `SchemaIncompatible` where it is not, and `StaleBatch` where it was not yet when a batch was staged.
    """
    if align is None:
        return
    fine = {i for i, f in _Times.of(metadata, align.column).fields.items() if f.length_us <= align.grain.us}
    if metadata.default_spec_id not in fine:
        raise SchemaIncompatible(
            f"commit.align: watermark waits for every {align.grain} of {align.column}, and table {table} is not "
            f"partitioned by it: evolve its partitioning to hour({align.column})"
            + (f" or day({align.column})" if align.grain is Grain.DAY else "")
            + ", or declare commit.align: none"
        )
    if any(file.spec_id not in fine for file in files):
        raise StaleBatch(f"a batch for table {table} was staged before the table had its partitions; it is staged anew")


def aligned(table: Table, marker: Marker, files: Sequence[StagedFile], align: Alignment) -> BranchChange:
    """Where a batch's files go, and which of those that wait go to main, once `marker` is the stream's."""
    head = head_of(table.metadata, open_branch(marker.stream))
    times = _Times.of(table.metadata, align.column)
    newest_us = max(marker.max_event_times_us.values(), default=None)

    def waits(span: tuple[int, int] | None) -> bool:
        return span is not None and align.waits(*span, watermark_us=marker.watermark_us, newest_us=newest_us)

    manifests = head.manifests(table.io) if head else []
    stays, leaves = _parted(manifests, lambda m: waits(times.of_manifest(m)))
    joins, to_main = _parted(files, lambda f: waits(times.of_file(f)))
    return BranchChange(head, stays, files_of(leaves, table.io), joins, to_main, apart=lambda f: str(times.of_file(f)))


def released(table: Table, stream: str, files: Sequence[StagedFile] = ()) -> BranchChange:
    """Move everything to main: nothing waits any more."""
    head = head_of(table.metadata, open_branch(stream))
    leaves = files_of(head.manifests(table.io) if head else (), table.io)
    return BranchChange(head, leaves=leaves, to_main=tuple(files), ends=True)


def files_of(manifests: Iterable[ManifestFile], io: FileIO) -> tuple[DataFile, ...]:
    """What manifests list. A day of commits is more than a thousand of them: they are read side by side."""
    read = ExecutorFactory.get_or_create().map(lambda manifest: manifest.fetch_manifest_entry(io), manifests)
    return tuple(entry.data_file for entries in read for entry in entries)


def _parted(items: Iterable[T], first: Callable[[T], bool]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """The items that `first` accepts, and the others."""
    kept = list(items)
    return tuple(i for i in kept if first(i)), tuple(i for i in kept if not first(i))
