"""Plans a merge: selects the table's files that may contain keys of a batch's changes, and divides them into tasks.

Changes and files are grouped by the partition fields that depend only on the key. A large group is split: each task
gets all changes of the group, and some of the group's files. One more task then inserts the unmatched changes.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import PrimitiveType, UUIDType
from pyroaring import BitMap64

from frazil.commit.manifest_lists import live_manifests
from frazil.commit.manifest_writing import schema_of_spec
from frazil.errors import SchemaIncompatible
from frazil.ingest.contract import PartitionKey, StagedFile
from frazil.merge.contract import DeleteFile, MergeResult, MergeRules, MergeTask, TableFile
from frazil.merge.table_files import PATH_ID
from frazil.pyiceberg_fixes import file_key, referenced_data_file
from frazil.spec.iceberg import filter_between
from frazil.table.branches import head_of

MIN_SPLIT_BYTES = 64 * 2**20
"""Minimum size of a group that is split."""

F = TypeVar("F", StagedFile, TableFile)
GroupValues = tuple[Any, ...]
"""Values of the partition fields that depend only on the key."""
KeyBounds = tuple[tuple[Any, Any], ...]
"""Minimum and maximum of each key column; None if unknown."""


@dataclass(frozen=True, slots=True)
class InsertTask:
    """Inserts the changes that no earlier task of the group has matched."""

    index: int
    changes: tuple[str, ...]
    after: tuple[int, ...]
    share: tuple[str, ...] = ()

    def make_task(self, matched: Mapping[int, bytes]) -> MergeTask:
        maps = [BitMap64.deserialize(matched[index]) for index in self.after if matched[index]]
        text = BitMap64.union(*maps).serialize() if maps else b""
        return MergeTask(self.index, self.changes, (), inserts=True, matched=text, share=self.share)


@dataclass(frozen=True, slots=True)
class MergePlan:
    tasks: tuple[MergeTask, ...]
    insert_tasks: tuple[InsertTask, ...]
    read: Mapping[str, Sequence[ManifestEntry]]
    """Live entries of the manifests that may list the tasks' files, by manifest path."""
    manifests: Sequence[ManifestFile]
    bins: Mapping[GroupValues, int]

    def live_entries(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        return self.read.get(manifest.manifest_path, ())

    def make_insert_tasks(self, results: Sequence[MergeResult]) -> list[MergeTask]:
        matched = {task.index: result.matched for task, result in zip(self.tasks, results, strict=True)}
        return [planned.make_task(matched) for planned in self.insert_tasks]


def plan_merge(
    table: Table, changes: Sequence[StagedFile], rules: MergeRules, *, parallelism: int, prior: MergePlan | None = None
) -> MergePlan:
    """Plan a merge. Groups keep their task number in `prior`. Raises SchemaIncompatible for unsuitable tables."""
    head = head_of(table.metadata)
    manifests = live_manifests(head, table.io)
    if not changes:
        return MergePlan((), (), {}, manifests, {})
    index = _ChangeIndex(table, tuple(changes), key_schema(table, rules.key))
    read = {m.manifest_path: m.fetch_manifest_entry(table.io) for m in manifests if index.may_match(m)}
    groups = _build_groups(index, manifests, read)
    tasks, insert_tasks, bins = _divide_into_tasks(groups, parallelism, prior.bins if prior else {})
    return MergePlan(tasks, insert_tasks, read, manifests, bins)


def key_schema(table: Table, key: Collection[str]) -> Schema:
    """Return the schema of the key columns. Raises SchemaIncompatible if the table is missing one."""
    names = {column.name for column in table.schema().fields}
    if missing := sorted(set(key) - names):
        raise SchemaIncompatible(
            f"table {'.'.join(table.name())} is missing {', '.join(missing)} of the stream's key; "
            "restore the column, or declare another key"
        )
    return table.schema().select(*key)


class _ChangeIndex:
    """Selects the manifests and files to read, by the changes' groups, key bounds and partition values."""

    def __init__(self, table: Table, changes: tuple[StagedFile, ...], key: Schema) -> None:
        self.table = table
        self.changes = changes
        specs = {f.spec_id for f in changes}
        self.spec_id = specs.pop() if len(specs) == 1 else -1
        """The partition spec id of the change files; -1 if they have several."""
        self._kinds = [(f.field_id, f.field_type) for f in key.fields if isinstance(f.field_type, PrimitiveType)]
        self._key = key
        spec = table.metadata.specs().get(self.spec_id, PartitionSpec())
        sources = {field_id for field_id, _ in self._kinds}
        of_key = ((i, part) for i, part in enumerate(spec.fields) if part.source_id in sources)
        self.key_fields = [i for i, part in of_key if not isinstance(part.transform, VoidTransform)]
        self._types = _partition_types(spec, table)
        self.groups: dict[GroupValues, list[StagedFile]] = defaultdict(list)
        for file in changes:
            self.groups[tuple(_decode_bound(self._types[i], file.partition[i]) for i in self.key_fields)].append(file)
        self.group_bounds = {values: self._key_bounds(files) for values, files in self.groups.items()}
        self.bounds = self._key_bounds(changes)
        self._evaluators: dict[int, Any] = {}

    def _key_bounds(self, files: Sequence[StagedFile]) -> KeyBounds:
        return tuple(column_bounds(field_id, kind, files) for field_id, kind in self._kinds)

    def may_match(self, manifest: ManifestFile) -> bool:
        # Some engines store no bounds of values that they cannot serialize. In Iceberg, no bounds means no values.
        if any(s.lower_bound is None and not (s.contains_null or s.contains_nan) for s in manifest.partitions or ()):
            return True
        spec_id = manifest.partition_spec_id
        if spec_id == self.spec_id:
            return self._matches_summaries(manifest)
        if spec_id not in self._evaluators:
            spec, schema = self.table.metadata.specs()[spec_id], self.table.schema()
            evaluator = None  # one of the spec's columns was dropped, so any manifest may match
            if schema_of_spec(spec, self.table.metadata) == schema:
                evaluator = manifest_evaluator(spec, schema, inclusive_projection(schema, spec)(self._filter))
            self._evaluators[spec_id] = evaluator
        return self._evaluators[spec_id] is None or bool(self._evaluators[spec_id](manifest))

    @cached_property
    def _sorted_values(self) -> list[tuple[bool, list[Any]]]:
        columns = [set(column) for column in zip(*self.groups, strict=True)]
        return [(None in column, sorted(v for v in column if v is not None)) for column in columns]

    def _matches_summaries(self, manifest: ManifestFile) -> bool:
        summaries = manifest.partitions
        if not summaries:
            return True
        for position, (null, values) in zip(self.key_fields, self._sorted_values, strict=True):
            summary, kind = summaries[position], self._types[position]
            if null and summary.contains_null:
                continue
            if summary.lower_bound is None or summary.upper_bound is None:
                return False  # all of its values are null
            index = bisect_left(values, from_bytes(kind, summary.lower_bound))
            if index == len(values) or values[index] > from_bytes(kind, summary.upper_bound):
                return False
        return True

    @cached_property
    def _filter(self) -> BooleanExpression:
        rows: BooleanExpression = AlwaysTrue()
        for column, bounds in zip(self._key.fields, self.bounds, strict=True):
            if None not in bounds:
                rows = And(rows, filter_between(column, *bounds))
        return rows

    def overlaps(self, file: DataFile, bounds: KeyBounds) -> bool:
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        for (field_id, kind), (smallest, greatest) in zip(self._kinds, bounds, strict=True):
            if greatest is not None and (low := lower.get(field_id)) is not None and from_bytes(kind, low) > greatest:
                return False
            if smallest is not None and (high := upper.get(field_id)) is not None and from_bytes(kind, high) < smallest:
                return False
        return True


def _partition_types(spec: PartitionSpec, table: Table) -> list[PrimitiveType]:
    schema = schema_of_spec(spec, table.metadata)
    types = [part.field_type for part in spec.partition_type(schema).fields] if schema else []
    return [kind for kind in types if isinstance(kind, PrimitiveType)]


def _decode_bound(kind: PrimitiveType, text: str | None) -> Any:
    return None if text is None else from_bytes(kind, base64.b64decode(text))


def column_bounds(field_id: int, kind: PrimitiveType, files: Sequence[StagedFile]) -> tuple[Any, Any]:
    """Return a column's minimum and maximum in staged files; None if unknown for some file."""
    if isinstance(kind, UUIDType):  # engines order UUIDs differently: Java compares the halves as signed numbers
        return None, None
    lower = [_decode_bound(kind, f.lower_bounds.get(field_id)) for f in files]
    upper = [_decode_bound(kind, f.upper_bounds.get(field_id)) for f in files]
    return None if None in lower else min(lower, default=None), None if None in upper else max(upper, default=None)


@dataclass(slots=True)
class _Group:
    values: GroupValues
    changes: tuple[StagedFile, ...]
    files: list[TableFile] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return sum(f.bytes for f in self.files) + sum(f.bytes for f in self.changes)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(f.path for f in self.changes))


