"""A merge keeps values that no change touches, whatever their type."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import SchemaIncompatible
from frazil.ingest.table_writer import TableWriter
from frazil.merge.changes import are_values_equal
from frazil.merge.contract import MergeRules
from tests.unit.merge.made_table import MadeTable

STRUCT = StructType(NestedField(20, "a", IntegerType(), required=False))
OTHER = StructType(NestedField(21, "a", IntegerType(), required=False))
INNER = StructType(NestedField(22, "a", IntegerType(), required=False))
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "list", ListType(10, STRUCT, element_required=False), required=False),
    NestedField(3, "map", MapType(11, StringType(), 12, OTHER, value_required=False), required=False),
    NestedField(
        4,
        "deep",
        ListType(13, ListType(14, INNER, element_required=False), element_required=False),
        required=False,
    ),
)
ROWS = [
    {"id": 1, "list": None, "map": None, "deep": None},
    {"id": 2, "list": [], "map": [], "deep": []},
    {"id": 3, "list": [None, {"a": None}, {"a": 1}], "map": [("k", None), ("l", {"a": 1})], "deep": [None, [], [None]]},
    {"id": 4, "list": None, "map": [("k", {"a": None})], "deep": [[{"a": 4}], None]},
]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_null_list_or_map_of_structs_stays_null(tmp_path, how):
    table = MadeTable(tmp_path, SCHEMA, MergeRules(("id",), row_removal=how))

    table.merge(table.stage(ROWS))
    table.merge(table.stage([{"id": 4, "deep": []}]))

    assert sorted(table.rows(), key=lambda row: row["id"]) == [
        *ROWS[:3],
        {**dict.fromkeys(ROWS[0]), "id": 4, "deep": []},
    ]


PARTS = {
    "text": (StringType(), "eu"),
    "number": (IntegerType(), -7),
    "day": (DateType(), date(3332, 12, 14)),
    "moment": (TimestamptzType(), datetime(3332, 12, 14, 11, 33, 10, 965000, tzinfo=UTC)),
    "price": (DecimalType(9, 2), Decimal("-5.00")),
    "code": (UUIDType(), UUID(int=7)),
    "flag": (BooleanType(), False),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_column_that_only_the_partition_has_keeps_its_value(tmp_path, how, name):
    """See apache/iceberg-python#1401: other programs import files of Hive."""
    kind, value = PARTS[name]
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "part", kind, required=True),
        NestedField(3, "note", StringType(), required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    table = MadeTable(tmp_path, schema, MergeRules(("id",), row_removal=how), spec)
    table.land([{"id": number, "part": value.bytes if name == "code" else value, "note": "old"} for number in range(9)])
    (file,) = table.files
    pq.write_table(pq.read_table(file.path, columns=["id", "note"]), file.path)
    table.files = [dataclasses.replace(file, constants=((2, file.partition[0]),))]
    part = table.stage([{"id": 0, "part": value.bytes if name == "code" else value, "note": "new"}])

    table.merge(part)

    found = sorted(table.rows(), key=lambda row: row["id"])
    assert [row["note"] for row in found] == ["new", *["old"] * 8]
    assert {row["part"] for row in found[: 1 if how == "merge-on-read" else 9]} == {value}


def test_a_file_without_a_required_column_fails_the_merge_with_its_name(tmp_path):
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "note", StringType(), required=True)]
    table = MadeTable(tmp_path, Schema(*fields), MergeRules(("id",), row_removal="copy-on-write"))
    table.land([{"id": 0, "note": "old"}])
    (file,) = table.files
    pq.write_table(pq.read_table(file.path, columns=["id"]), file.path)
    with pytest.raises(SchemaIncompatible, match=rf"{file.path} does not have the column note"):
        table.merge(table.stage([{"id": 0, "note": "new"}]))


