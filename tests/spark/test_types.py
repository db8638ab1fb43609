"""Spark (before and after compaction), PyIceberg and DuckDB read staged values of every type."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

import frazil.pyiceberg_fixes.data_files  # noqa: F401
from frazil.commit.staging_targets import target_table
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.partitioning import apply_transform
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.spec import types
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table

pytestmark = pytest.mark.usefixtures("shared_home")

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - a wall clock
TYPES: dict[str, tuple[Any, Any]] = {
    # a type, its value in JSON, and that value in Python
    "boolean": (True, True),
    "int": (-(2**31), -(2**31)),
    "long": (2**63 - 1, 2**63 - 1),
    "float": (1.5, 1.5),
    "double": (-1e300, -1e300),
    "decimal(38, 2)": ("9" * 36 + ".99", Decimal("9" * 36 + ".99")),
    "date": ("9999-12-31", date(9999, 12, 31)),
    "timestamp": (LAST.isoformat(), LAST),
    "timestamptz": ("2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "string": ("\U0010ffff" * 20, "\U0010ffff" * 20),
    "uuid": (str(UUID(int=1)), UUID(int=1)),
    "binary": ("/wA=", b"\xff\x00"),
    "fixed[2]": ("/wA=", b"\xff\x00"),
    "list<int>": ([1, None], [1, None]),
    "list<struct<a: long not null>>": ([{"a": 1}, None], [{"a": 1}, None]),
    "map<string, int>": ({"k": 1}, {"k": 1}),
    "map<string, struct<a: long not null>>": ({"k": {"a": 1}}, {"k": {"a": 1}}),
    "struct<a: long not null, s: struct<b: string not null>>": ({"a": 1}, {"a": 1, "s": None}),
}


def declared(name: str, schema: dict[str, str]) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": name,
            "source": {"bootstrap-servers": "127.0.0.1:9092", "topics": name},
            "table": f"demo.{name}",
            "schema": {"ts": "timestamptz not null", **schema},
            "event-time": "ts",
            "coordinates": False,
        }
    )


def staged(table: Table, records: list[dict[str, Any]]) -> str:
    """Stage one file of these records, in no table yet."""
    decoded = create_decoder("json", table.schema(), {})(
        RecordChunk.of_values([json.dumps(record).encode() for record in records])
    )
    assert decoded.rejections == []
    writer = TableWriter(
        target_table(table, folder=f"{table.location()}/data/here"), "main", io=table.io, file_name=file_namer(0, 0)
    )
    writer.add(decoded.rows)
    (file,) = writer.finish()
    return file.path


def test_every_type_but_time_is_read_by_every_engine(spark: Any) -> None:
    names = {f"c{i}": kind for i, kind in enumerate(TYPES)}
    table = ensure_table(load_catalog(None), declared("every_type", names))
    record = {"ts": "2024-01-01T00:00:00Z", **{name: TYPES[kind][0] for name, kind in names.items()}}
    path = staged(table, [record, {"ts": "2024-01-01T00:00:01Z"}])
    table.add_files([path])
    expected = [TYPES[kind][1] for kind in names.values()]
    nothing = [None] * len(names)

    def by_spark() -> list[list[Any]]:
        # Python's rows have local times and no UUIDs: these come as text.
        columns = [
            f"cast({name} as string)" if kind in {"timestamp", "timestamptz", "uuid"} else name
            for name, kind in names.items()
        ]
        rows = spark.sql(f"SELECT {', '.join(columns)} FROM default.demo.every_type ORDER BY ts").collect()
        return [list(row) for row in rows]

    texts = [str(v).removesuffix("+00:00") if isinstance(v, datetime | UUID) else v for v in expected]
    assert plain(by_spark()) == [texts, nothing]
    spark.sql(
        "CALL default.system.rewrite_data_files(table => 'demo.every_type', options => map('rewrite-all', 'true'))"
    )
    assert plain(by_spark()) == [texts, nothing]

    read = table.scan().to_arrow().sort_by("ts").select(list(names)).to_pylist(maps_as_pydicts="strict")
    assert [list(row.values()) for row in read] == [expected, nothing]

    columns = [f"epoch_us({name})" if kind == "timestamptz" else name for name, kind in names.items()]
    rows = duckdb.sql(f"SELECT {', '.join(columns)} FROM read_parquet('{path}') ORDER BY ts").fetchall()
    micros = [v.timestamp() * 1_000_000 if isinstance(v, datetime) and v.tzinfo else v for v in expected]
    assert [list(row) for row in rows] == [micros, nothing]


def test_encodings_that_old_readers_do_not_support_are_read_by_every_engine(spark: Any) -> None:
    schema = {"whole": "long", "small": "int", "real": "double", "single": "float", "inside": "struct<a: long>"}
    table = ensure_table(load_catalog(None), declared("many_pages", schema))
    records = [
        {"ts": f"2024-01-01T00:00:{n % 60:02}.{n:06}Z", "whole": n * n, "small": n, "real": n / 7, "single": n / 8}
        | {"inside": {"a": n}}
        for n in range(45_000)  # more than two pages of 20,000
    ]
    records[::7] = [{"ts": record["ts"]} for record in records[::7]]
    path = staged(table, records)
    table.add_files([path])
    group = pq.read_metadata(path.removeprefix("file://")).row_group(0)
    used = {group.column(i).path_in_schema: set(group.column(i).encodings) for i in range(group.num_columns)}
    assert {name for name, encodings in used.items() if "DELTA_BINARY_PACKED" in encodings} == {
        "ts", "whole", "small", "inside.a"
    }  # fmt: skip
    assert {name for name, encodings in used.items() if "BYTE_STREAM_SPLIT" in encodings} == {"real", "single"}

    expected = [[r.get("whole"), r.get("small"), r.get("real"), r.get("single")] for r in records]
    inside = [record.get("inside", {}).get("a") for record in records]
    columns = "whole, small, real, single, inside.a"
    by_spark = spark.sql(f"SELECT {columns} FROM default.demo.many_pages ORDER BY ts").collect()
    by_duckdb = duckdb.sql(f"SELECT {columns} FROM read_parquet('{path}') ORDER BY ts").fetchall()
    in_order = sorted(zip(records, expected, inside, strict=True), key=lambda found: str(found[0]["ts"]))
    wanted = [[*values, a] for _, values, a in in_order]
    assert [list(row) for row in by_spark] == wanted
    assert [list(row) for row in by_duckdb] == wanted


def plain(value: Any) -> Any:
    """Spark's rows and bytes as dicts and bytes."""
    if hasattr(value, "asDict"):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return bytes(value) if isinstance(value, bytearray) else value