def _build_groups(
    index: _ChangeIndex, manifests: Sequence[ManifestFile], read: Mapping[str, Sequence[ManifestEntry]]
) -> list[_Group]:
    """Return groups of changes, with the files that may have the changes' keys. Returns one group if specs differ."""
    deletes = _index_deletes(manifests, read)
    by_group: dict[GroupValues, list[TableFile]] = defaultdict(list)
    of_any_group: list[TableFile] = []
    keys = PartitionKeys(index.table)
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA:
            continue
        for entry in read.get(manifest.manifest_path, ()):
            file = entry.data_file
            values = None
            if file.spec_id == index.spec_id:  # `from_bytes` returns UUIDs as bytes, Avro as objects
                plain = (file.partition[i] for i in index.key_fields)
                values = tuple(value.bytes if isinstance(value, UUID) else value for value in plain)
            bounds = index.bounds if values is None else index.group_bounds.get(values)
            if bounds is None or not index.overlaps(file, bounds):
                continue
            of_file = deletes.for_data_file(entry.sequence_number or 0, file, partition_key=file.partition)
            table_file = make_table_file(file, of_file, keys, mode="mode: upsert")
            (of_any_group if values is None else by_group[values]).append(table_file)
    if of_any_group:
        files = [*of_any_group, *(file for files in by_group.values() for file in files)]
        return [_Group((), index.changes, files)]
    return [_Group(values, tuple(files), by_group.get(values, [])) for values, files in index.groups.items()]