@pytest.mark.parametrize("required", [True, False])
def test_rows_of_files_without_a_column_keep_the_columns_first_default(tmp_path, required):
    """See apache/iceberg#15932: the default of existing rows and that of new ones are two values."""
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "note", StringType(), required=False)]
    older = MadeTable(tmp_path / "older", Schema(*fields), MergeRules(("id",)))
    older.land([{"id": number, "note": "old"} for number in range(3)])
    tier = NestedField(3, "tier", IntegerType(), required=required, initial_default=5, write_default=7)
    table = MadeTable(
        tmp_path, Schema(*fields, tier), MergeRules(("id",), row_removal="copy-on-write"), files=older.files
    )

    table.merge(table.stage([{"id": 0, "note": "new", "tier": 7}]))

    found = sorted((row["id"], row["note"], row["tier"]) for row in table.rows())
    assert found == [(0, "new", 7), (1, "old", 5), (2, "old", 5)]


def test_times_of_imported_files_survive_a_merge(tmp_path):
    """See apache/iceberg-rust#2299: in nanoseconds, Parquet's old type of a time wraps around in the year 2262."""
    moments = [datetime(year, 12, 14, 11, 33, 10, 965000, tzinfo=UTC) for year in (1, 1970, 2026, 3332, 9999)]
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestamptzType(), required=False),
        NestedField(3, "note", StringType(), required=False),
    )
    table = MadeTable(tmp_path, schema, MergeRules(("id",), row_removal="copy-on-write"))
    table.land([{"id": number, "at": at, "note": "old"} for number, at in enumerate(moments)])
    (file,) = table.files
    pq.write_table(pq.read_table(file.path), file.path, use_deprecated_int96_timestamps=True, store_schema=False)

    table.merge(table.stage([{"id": 0, "at": moments[0], "note": "new"}]))

    assert [row["at"] for row in sorted(table.rows(), key=lambda row: row["id"])] == moments


def test_nanosecond_times_of_imported_files_survive_a_merge(tmp_path):
    at = datetime(2026, 12, 14, 11, 33, 10, 965000, tzinfo=UTC)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestamptzType(), required=False),
    )
    table = MadeTable(tmp_path, schema, MergeRules(("id",), row_removal="copy-on-write"))
    table.land([{"id": 0, "at": at}, {"id": 1, "at": at}])
    (file,) = table.files
    rows = pq.read_table(file.path)
    finer = rows.schema.field("at").with_type(pa.timestamp("ns", "UTC"))
    pq.write_table(rows.cast(rows.schema.set(1, finer)), file.path)
    assert pq.read_schema(file.path).field("at").type == finer.type

    table.merge(table.stage([{"id": 0, "at": None}]))

    assert [row["at"] for row in sorted(table.rows(), key=lambda row: row["id"])] == [None, at]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("key", [("id",), ("at", "id")])
