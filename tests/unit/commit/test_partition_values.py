"""Partition values may be null, even of required columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform
from pyiceberg.types import LongType, NestedField, StructType

from frazil.commit.journal import bare_path
from frazil.commit.marker import BatchKey
from frazil.commit.staging_targets import target_table
from frazil.commit.sweep import batch_folder
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from tests.unit.commit.conftest import FaultyCatalog, World

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=True),
    NestedField(2, "s", StructType(NestedField(3, "a", LongType(), required=True)), required=False),
)
ROWS = [{"n": 1, "s": None}, {"n": 2, "s": {"a": 5}}]


def land(
    catalog: FaultyCatalog, folder: Path, source_id: int, transform: Transform[Any, Any], *, dropped: str = ""
) -> World:
    """Land a batch. Before it is staged, the column `dropped` is dropped, and the table's former schema removed."""
    spec = PartitionSpec(PartitionField(source_id, 1000, transform, "part"))
    table = catalog.inner.create_table("demo.events", SCHEMA, partition_spec=spec)
    if dropped:
        with table.update_schema() as update:
            update.delete_column(dropped)
        catalog.inner.commit_table(table, (), (RemoveSchemasUpdate(schema_ids=[0]),))
    catalog.inner.create_table(
        "demo.events_dead_letters", DEAD_LETTER_SCHEMA, partition_spec=DEAD_LETTER_PARTITION_SPEC
    )
    world = World(catalog, folder)
    committer = world.begin()
    table, key = world.load(), BatchKey(committer.epoch, 1)
    target = target_table(table, folder=batch_folder(table, world.stream, key))
    writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
    rows = [{name: value for name, value in row.items() if name != dropped} for row in ROWS]
    writer.add(pa.Table.from_pylist(rows, schema=writer.layout.arrow_schema))
    journal = world.journal(key, {0: (0, 1)}, tuple(writer.finish()))
    assert world.tables.journals.put(journal)
    committer.commit(journal)
    return world


def test_a_void_partition_of_a_required_column_is_null(catalog: FaultyCatalog, tmp_path: Path) -> None:
    world = land(catalog, tmp_path, 1, VoidTransform())

    assert world.load().scan().to_arrow().sort_by("n").to_pylist() == ROWS


def test_a_void_partition_of_a_dropped_column_is_null(catalog: FaultyCatalog, tmp_path: Path) -> None:
    """A table of format version 1 has such a partition after its partition field and then the column were dropped."""
    world = land(catalog, tmp_path, 2, VoidTransform(), dropped="s")

    table = world.load()
    assert table.scan().to_arrow().sort_by("n").to_pylist() == [{"n": 1}, {"n": 2}]
    (manifest,) = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    with Path(bare_path(manifest.manifest_path)).open("rb") as file:
        assert [entry["data_file"]["partition"] for entry in fastavro.reader(file)] == [{"part": None}]


def test_a_partition_by_a_required_field_of_a_missing_struct_is_null(catalog: FaultyCatalog, tmp_path: Path) -> None:
    world = land(catalog, tmp_path, 3, IdentityTransform())

    assert world.load().scan().to_arrow().sort_by("n").to_pylist() == ROWS
    found = world.load().inspect.partitions().to_pylist()
    assert sorted(str(row["partition"]["part"]) for row in found) == ["5", "None"]