class PartitionKeys:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._types: dict[int, list[PrimitiveType]] = {}
        self._identities: dict[int, dict[int, int]] = {}
        """Source columns of identity partitions, by spec id and position in the spec."""

    def for_file(self, file: DataFile) -> PartitionKey:
        if file.spec_id not in self._types:
            self._types[file.spec_id] = _partition_types(self._table.metadata.specs()[file.spec_id], self._table)
        values = ((kind, file.partition[i]) for i, kind in enumerate(self._types[file.spec_id]))
        return tuple(None if v is None else base64.b64encode(to_bytes(kind, v)).decode() for kind, v in values)

    def constants(self, file: DataFile) -> tuple[tuple[int, str], ...]:
        """Return the values, by field id, of identity partition columns that are missing in the file."""
        if file.spec_id not in self._identities:
            fields = enumerate(self._table.metadata.specs()[file.spec_id].fields)
            identities = {i: part.source_id for i, part in fields if isinstance(part.transform, IdentityTransform)}
            self._identities[file.spec_id] = identities
        counts = file.value_counts or {}
        missing = {i: source for i, source in self._identities[file.spec_id].items() if source not in counts}
        if not missing:
            return ()
        values = dict(enumerate(self.for_file(file)))
        return tuple((source, value) for i, source in missing.items() if (value := values.get(i)) is not None)


def _index_deletes(manifests: Sequence[ManifestFile], read: Mapping[str, Sequence[ManifestEntry]]) -> DeleteFileIndex:
    index = DeleteFileIndex()
    for manifest in manifests:
        for entry in read.get(manifest.manifest_path, ()) if manifest.content is ManifestContent.DELETES else ():
            file = entry.data_file
            _check_readable(file, mode="mode: upsert")
            index.add_delete_file(entry, partition_key=file.partition)
    return index