@pytest.mark.parametrize(
    ("kind", "number"),
    [(DateType(), 2**30), (TimestampType(), 9_223_372_036_825_200_000), (TimestamptzType(), -(2**62))],
    ids=str,
)
def test_times_of_another_program_outside_the_years_1_to_9999_survive_a_merge(tmp_path, kind, number, key, how):
    """9223372036825200000 is what Debezium sends for PostgreSQL's `infinity`, and what other sinks store."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", kind, required=True),
        NestedField(3, "note", StringType(), required=False),
    )
    table = MadeTable(tmp_path, schema, MergeRules(key, row_removal=how))
    at = date(2026, 1, 1) if kind == DateType() else datetime(2026, 1, 1, tzinfo=UTC)
    at = at.replace(tzinfo=None) if kind == TimestampType() else at
    table.land([{"id": number, "at": at, "note": "old"} for number in range(2)])
    (file,) = table.files
    rows = pq.read_table(file.path)
    times = rows.schema.field("at")
    far = pa.array([number], pa.int32() if kind == DateType() else pa.int64()).cast(times.type)
    pq.write_table(rows.set_column(1, times, pa.chunked_array([rows["at"].chunk(0)[:1], far])), file.path)

    counts = table.merge(table.stage([{"id": 0, "at": at, "note": "new"}]))

    assert (counts.updated, counts.inserted) == (1, 0)
    kept = [pq.read_table(file.path, filters=[("id", "=", 1)]) for file in table.files]
    assert pa.concat_tables(kept)["at"].combine_chunks() == far


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (UUIDType(), [UUID(int=1).bytes, UUID(int=2**127).bytes]),
        (DoubleType(), [1.5, math.nan]),
        (BooleanType(), [True, False]),
        (TimeType(), [time(1), time(2)]),
        (BinaryType(), [b"a", b""]),
        (FixedType(2), [b"aa", b"bb"]),
        (DecimalType(9, 2), [Decimal("-1.00"), Decimal("2.00")]),
        (TimestamptzType(), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)]),
    ],
    ids=str,
)
def test_keys_of_a_type_without_comparable_statistics_are_found(tmp_path, kind, keys):
    schema = Schema(NestedField(1, "key", kind, required=True), NestedField(2, "note", StringType(), required=False))
    table = MadeTable(tmp_path, schema, MergeRules(("key",)))
    table.land([{"key": key, "note": "old"} for key in keys])
    counts = table.merge(table.stage([{"key": keys[1], "note": "new"}]))
    assert (counts.updated, counts.inserted) == (1, 0)
    assert sorted(row["note"] for row in table.rows()) == ["new", "old"]


def test_a_change_of_the_sign_of_zero_is_a_change(tmp_path):
    parts = ListType(3, DoubleType(), element_required=False)
    schema = Schema(
        NestedField(1, "key", LongType(), required=True),
        NestedField(2, "number", DoubleType(), required=False),
        NestedField(4, "parts", parts, required=False),
    )
    made = MadeTable(tmp_path, schema, MergeRules(("key",)))
    rows = {1: (0.0, [1.0]), 2: (1.0, [0.0]), 3: (math.nan, [math.nan, None])}
    made.merge(made.stage([{"key": key, "number": number, "parts": of} for key, (number, of) in rows.items()]))
    changed = {1: (-0.0, [1.0]), 2: (1.0, [-0.0]), 3: (-math.nan, [math.nan, None])}
    staged = made.stage([{"key": key, "number": number, "parts": of} for key, (number, of) in changed.items()])
    counts = made.merge(staged)
    assert (counts.updated, counts.unchanged) == (2, 1)
    found = {row["key"]: (row["number"], row["parts"]) for row in made.rows()}
    assert (str(found[1]), str(found[2])) == ("(-0.0, [1.0])", "(1.0, [-0.0])")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([{"a": 1, "b": 2}], [{"a": 1, "b": 2}], True),
        ([{"a": 1, "b": 2}], [{"a": 1, "b": 3}], False),
        ([{"a": None, "b": 2}], [None], False),
        ([None], [{"a": None, "b": 2}], False),
        ([[1], []], [[1], []], True),
        ([[1], []], [[1], None], False),
    ],
)
def test_values_within_lists_are_compared_one_by_one(one, other, same):
    kind = pa.infer_type([[*one, *other]])
    assert are_values_equal(pa.array([one], kind), pa.array([other], kind)).tolist() == [same]


def test_a_null_struct_equals_a_null_struct_but_not_a_struct_of_nulls():
    kind = pa.struct([("a", pa.int32())])
    one, other = pa.array([None, None, {"a": None}], kind), pa.array([{"a": None}, None, {"a": None}], kind)
    assert are_values_equal(one, other).tolist() == [False, True, True]


def test_a_task_that_fails_leaves_no_file(tmp_path, monkeypatch):
    table = MadeTable(tmp_path, SCHEMA, MergeRules(("id",)))
    table.merge(table.stage(ROWS))
    staged, finish = table.stage([{"id": 4, "deep": []}]), TableWriter.finish
    before = {*tmp_path.rglob("*.parquet")}

    def fails(writer):
        finish(writer)
        raise OSError("the disk is full")

    monkeypatch.setattr(TableWriter, "finish", fails)
    with pytest.raises(OSError, match="full"):
        table.merge(staged)
    assert {*tmp_path.rglob("*.parquet")} == before
