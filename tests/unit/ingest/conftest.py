"""Real tables for staged files: a SQLite catalog, and commits that turn staged files into manifest entries."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import Record

from frazil.ingest.contract import StagedFile, Target, TargetTable
from frazil.ingest.table_writer import TableWriter, file_namer

SERIAL = itertools.count()
MakeTable = Callable[..., Table]
MakeWriter = Callable[..., TableWriter]


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    folder = tmp_path_factory.mktemp("catalog")
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("test")
    yield catalog
    catalog.engine.dispose()


@pytest.fixture
def make_table(catalog: SqlCatalog) -> MakeTable:
    """`make_table(schema, spec, order, properties)` creates a table for this test only."""

    def make(
        schema: Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, str] | None = None,
    ) -> Table:
        name = f"test.t{next(SERIAL)}"
        return catalog.create_table(name, schema, partition_spec=spec, sort_order=order, properties=properties or {})

    return make


def target_of(table: Table, folder: str, target_file_bytes: int = 128 * 2**20) -> TargetTable:
    return TargetTable(
        schema_json=table.schema().model_dump_json(),
        spec_json=table.spec().model_dump_json(),
        sort_order_json=table.sort_order().model_dump_json(),
        properties=table.properties,
        folder=f"{table.location()}/data/{folder}",
        target_file_bytes=target_file_bytes,
    )


@pytest.fixture
def make_writer() -> MakeWriter:
    """`make_writer(table)` returns a writer of main rows, as in the first attempt of task 3."""

    def make(
        table: Table, target: Target = "main", *, target_file_bytes: int = 128 * 2**20, **options: Any
    ) -> TableWriter:
        where = target_of(table, "stream/1/2", target_file_bytes)
        return TableWriter(where, target, io=table.io, file_name=file_namer(3, 0), **options)

    return make


@pytest.fixture
def commit() -> Callable[[Table, Sequence[StagedFile]], Table]:
    """`commit(table, files)` appends staged files, after converting them to JSON and back like a journal."""

    def append_all(table: Table, files: Sequence[StagedFile]) -> Table:
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for staged in files:
                through_json = json.loads(json.dumps(staged.to_json()))
                append.append_data_file(data_file(table, StagedFile.from_json(through_json)))
        return table.refresh()

    return append_all


def data_file(table: Table, staged: StagedFile) -> DataFile:
    kinds = [f.field_type for f in table.specs()[staged.spec_id].partition_type(table.schema()).fields]
    values = [
        None if value is None else from_bytes(kind, base64.b64decode(value))  # type: ignore[arg-type]
        for kind, value in zip(kinds, staged.partition, strict=True)
    ]
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=staged.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=staged.records,
        file_size_in_bytes=staged.bytes,
        sort_order_id=staged.sort_order_id,
        column_sizes=staged.column_sizes,
        value_counts=staged.value_counts,
        null_value_counts=staged.null_value_counts,
        nan_value_counts=staged.nan_value_counts,
        lower_bounds={i: base64.b64decode(bound) for i, bound in staged.lower_bounds.items()},
        upper_bounds={i: base64.b64decode(bound) for i, bound in staged.upper_bounds.items()},
        split_offsets=list(staged.split_offsets),
    )
    entry.spec_id = staged.spec_id
    return entry
