"""Rows to files: unchanged when read from a real table, found by filters, few, bounded, with documented names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions as ex
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

import frazil.pyiceberg_fixes  # noqa: F401
from frazil.errors import SpecError
from frazil.ingest import table_writer
from frazil.ingest.contract import StagedFile
from frazil.ingest.partitioning import PartitionRows, split_by_partition
from frazil.ingest.table_writer import TableWriter
from frazil.spec.property_rules import COMPRESSION_LEVELS

Commit = Callable[[Table, Sequence[StagedFile]], Table]
MakeTable = Callable[..., Table]
MakeWriter = Callable[..., TableWriter]


def clock(wall: str) -> datetime:
    return datetime.fromisoformat(wall)


def moment(day: int, hour: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, tzinfo=UTC)


# Per type three values in ascending order, of which the highest is alone in its partition under most transforms.
VALUES: dict[str, tuple[t.IcebergType, list[Any]]] = {
    "boolean": (t.BooleanType(), [False, True, True]),
    "int": (t.IntegerType(), [-(2**31) + 2, 5, 2**31 - 1]),
    "long": (t.LongType(), [-(2**63) + 2, 5, 2**63 - 1]),
    "float": (t.FloatType(), [-1.5, 0.25, 3.5]),
    "double": (t.DoubleType(), [-1.5, 0.1, 1e300]),
    "small_decimal": (t.DecimalType(9, 2), [Decimal("-9999999.99"), Decimal("0.10"), Decimal("9999999.99")]),
    "mid_decimal": (t.DecimalType(18, 2), [Decimal("-1.10"), Decimal("0.10"), Decimal("9999999999999999.99")]),
    "big_decimal": (t.DecimalType(38, 2), [Decimal("-1.10"), Decimal("0.10"), Decimal("9" * 36 + ".99")]),
    "date": (t.DateType(), [date(1969, 12, 31), date(2026, 1, 2), date(2027, 1, 2)]),
    "time": (t.TimeType(), [time(0), time(12, 0, 0, 1), time(23, 59, 59, 999999)]),
    "timestamp": (t.TimestampType(), [clock("1969-12-31T23:00"), clock("2026-01-02"), clock("2027-01-02T03:04:05.6")]),
    "timestamptz": (t.TimestamptzType(), [datetime(1969, 12, 31, 23, tzinfo=UTC), moment(1), moment(2, 3)]),
    "string": (t.StringType(), ["", "a" * 40, "ü" * 40]),
    "uuid": (t.UUIDType(), [UUID(int=1), UUID(int=2**64), UUID(int=2**127 + 5)]),
    "fixed": (t.FixedType(3), [b"\x00\x00\x00", b"abc", b"\xff\xff\xff"]),
    "binary": (t.BinaryType(), [b"", b"abc", b"\xff" * 40]),
}  # fmt: skip
TRANSFORMS: list[tr.Transform[Any, Any]] = [
    tr.IdentityTransform(),
    tr.BucketTransform(7),
    tr.TruncateTransform(3),
    tr.YearTransform(),
    tr.MonthTransform(),
    tr.DayTransform(),
    tr.HourTransform(),
    tr.VoidTransform(),
]
# Faults of PyIceberg 0.12: a test that passes here one day says that they are fixed.
PYICEBERG_FAULTS = {
    ("uuid", "identity"): "the scan compares a UUID partition value with bytes",
}


def marks(name: str, transform: tr.Transform[Any, Any]) -> list[pytest.MarkDecorator]:
    fault = PYICEBERG_FAULTS.get((name, str(transform)))
    return [pytest.mark.xfail(reason=fault, strict=True)] if fault else []


CASES = [
    pytest.param(name, transform, id=f"{transform}-{name}", marks=marks(name, transform))
    for name, (kind, _) in VALUES.items()
    for transform in TRANSFORMS
    if transform.can_transform(kind)
]


def rows_of(schema: Schema, columns: dict[str, list[Any]]) -> pa.Table:
    arrow = schema_to_pyarrow(schema, include_field_ids=True)
    arrays = [
        pa.array([v.bytes if isinstance(v, UUID) else v for v in columns[f.name]], f.type.storage_type).cast(f.type)
        if isinstance(f.type, pa.ExtensionType)
        else pa.array(columns[f.name], f.type)
        for f in arrow
    ]
    return pa.Table.from_arrays(arrays, schema=arrow)


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("name", "transform"), CASES)
def test_staged_files_read_back_equal_and_filters_find_them(
    name: str, transform: tr.Transform[Any, Any], make_table: MakeTable, make_writer: MakeWriter, commit: Commit
) -> None:
    kind, values = VALUES[name]
    schema = Schema(t.NestedField(1, "row", t.LongType(), required=True), t.NestedField(2, name, kind))
    table = make_table(schema, PartitionSpec(PartitionField(2, 1000, transform, "p")))
    column = [*values, None]
    writer = make_writer(table)
    writer.add(rows_of(table.schema(), {"row": list(range(4)), name: column}))
    files = writer.finish()
    commit(table, files)

    read = table.scan().to_arrow().sort_by("row")[name].to_pylist()
    assert read == column
    for row, value in enumerate(values):
        found = table.scan(row_filter=ex.EqualTo(name, value)).to_arrow()["row"].to_pylist()
        assert sorted(found) == [i for i, v in enumerate(values) if v == value], f"row {row}"
        at_least = table.scan(row_filter=ex.GreaterThanOrEqual(name, value)).to_arrow()["row"].to_pylist()
        assert sorted(at_least) == [i for i, v in enumerate(values) if v >= value]
    assert table.scan(row_filter=ex.IsNull(name)).to_arrow()["row"].to_pylist() == [3]
    assert sum(f.null_value_counts[2] for f in files) == 1
    assert sum(f.value_counts[2] for f in files) == sum(f.records for f in files) == 4


def test_filters_prune_by_bounds_and_by_partition(
    make_table: MakeTable, make_writer: MakeWriter, commit: Commit
) -> None:
    schema = Schema(t.NestedField(1, "n", t.LongType()), t.NestedField(2, "at", t.TimestamptzType()))
    table = make_table(schema, PartitionSpec(PartitionField(2, 1000, tr.DayTransform(), "d")))
    for base in (0, 100):
        writer = make_writer(table)
        ns = list(range(base, base + 10))
        writer.add(rows_of(schema, {"n": ns, "at": [moment(1 + n % 2) for n in ns]}))
        commit(table, writer.finish())

    def planned(row_filter: ex.BooleanExpression) -> int:
        return len(list(table.scan(row_filter=row_filter).plan_files()))

    assert planned(ex.AlwaysTrue()) == 4
    assert planned(ex.GreaterThanOrEqual("n", 100)) == 2
    assert planned(ex.LessThan("n", 0)) == 0
    assert planned(ex.GreaterThanOrEqual("at", moment(2).isoformat())) == 2
    assert planned(ex.And(ex.EqualTo("n", 3), ex.EqualTo("at", moment(1).isoformat()))) == 1
    assert planned(ex.EqualTo("n", 3)) == 2
    assert planned(ex.EqualTo("n", 9)) == 1


def test_nested_columns_and_missing_values_read_back_equal(
    make_table: MakeTable, make_writer: MakeWriter, commit: Commit
) -> None:
    schema = Schema(
        t.NestedField(
            1, "s", t.StructType(t.NestedField(2, "at", t.TimestamptzType()), t.NestedField(3, "i", t.IntegerType()))
        ),
        t.NestedField(4, "l", t.ListType(5, t.StringType(), element_required=False)),
        t.NestedField(6, "m", t.MapType(7, t.StringType(), 8, t.DecimalType(9, 2), value_required=False)),
        t.NestedField(9, "nothing", t.StringType()),
        t.NestedField(10, "f", t.DoubleType()),
    )  # fmt: skip
    table = make_table(schema, PartitionSpec(PartitionField(2, 1000, tr.DayTransform(), "d")))
    rows: list[dict[str, Any]] = [
        {"s": {"at": moment(1), "i": None}, "l": ["a", None], "m": [("k", Decimal("1.10"))], "f": math.nan},
        {"s": {"at": None, "i": None}, "l": [], "m": [], "f": 1.0},
        {"s": None, "l": None, "m": None, "f": None},
    ]
    writer = make_writer(table)
    columns = {name: [row.get(name) for row in rows] for name in ("s", "l", "m", "nothing", "f")}
    writer.add(rows_of(table.schema(), columns))
    files = writer.finish()
    assert len(files) == 2
    commit(table, files)
    read = table.scan().to_arrow()
    assert sorted(map(repr, read["l"].to_pylist())) == sorted(map(repr, columns["l"]))
    assert sorted(map(repr, read["m"].to_pylist())) == sorted(map(repr, columns["m"]))
    assert sorted(map(repr, read["f"].to_pylist())) == sorted(map(repr, columns["f"]))
    assert read["nothing"].null_count == 3
    assert table.scan(row_filter=ex.EqualTo("f", 1.0)).to_arrow()["l"].to_pylist() == [[]]


LONGS = Schema(t.NestedField(1, "n", t.LongType()), t.NestedField(2, "k", t.StringType()))


def longs(ns: Sequence[int | None], keys: Sequence[str] | None = None) -> pa.Table:
    return rows_of(LONGS, {"n": list(ns), "k": list(keys or ["a"] * len(ns))})


def test_files_are_named_by_task_and_attempt_in_the_batchs_folder(
    make_table: MakeTable, make_writer: MakeWriter
) -> None:
    table = make_table(LONGS)
    writer = make_writer(table)
    writer.add(longs([1]))
    (staged,) = writer.finish()
    assert re.fullmatch(
        re.escape(f"{table.location()}/data/stream/1/2/") + r"00003-0-[0-9a-f-]{36}\.parquet", staged.path
    )
    assert staged.bytes == Path(staged.path.removeprefix("file://")).stat().st_size
    assert staged.target == "main"


def test_a_second_file_of_a_partition_begins_only_when_the_first_is_full(
    make_table: MakeTable, make_writer: MakeWriter
) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(2, 1000, tr.IdentityTransform(), "k")))
    target = 200_000
    writer = make_writer(table, target_file_bytes=target)
    for start in range(0, 200_000, 10_000):
        ns = [n * 7919 % 1_000_003 for n in range(start, start + 10_000)]
        writer.add(longs(ns, ["small" if n % 100 == 0 else "large" for n in ns]))
    files = writer.finish()
    sizes: dict[Any, list[int]] = {}
    for staged in files:
        sizes.setdefault(staged.partition, []).append(staged.bytes)
    assert sorted(len(s) > 1 for s in sizes.values()) == [False, True]
    assert all(size >= target for s in sizes.values() for size in s[:-1])
    assert max(max(s) for s in sizes.values()) < 2 * target
    assert sum(f.records for f in files) == 200_000


def test_memory_is_bounded_and_still_makes_one_file_a_partition(
    make_table: MakeTable, make_writer: MakeWriter, commit: Commit
) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(1, 1000, tr.BucketTransform(4), "b")))
    writer = make_writer(table, buffer_bytes=50_000)
    for start in range(0, 20_000, 1_000):
        writer.add(longs(range(start, start + 1_000)))
        assert writer.held <= 50_000
    files = writer.finish()
    assert len(files) == 4
    commit(table, files)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == list(range(20_000))


PARTITIONS_OF: dict[str, Callable[[int, int], int]] = {
    "one": lambda _chunk, _row: 0,
    "a-few-rare": lambda _chunk, row: row + 1 if row < 3 else 0,
    "many-at-once": lambda _chunk, row: row % 50,
    "one-after-another": lambda chunk, _row: chunk // 4,
}


@pytest.mark.parametrize("partition_of", PARTITIONS_OF.values(), ids=PARTITIONS_OF)
def test_buffered_memory_is_counted_at_its_real_size(
    partition_of: Callable[[int, int], int], make_table: MakeTable, make_writer: MakeWriter
) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(1, 1000, tr.IdentityTransform(), "n")))
    bound = 2 * 2**20
    writer = make_writer(table, buffer_bytes=bound, open_bytes=bound)
    before = pa.total_allocated_bytes()
    for chunk in range(60):
        ns = [partition_of(chunk, row) for row in range(5_000)]
        writer.add(longs(ns, [f"{chunk:04d}{row:060d}" for row in range(5_000)]))
        held = pa.total_allocated_bytes() - before
        assert held <= 4 * bound
        assert held <= 1.1 * writer.held or writer._open
    assert sum(f.records for f in writer.finish()) == 300_000


def test_tables_of_many_partition_values_are_split_together(
    make_table: MakeTable, make_writer: MakeWriter, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(1, 1000, tr.IdentityTransform(), "n")))
    writer = make_writer(table)
    split_rows: list[int] = []

    def watched(rows: pa.Table, *arguments: Any) -> Iterator[PartitionRows]:
        split_rows.append(rows.num_rows)
        return split_by_partition(rows, *arguments)

    monkeypatch.setattr(table_writer, "split_by_partition", watched)
    for _ in range(20):
        writer.add(longs([n % 50 for n in range(1000)]))
    assert split_rows == [1000]
    files = writer.finish()
    assert split_rows == [1000, 19_000]
    assert len(files) == 50
    commit(table, files)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == sorted(list(range(50)) * 400)


def test_encodings_follow_the_first_file_that_has_enough_rows(make_table: MakeTable, make_writer: MakeWriter) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, tr.IdentityTransform(), "k"))
    writer = make_writer(make_table(LONGS, spec, properties={"write.parquet.format-version": "v2"}))
    writer.add(longs([7] * 3, ["a"] * 3))
    writer.add(longs(range(10_000), ["b"] * 10_000))
    writer.add(longs([7] * 3, ["c"] * 3))
    used = [
        "DELTA_BINARY_PACKED" in pq.read_metadata(file.path.removeprefix("file://")).row_group(0).column(0).encodings
        for file in writer.finish()
    ]
    assert used == [False, True, True]


def test_many_buffered_small_tables_are_combined_into_few(make_table: MakeTable, make_writer: MakeWriter) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(1, 1000, tr.IdentityTransform(), "n")))
    writer = make_writer(table)
    for chunk in range(200):
        writer.add(longs(range(10), [str(chunk)] * 10))
    assert max(len(g.rows) for g in writer._gathered.values()) <= 24
    files = writer.finish()
    assert [f.records for f in files] == [200] * 10
    assert pq.read_table(files[0].path)["k"].to_pylist() == [str(chunk) for chunk in range(200)]


SORTED = SortOrder(SortField(1, tr.IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST), order_id=1)


def test_a_file_of_one_sorted_run_is_marked_as_sorted(make_table: MakeTable, make_writer: MakeWriter) -> None:
    table = make_table(LONGS, order=SORTED)
    writer = make_writer(table)
    writer.add(longs([1, None, 3]))
    writer.add(longs([2, 5]))
    (staged,) = writer.finish()
    assert staged.sort_order_id == table.sort_order().order_id == 1
    assert pq.read_table(staged.path.removeprefix("file://"))["n"].to_pylist() == [5, 3, 2, 1, None]


def test_a_file_of_several_sorted_runs_is_not_marked_as_sorted(make_table: MakeTable, make_writer: MakeWriter) -> None:
    writer = make_writer(make_table(LONGS, order=SORTED), buffer_bytes=1)
    writer.add(longs([1, 3]))
    writer.add(longs([2, 5]))
    (staged,) = writer.finish()
    assert staged.sort_order_id is None
    assert pq.read_table(staged.path.removeprefix("file://"))["n"].to_pylist() == [3, 1, 5, 2]


def test_an_unsorted_tables_files_have_no_sort_order(make_table: MakeTable, make_writer: MakeWriter) -> None:
    writer = make_writer(make_table(LONGS))
    writer.add(longs([1]))
    assert [f.sort_order_id for f in writer.finish()] == [None]


def test_an_aborted_writer_leaves_no_file(make_table: MakeTable, make_writer: MakeWriter) -> None:
    table = make_table(LONGS, PartitionSpec(PartitionField(2, 1000, tr.IdentityTransform(), "k")))
    writer = make_writer(table, buffer_bytes=1, target_file_bytes=1)
    writer.add(longs([1, 2], ["a", "b"]))
    half_open = make_writer(table, buffer_bytes=1)
    half_open.add(longs([1, 2], ["a", "b"]))
    data = Path(table.location().removeprefix("file://")) / "data"
    assert len(list(data.rglob("*.parquet"))) == 4
    writer.abort()
    half_open.abort()
    assert list(data.rglob("*.parquet")) == []


def test_a_task_without_rows_makes_no_file(make_table: MakeTable, make_writer: MakeWriter) -> None:
    writer = make_writer(make_table(LONGS))
    writer.add(longs([]))
    assert writer.finish() == []


def test_table_properties_shape_the_files(make_table: MakeTable, make_writer: MakeWriter) -> None:
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.compression-level": "9",
        "write.parquet.row-group-limit": "600",
        "write.metadata.metrics.default": "none",
        "write.metadata.metrics.column.k": "truncate(2)",
    }
    writer = make_writer(make_table(LONGS, properties=properties))
    writer.add(longs(range(1000), ["abcdef"] * 1000))
    (staged,) = writer.finish()
    metadata = pq.read_metadata(staged.path.removeprefix("file://"))
    assert metadata.row_group(0).column(0).compression == "GZIP"
    assert metadata.num_row_groups == 2
    assert len(staged.split_offsets) == 2
    assert list(staged.lower_bounds) == [2]
    assert len(staged.upper_bounds[2]) == 4  # two bytes in base64: "ac" is above every "ab…"


def test_files_carry_field_ids_and_no_arrow_schema(make_table: MakeTable, make_writer: MakeWriter) -> None:
    writer = make_writer(make_table(LONGS))
    writer.add(longs([1]))
    (staged,) = writer.finish()
    file = pq.ParquetFile(staged.path.removeprefix("file://"))
    assert [f.metadata[b"PARQUET:field_id"] for f in file.schema_arrow] == [b"1", b"2"]
    assert b"ARROW:schema" not in (file.metadata.metadata or {})


@pytest.mark.parametrize("codec", ["none", "snappy", "lz4"])
def test_the_level_of_a_codec_without_levels_is_ignored(
    codec: str, make_table: MakeTable, make_writer: MakeWriter
) -> None:
    properties = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": "99"}
    writer = make_writer(make_table(LONGS, properties=properties))
    writer.add(longs([1]))
    assert len(writer.finish()) == 1


@pytest.mark.parametrize(
    ("codec", "level"), [(codec, level) for codec, levels in COMPRESSION_LEVELS.items() for level in levels or ()]
)
def test_each_codec_writes_with_its_first_and_last_level(
    codec: str, level: int, make_table: MakeTable, make_writer: MakeWriter
) -> None:
    properties = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": str(level)}
    writer = make_writer(make_table(LONGS, properties=properties))
    writer.add(longs(range(1000), ["abcdef"] * 1000))
    (staged,) = writer.finish()
    assert pq.read_table(staged.path.removeprefix("file://")).num_rows == 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.parquet.page-size-bytes", "1MB"),
        ("write.parquet.compression-codec", "zip"),
        ("write.parquet.compression-level", "high"),
        ("write.parquet.compression-level", "23"),
        ("write.parquet.row-group-limit", str(2**63)),
        ("write.parquet.format-version", "2"),
        ("write.metadata.metrics.default", "bounds"),
        ("write.metadata.metrics.default", ""),
        ("write.metadata.metrics.column.n", "truncate(0)"),
    ],
)
def test_a_property_that_cannot_be_used_is_refused(
    name: str, value: str, make_table: MakeTable, make_writer: MakeWriter
) -> None:
    with pytest.raises(SpecError, match=name):
        make_writer(make_table(LONGS, properties={name: value}))