def _check_readable(file: DataFile, *, mode: str) -> None:
    """Raise SchemaIncompatible if a merge cannot read a data file or a delete file."""
    kind, is_vector = file.file_format, referenced_data_file(file) is not None
    label = "equality deletes" if file.content is DataFileContent.EQUALITY_DELETES else f"a file in {kind.value} format"
    if file.content is DataFileContent.EQUALITY_DELETES or not (kind is FileFormat.PARQUET or is_vector):
        raise SchemaIncompatible(
            f"the table has {label} ({file.file_path}), which a stream with {mode} cannot read: it reads rows and "
            "position deletes in Parquet, and deletion vectors. Compact the table with the engine that wrote the "
            "file, stop that engine from writing such files, then start again"
        )


def make_table_file(file: DataFile, deletes: Collection[DataFile], keys: PartitionKeys, *, mode: str) -> TableFile:
    """Describe a data file with its deletes to a merge task. Raises SchemaIncompatible if the merge cannot read them.

    `mode` is the stream's declared mode, for the message.
    """
    for part in (file, *deletes):
        _check_readable(part, mode=mode)
    path = file.file_path.encode()
    return TableFile(
        path=file.file_path,
        records=file.record_count,
        bytes=file.file_size_in_bytes,
        spec_id=file.spec_id,
        partition=keys.for_file(file),
        deletes=tuple(
            DeleteFile(
                d.file_path,
                d.record_count,
                alone=all((bounds or {}).get(PATH_ID) == path for bounds in (d.lower_bounds, d.upper_bounds)),
                key=file_key(d) if referenced_data_file(d) else "",
            )
            for d in sorted(deletes, key=lambda d: d.file_path)
        ),
        constants=keys.constants(file),
    )


def _divide_into_tasks(
    groups: Sequence[_Group], parallelism: int, last_bins: Mapping[GroupValues, int]
) -> tuple[tuple[MergeTask, ...], tuple[InsertTask, ...], dict[GroupValues, int]]:
    share = sum(group.weight for group in groups) / parallelism
    large = [g for g in groups if parallelism > 1 and len(g.files) > 1 and g.weight > max(1.5 * share, MIN_SPLIT_BYTES)]
    undivided = [g for g in groups if g not in large]
    pieces = [
        (g, files)
        for g in large
        for files in split_files(g.files, min(len(g.files), max(2, round(sum(f.bytes for f in g.files) / share))))
    ]
    bins = _assign_bins(undivided, max(1, parallelism - len(pieces)), last_bins)
    tasks: list[MergeTask] = []
    for number in sorted(set(bins.values())):
        packed = [g for g in undivided if bins[g.values] == number]
        paths = tuple(sorted(path for g in packed for path in g.paths))
        tasks.append(MergeTask(number, paths, sort_files(f for g in packed for f in g.files), inserts=True))
    inserts: dict[GroupValues, list[int]] = defaultdict(list)
    number = 1 + max((task.index for task in tasks), default=-1)
    for group, files in pieces:
        inserts[group.values].append(number)
        tasks.append(MergeTask(number, group.paths, sort_files(files), inserts=False))
        number += 1
    insert_tasks = tuple(InsertTask(number + i, g.paths, tuple(inserts[g.values])) for i, g in enumerate(large))
    return tuple(tasks), insert_tasks, bins


def sort_files(files: Iterable[TableFile]) -> tuple[TableFile, ...]:
    return tuple(sorted(files, key=lambda f: f.path))


def split_files(files: Sequence[F], count: int) -> list[list[F]]:
    pieces: list[list[F]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda f: (-f.bytes, f.path)):
        smallest = sizes.index(min(sizes))
        pieces[smallest].append(file)
        sizes[smallest] += file.bytes
    return pieces


def _assign_bins(groups: Sequence[_Group], count: int, last_bins: Mapping[GroupValues, int]) -> dict[GroupValues, int]:
    """Return each group's task number. Groups keep their number in `last_bins`; new groups balance the load."""
    bins: dict[GroupValues, int] = {}
    weights = [0] * count
    ordered = sorted(((g.weight, g.paths, g) for g in groups), key=lambda item: (-item[0], item[1]))
    for has_bin in (True, False):
        for weight, _, group in ordered:
            if (last_bins.get(group.values, count) < count) is has_bin:
                number = last_bins[group.values] if has_bin else weights.index(min(weights))
                bins[group.values] = number
                weights[number] += weight
    return bins
