"""The files that a merge rewrites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.types import BinaryType, IcebergType, LongType, NestedField, StructType

from frazil.errors import SchemaIncompatible
from frazil.ingest.changes import OMITTED_COLUMNS
from frazil.merge.contract import MergeRules, RowRemoval, TableFile
from frazil.merge.table_files import TableFileReader, rewrite_files, write_deletes
from frazil.merge.task import files_to_rewrite
from frazil.pyiceberg_fixes import VariantType
from tests.unit.merge.made_table import MadeTable

MIB = 2**20


def made(bytes_: int, records: int = 1000, name: str = "a") -> TableFile:
    return TableFile(path=name, records=records, bytes=bytes_, spec_id=0, partition=())


@pytest.mark.parametrize(
    ("bytes_", "stay", "leave"),
    [(128 * MIB, 200, 201), (MIB, 200, 201), (MIB // 2, 100, 101), (MIB // 20, 9, 11), (100, 0, 1)],
)
def test_a_smaller_file_is_rewritten_after_fewer_deleted_rows(bytes_: int, stay: int, leave: int) -> None:
    file = made(bytes_)
    assert files_to_rewrite("auto", {file: stay}, [file], new_rows=0) == set()
    assert files_to_rewrite("auto", {file: leave}, [file], new_rows=0) == {"a"}


def test_copy_on_write_rewrites_every_changed_file_and_merge_on_read_only_emptied_ones() -> None:
    file, emptied = made(MIB), made(MIB, name="b")
    leaving = {file: 1, emptied: 1000}
    assert files_to_rewrite("copy-on-write", leaving, [file, emptied], new_rows=0) == {"a", "b"}
    assert files_to_rewrite("merge-on-read", leaving, [file, emptied], new_rows=0) == {"b"}


def test_a_merge_rewrites_small_files_once_there_are_four() -> None:
    small = [made(10_000, name=str(n)) for n in range(4)]
    assert files_to_rewrite("auto", {}, small, new_rows=10) == {"0", "1", "2", "3"}
    assert files_to_rewrite("auto", {}, small[:3], new_rows=10) == set()
    assert files_to_rewrite("auto", {}, [*small[:3], made(100 * MIB, name="large")], new_rows=10) == set()


@pytest.mark.parametrize(("leave", "joined"), [(300, {"0", "1", "2", "3"}), (900, set())])
def test_a_rewritten_file_that_keeps_more_rows_is_joined_by_larger_files(leave: int, joined: set[str]) -> None:
    rewritten, others = made(MIB), [made(MIB, name=str(n)) for n in range(4)]
    assert files_to_rewrite("auto", {rewritten: leave}, [rewritten, *others], new_rows=1) == {"a", *joined}


PARTS = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}
"""The variant 7."""
PART_IDS = [(3, "metadata"), (4, "value")]


def table_of(folder: Path, *kinds: IcebergType) -> MadeTable:
    fields = (NestedField(n + 1, "nv"[n], kind, required=False) for n, kind in enumerate(kinds))
    return MadeTable(folder, Schema(*fields), MergeRules(("n",)))


@pytest.mark.parametrize(
    "kind", [VariantType(), StructType(*(NestedField(n, name, BinaryType(), required=True) for n, name in PART_IDS))]
)
def test_required_parts_are_copied_and_are_null_in_rows_of_files_without_them(
    tmp_path: Path, kind: IcebergType
) -> None:
    older, table = table_of(tmp_path / "older", LongType()), table_of(tmp_path, LongType(), kind)
    older.land([{"n": 1}])
    rows = [{"n": 2, "v": PARTS}, {"n": 3, "v": None}]
    table.land(rows)
    (made,) = rewrite_files(table.target, [file.path for file in (*older.files, *table.files)])
    assert pq.read_table(made.path).to_pylist() == [{"n": 1, "v": None}, *rows]
    assert made.records == 3


def test_a_shredded_variant_is_refused_because_a_copy_would_lose_its_typed_values(tmp_path: Path) -> None:
    table = table_of(tmp_path, LongType(), VariantType())
    table.land([{"n": 1, "v": PARTS}])
    (file,) = table.files
    parts = [pa.field("metadata", pa.binary()), pa.field("value", pa.binary()), pa.field("typed_value", pa.int64())]
    ids = [{"PARQUET:field_id": field_id} for field_id in "12"]
    fields = [pa.field("n", pa.int64(), metadata=ids[0]), pa.field("v", pa.struct(parts), metadata=ids[1])]
    pq.write_table(pa.Table.from_pylist([{"n": 1, "v": {**PARTS, "typed_value": 5}}], pa.schema(fields)), file.path)
    with pytest.raises(SchemaIncompatible, match=r"\.parquet: the variant v is shredded.*shred-variants to false"):
        rewrite_files(table.target, [file.path])
    assert TableFileReader(load_file_io({}), {}).read_rows(file.path, table.schema.select("n")).to_pylist() == [
        {"n": 1}
    ]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_change_writes_its_own_variant_and_other_rows_keep_their_bytes(tmp_path: Path, how: RowRemoval) -> None:
    schema = table_of(tmp_path, LongType(), VariantType()).schema
    table = MadeTable(tmp_path, schema, MergeRules(("n",), row_removal=how))
    odd = {"metadata": b"\x01\x02\x00\x01\x02ba", "value": b"\x00"}  # null, with keys that frazil would not write
    eight = {**PARTS, "value": b"\x0c\x08"}
    table.land([{"n": n, "v": v} for n, v in enumerate([PARTS, odd, None, odd, PARTS])])
    left_out = {"n": 3, OMITTED_COLUMNS: [schema.find_field("v").field_id]}
    changes = [{"n": 0, "v": eight}, {"n": 1, "v": odd}, {"n": 2, "v": PARTS}, left_out, {"n": 4}, {"n": 5, "v": odd}]
    done = table.merge(table.stage(changes))
    assert (done.updated, done.unchanged, done.inserted) == (3, 2, 1)
    found = {row["n"]: row["v"] for row in table.rows()}
    assert found == {0: eight, 1: odd, 2: PARTS, 3: odd, 4: None, 5: odd}


def test_a_struct_with_the_fields_of_a_variant_is_copied_from_a_file_without_field_ids(tmp_path: Path) -> None:
    parts = StructType(*(NestedField(n, name, BinaryType(), required=False) for n, name in PART_IDS))
    table = table_of(tmp_path, LongType(), parts)
    rows = [{"n": 2, "v": PARTS}, {"n": 3, "v": None}]
    table.land(rows)
    (file,) = table.files
    pq.write_table(pa.Table.from_pylist(rows), file.path)
    mapping = {"schema.name-mapping.default": create_mapping_from_schema(table.schema).model_dump_json()}
    found = TableFileReader(load_file_io({}), mapping).read_rows(file.path, table.schema)
    assert found.to_pylist() == rows


def test_the_paths_in_a_delete_file_may_take_more_memory_than_an_array_of_texts(tmp_path: Path) -> None:
    """See apache/iceberg-python#1733: 14 million deleted rows with paths of 150 characters need that much."""
    table = table_of(tmp_path, LongType())
    file, count = made(MIB, name="s3://bucket/" + "x" * 200_000), 11_000
    written = write_deletes(load_file_io({}), file, np.arange(count), target=table.target)
    found = TableFileReader(load_file_io({}), {}).deletes(written.path)
    assert [(path, positions.tolist()) for path, positions in found.items()] == [(file.path, [*range(count)])]
