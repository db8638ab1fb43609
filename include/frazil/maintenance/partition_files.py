"""Counts each partition's files from the manifests. Skips unneeded fields, which halves the time."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFileContent,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.maintenance.health import Deletes, PartitionFiles, PartitionKey, p10
from frazil.maintenance.tables import MaintainedTable, TableKind

SMALL_RATIO = 0.75
"""Share of the target size below which a file is small, as in Iceberg's `rewrite_data_files`."""

# Field ids of the Iceberg specification, "Manifests" and "Reserved Field IDs".
_CONTENT, _PATH, _PARTITION, _RECORDS, _SIZE, _LOWER, _UPPER, _REFERENCED = 134, 100, 102, 103, 104, 125, 128, 143
_DELETED_PATH = 2_147_483_546


class _EntryReader:
    """Reads the wanted primitive fields of manifest entries. `index` has each field's index, by id."""

    def __init__(self, *field_ids: int) -> None:
        data_file: Any = MANIFEST_ENTRY_SCHEMAS[3].find_type("data_file")
        fields = [f for f in data_file.fields if f.field_id in field_ids or not f.field_type.is_primitive]
        self.index = {f.field_id: position for position, f in enumerate(fields)}
        self._schema = Schema(
            NestedField(0, "status", IntegerType(), required=True),
            NestedField(2, "data_file", StructType(*fields), required=True),
        )

    def live(self, io: FileIO, manifest: ManifestFile) -> Iterator[Record]:
        """Yield each live entry's data file, with the wanted fields in the order of `index`."""
        with AvroFile[Record](io.new_input(manifest.manifest_path), self._schema) as entries:
            for entry in entries:
                if entry[0] != ManifestEntryStatus.DELETED:
                    yield entry[1]


_ENTRIES_WITHOUT_PATHS = _EntryReader(_CONTENT, _SIZE)
_ENTRIES_WITH_PATHS = _EntryReader(_CONTENT, _PATH, _RECORDS, _SIZE)
_DELETES = _EntryReader(_CONTENT, _PATH, _RECORDS, _SIZE, _REFERENCED)

_UNITS: Mapping[type[Any], Literal["Y", "M", "D", "h"]] = {
    YearTransform: "Y",
    MonthTransform: "M",
    DayTransform: "D",
    HourTransform: "h",
}
"""NumPy's name of each transform's unit. A partition value counts units since 1970."""

NO_DELETES = Deletes()


class _PartitionFloat(float):
    """Equals only a float with the same bits: NaN equals itself, and -0.0 is not 0.0, as in Iceberg's partitions."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and self.hex() == other.hex()

    def __hash__(self) -> int:
        return hash(self.hex())


def _partition_key(spec_id: int, partition: Iterable[object]) -> PartitionKey:
    return spec_id, tuple(_PartitionFloat(v) if isinstance(v, float) else v for v in partition)


@dataclass(slots=True)
class _PartitionTotals:
    sizes: array[int] = field(default_factory=lambda: array("q"))
    small_files: int = 0
    small_bytes: int = 0
    delete_files: int = 0
    deletes: Deletes = NO_DELETES

    def add(self, other: _PartitionTotals) -> None:
        self.sizes.extend(other.sizes)
        self.small_files += other.small_files
        self.small_bytes += other.small_bytes
        self.delete_files += other.delete_files
        self.deletes = _add_deletes(self.deletes, other.deletes)


def _add_deletes(first: Deletes, other: Deletes) -> Deletes:
    if first == NO_DELETES:
        return other
    added = {f.name: getattr(first, f.name) + getattr(other, f.name) for f in dataclasses.fields(Deletes)}
    return Deletes(**{**added, "due_largest_bytes": max(first.due_largest_bytes, other.due_largest_bytes)})


@dataclass(frozen=True, slots=True)
class _DeleteFile:
    key: PartitionKey
    path: str
    records: int
    bytes: int
    data_file: str | None
    """The data file to which the delete file applies; None for several, and for deletes by column values."""
    is_alone: bool
    """Whether its file has no other deletes. Other engines store several deletion vectors in one file."""


def read_partitions(
    table: Table,
    manifests: Sequence[ManifestFile],
    maintained: MaintainedTable,
    *,
    target_bytes: int,
    sizes: array[int] | None = None,
) -> tuple[PartitionFiles, ...]:
    """Count the live files of each partition, sorted by path. Appends each data file's size to `sizes`."""
    pool = ExecutorFactory.get_or_create()
    of_deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    deletes = [file for found in pool.map(lambda m: _read_delete_files(table.io, m), of_deletes) for file in found]
    deleted = Counter[str]()
    for file in deletes:
        if file.data_file is not None:
            deleted[file.data_file] += file.records
    bounds = _FileLimits(target_bytes, maintained.settings.compaction.deleted_rows)
    total: dict[PartitionKey, _PartitionTotals] = {}
    live_paths: set[str] = set()
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    for found, paths in pool.map(lambda m: _count_data_files(table.io, m, bounds, deleted), data):
        live_paths |= paths
        for key, count in found.items():
            total.setdefault(key, _PartitionTotals()).add(count)
    for file in deletes:
        total.setdefault(file.key, _PartitionTotals()).add(_count_delete_file(file, live_paths))
    if sizes is not None:
        for count in total.values():
            sizes.extend(count.sizes)
    column = _time_column(maintained)
    described = {spec_id: _PartitionDescriber(spec, table.schema(), column) for spec_id, spec in table.specs().items()}
    partitions = (described[key[0]].partition(key[1], count) for key, count in total.items())
    return tuple(sorted(partitions, key=lambda p: (p.path, p.spec_id)))