def test_spark_still_cannot_read_a_table_with_a_time_column(spark: Any) -> None:
    table = ensure_table(load_catalog(None), declared("with_time", {"x": "string"}))
    with table.update_schema() as update:
        update.add_column("opens", TimeType())
    with pytest.raises(Exception, match="does not support time fields"):
        spark.sql("SELECT x FROM default.demo.with_time").collect()
    assert set(types.UNREADABLE_TYPES) == {"time"}


IN_BUCKETS: list[tuple[IcebergType, str, Any]] = [
    # a type, a value in SQL, and that value in Python
    (IntegerType(), "-2147483648", -(2**31)),
    (LongType(), "-9223372036854775807L", 1 - 2**63),
    (DateType(), "DATE'0001-01-01'", date(1, 1, 1)),
    (DateType(), "DATE'9999-12-31'", date(9999, 12, 31)),
    (TimestampType(), "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
    (TimestamptzType(), "TIMESTAMP'1900-01-01 00:00:00.000001Z'", datetime(1900, 1, 1, 0, 0, 0, 1, UTC)),
    (DecimalType(9, 2), "-5.00BD", Decimal("-5.00")),
    (DecimalType(9, 2), "1.28BD", Decimal("1.28")),
    (DecimalType(38, 10), f"{'9' * 28}.{'9' * 10}BD", Decimal(f"{'9' * 28}.{'9' * 10}")),
    (StringType(), "''", ""),
    (StringType(), "'é😎'", "é😎"),
    (BinaryType(), "X'00FF'", b"\x00\xff"),
]


def test_buckets_are_those_of_iceberg(spark: Any) -> None:
    """Otherwise, engines would not find rows by the column: their filters skip all other buckets."""
    row = spark.sql(f"SELECT {', '.join(f'default.system.bucket(97, {sql})' for _, sql, _ in IN_BUCKETS)}").collect()[0]
    ours = [
        apply_transform(pa.array([value], schema_to_pyarrow(kind)), BucketTransform(97), kind)[0].as_py()
        for kind, _, value in IN_BUCKETS
    ]
    assert list(row) == ours
