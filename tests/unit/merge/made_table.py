"""A table as files on disk, without a catalog, into which tests merge batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyroaring import BitMap64

from frazil.commit.merging import UPSERT_MODE
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import StagedFile, TargetTable
from frazil.ingest.parquet import variant_groups_schema
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import DeleteFile, MergeContext, MergeCounts, MergeResult, MergeRules, MergeTask, TableFile
from frazil.merge.task import run_merge_task
from frazil.spec.iceberg import variant_columns

Row = Mapping[str, Any]


@dataclass
class MadeTable:
    """Data files with position deletes, of one Iceberg schema."""

    folder: Path
    schema: Schema
    rules: MergeRules
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    files: list[TableFile] = field(default_factory=list)
    batches: int = 0
    last: list[MergeResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = TargetTable(
            self.schema.model_dump_json(),
            self.spec.model_dump_json(),
            UNSORTED_SORT_ORDER.model_dump_json(),
            {},
            str(self.folder / "data"),
            2**27,
        )
        self.changes = dataclasses.replace(
            UPSERT_MODE.staging_target(self.target, self.rules.key), folder=str(self.folder / "new")
        )

    def land(self, rows: Sequence[Row]) -> None:
        """Add rows of another writer, in one file per partition."""
        self.files += [_table_file(file) for file in self._write(self.target, rows)]

    def stage(self, changes: Sequence[Row]) -> list[StagedFile]:
        plain = {
            CHANGE: UPSERT,
            OMITTED_COLUMNS: None,
            "kafka_topic": "t",
            "kafka_partition": 0,
            "kafka_timestamp": None,
        }
        return self._write(self.changes, [{**plain, "kafka_offset": n, **row} for n, row in enumerate(changes)])

    def _write(self, target: TargetTable, rows: Sequence[Row]) -> list[StagedFile]:
        writer = TableWriter(target, "main", io=load_file_io({}, location=target.folder), file_name=file_namer(0, 0))
        declared = Schema.model_validate_json(target.schema_json)
        schema = variant_groups_schema(schema_to_pyarrow(declared), variant_columns(declared))
        writer.add(pa.Table.from_pylist([{f.name: row.get(f.name) for f in schema} for row in rows], schema=schema))
        return writer.finish()

    def merge(self, staged: Sequence[StagedFile], tasks: int = 1, *, alone: bool = False) -> MergeCounts:
        """Merge with `tasks` tasks, each with all changes and a share of the files, and one more task that inserts.

        With `alone`, each partition has one task that also inserts.
        """
        self.batches += 1
        context = MergeContext("s", self.rules, self.changes, self.target)
        self.last = []
        if alone:
            for partition in sorted({f.partition for f in [*staged, *self.files]}, key=str):
                files = tuple(f for f in self.files if f.partition == partition)
                paths = tuple(f.path for f in staged if f.partition == partition)
                self._run(context, MergeTask(len(self.last), paths, files, inserts=True))
        else:
            paths = tuple(f.path for f in staged)
            shares = [tuple(self.files[n::tasks]) for n in range(tasks)]
            for n, files in enumerate(shares):
                if files:
                    self._run(context, MergeTask(n, paths, files, inserts=False))
            matched = BitMap64.union(*(BitMap64.deserialize(r.matched) for r in self.last)) if self.last else BitMap64()
            self._run(context, MergeTask(tasks, paths, (), inserts=True, matched=matched.serialize()))
        self._apply()
        total = MergeCounts()
        for result in self.last:
            total += result.counts
        return total

    def _run(self, context: MergeContext, task: MergeTask) -> None:
        received = msgspec.json.decode(msgspec.json.encode(task), type=MergeTask)
        answer = msgspec.json.encode(run_merge_task(context, received))
        self.last.append(msgspec.json.decode(answer, type=MergeResult))

    def _apply(self) -> None:
        for result in self.last:
            gone, dropped = set(result.replaced), set(result.dropped_deletes)
            assert gone <= {f.path for f in self.files}
            assert dropped <= {d.path for f in self.files for d in f.deletes}
            kept = [f for f in self.files if f.path not in gone]
            self.files = [
                dataclasses.replace(f, deletes=tuple(d for d in f.deletes if d.path not in dropped)) for f in kept
            ]
            for file in result.files:
                if file.content == "data":
                    self.files.append(_table_file(file))
                else:
                    self._delete(file)

    def _delete(self, file: StagedFile) -> None:
        (path,) = set(pq.read_table(file.path)["file_path"].to_pylist())
        at = next(n for n, found in enumerate(self.files) if found.path == path)
        assert not self.files[at].deletes
        delete = DeleteFile(file.path, file.records, alone=True)
        self.files[at] = dataclasses.replace(self.files[at], deletes=(delete,))

    def rows(self) -> list[Row]:
        """Return the rows that a reader sees."""
        found = []
        for file in self.files:
            gone = {p for d in file.deletes for p in pq.read_table(d.path)["pos"].to_pylist()}
            rows = pq.ParquetFile(file.path).read().to_pylist()
            assert len(rows) == file.records
            found += [row for n, row in enumerate(rows) if n not in gone]
        return found


def _table_file(file: StagedFile) -> TableFile:
    return TableFile(file.path, file.records, file.bytes, file.spec_id, file.partition)


def deleted(**key: Any) -> Row:
    return {**key, CHANGE: DELETE}