def _read_delete_files(io: FileIO, manifest: ManifestFile) -> list[_DeleteFile]:
    index, deletes = _DELETES.index, []
    for file in _DELETES.live(io, manifest):
        lower, upper = ((file[index[bound]] or {}).get(_DELETED_PATH) for bound in (_LOWER, _UPPER))
        is_for_one_file = (
            file[index[_CONTENT]] == DataFileContent.POSITION_DELETES and lower is not None and lower == upper
        )
        key = _partition_key(manifest.partition_spec_id, file[index[_PARTITION]])
        data_file = lower.decode() if is_for_one_file and lower is not None else file[index[_REFERENCED]]
        deletes.append(
            _DeleteFile(key, file[index[_PATH]], file[index[_RECORDS]], file[index[_SIZE]], data_file, is_for_one_file)
        )
    return deletes


def _count_delete_file(file: _DeleteFile, live_paths: Set[str]) -> _PartitionTotals:
    """Return a delete file's totals. It is dangling if its only data file is not live."""
    dangles = file.data_file is not None and file.data_file not in live_paths
    rows, dangling = 0 if dangles else file.records, (file.path,) if dangles and file.is_alone else ()
    deletes = Deletes(bytes=file.bytes, rows=rows, shared=int(file.data_file is None), dangling=dangling)
    return _PartitionTotals(delete_files=1, deletes=deletes)


@dataclass(frozen=True, slots=True)
class _FileLimits:
    """Decides which files are small, and which are rewritten because of deleted rows (`deleted_percent` or more)."""

    target_bytes: int
    deleted_percent: int

    def is_small(self, size: int) -> bool:
        return size < int(self.target_bytes * SMALL_RATIO)

    def count_if_due(self, size: int, *, deleted: int, records: int) -> Deletes:
        """Count a data file if it must be rewritten because of its deleted rows: `deleted` of its `records`."""
        is_small, lost, limit = self.is_small(size), 100 * deleted, self.deleted_percent * records
        due = Deletes(scaled_due_files=int(is_small and lost * self.target_bytes >= limit * size))
        if lost < limit:
            return due
        few, few_bytes = int(is_small), size if is_small else 0
        return dataclasses.replace(
            due, due_files=1, due_bytes=size, due_largest_bytes=size, due_small_files=few, due_small_bytes=few_bytes
        )


def _count_data_files(
    io: FileIO, manifest: ManifestFile, bounds: _FileLimits, deleted: Mapping[str, int]
) -> tuple[dict[PartitionKey, _PartitionTotals], set[str]]:
    """Return totals by partition, and which paths of `deleted` exist. `deleted` has numbers of deleted rows by path."""
    counts: dict[PartitionKey, _PartitionTotals] = {}
    live_paths: set[str] = set()
    entries = _ENTRIES_WITH_PATHS if deleted else _ENTRIES_WITHOUT_PATHS
    partition_at, size_at, path_at, records_at = (entries.index.get(i, 0) for i in (_PARTITION, _SIZE, _PATH, _RECORDS))
    for file in entries.live(io, manifest):
        key = _partition_key(manifest.partition_spec_id, file[partition_at])
        count = counts.get(key) or counts.setdefault(key, _PartitionTotals())
        size = file[size_at]
        count.sizes.append(size)
        if bounds.is_small(size):
            count.small_files += 1
            count.small_bytes += size
        if deleted and (deletes := deleted.get(file[path_at])):
            live_paths.add(file[path_at])
            due = bounds.count_if_due(size, deleted=deletes, records=file[records_at])
            count.deletes = _add_deletes(count.deletes, due)
    return counts, live_paths


def _time_column(maintained: MaintainedTable) -> str:
    """Return the time column that shows whether a partition is complete."""
    match maintained.kind:
        case TableKind.MAIN | TableKind.ROUTED:
            return maintained.streams[0].event_time.column
        case TableKind.DEAD_LETTERS:
            return "rejected_at"
        case TableKind.SIGNALS:
            return "start"


class _PartitionDescriber:
    """Converts a spec's partition values to a path and a time range."""

    def __init__(self, spec: PartitionSpec, schema: Schema, time_column: str) -> None:
        self._spec, self._schema = spec, schema
        self._units = [
            (index, _UNITS[type(field.transform)])
            for index, field in enumerate(spec.fields)
            if type(field.transform) in _UNITS and schema.find_column_name(field.source_id) == time_column
        ]

    def partition(self, values: tuple[object, ...], count: _PartitionTotals) -> PartitionFiles:
        return PartitionFiles(
            spec_id=self._spec.spec_id,
            values=values,
            path=self._path(values),
            files=len(count.sizes),
            bytes=sum(count.sizes),
            small_files=count.small_files,
            small_bytes=count.small_bytes,
            delete_files=count.delete_files,
            window_end_us=min(self._unit_starts(values, steps=1), default=None),
            window_begin_us=max(self._unit_starts(values, steps=0), default=None),
            p10_bytes=p10(count.sizes),
            deletes=count.deletes,
        )

    def _path(self, values: tuple[object, ...]) -> str:
        try:
            return self._spec.partition_to_path(Record(*values), self._schema)
        except (ValueError, TypeError, OverflowError):  # a time beyond the year 9999, or a dropped column
            return "/".join(f"{f.name}={v}" for f, v in zip(self._spec.fields, values, strict=True))

    def _unit_starts(self, values: Sequence[Any], *, steps: int) -> Iterable[int]:
        """Yield the start (us since 1970) of each time value's unit, or of the unit `steps` units later."""
        for index, unit in self._units:
            if values[index] is not None:
                yield int(np.datetime64(values[index] + steps, unit).astype("datetime64[us]").astype(np.int64))
