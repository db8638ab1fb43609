"""Tables of Iceberg format version 3 that frazil and Spark write in turn. Rows keep their ids."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, PrimitiveType, StringType, TimestampNanoType, TimestamptzNanoType

from frazil.commit.committer import Committer
from frazil.ingest.variants import VariantEncoder
from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.pyiceberg_fixes import VariantType
from frazil.table.catalogs import load_catalog
from tests.unit.commit.conftest import FaultyCatalog, World, new_world
from tests.unit.commit.upserts import BY_REGION, UpsertWorld, maintained, upsert_world

pytestmark = pytest.mark.usefixtures("shared_home")

TABLE = "default.demo.events"
BATCHES = 34
"""Enough for a commit that merges manifests."""


@pytest.fixture
def version(request: pytest.FixtureRequest) -> int:
    return getattr(request, "param", 3)


def drop_tables(catalog: SqlCatalog, world: World) -> None:
    for table in (world.table, world.dead_letter_table):
        location = catalog.load_table(table).location()
        catalog.drop_table(table)
        shutil.rmtree(location.removeprefix("file://"))  # the next test has a table there too


@pytest.fixture
def accounts(tmp_path: Path, version: int) -> Iterator[UpsertWorld]:
    catalog = load_catalog(None)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("demo")
    now_ms = time.time_ns() // 1_000_000
    faulty = FaultyCatalog(catalog)
    world = upsert_world(faulty, tmp_path, BY_REGION, version=version, how="merge-on-read", clock_ms=now_ms)
    yield world
    drop_tables(catalog, world)


@pytest.fixture
def world(tmp_path: Path, version: int) -> Iterator[World]:
    catalog = load_catalog(None)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("demo")
    world = new_world(FaultyCatalog(catalog), tmp_path, version=version)
    world.clock_ms = time.time_ns() // 1_000_000
    yield world
    drop_tables(catalog, world)


def sql(spark: Any, text: str, table: str = TABLE) -> Any:
    """Run a statement on the table's newest metadata, which Spark caches."""
    spark.sql(f"REFRESH TABLE {table}")
    return spark.sql(text)


def rows(spark: Any, at: int | None = None) -> dict[int, tuple[int, int]]:
    """Each row's id and the number of the commit that last changed it, by its Kafka offset."""
    version = "" if at is None else f" VERSION AS OF {at}"
    found = sql(spark, f"SELECT kafka_offset, _row_id, _last_updated_sequence_number FROM {TABLE}{version}").collect()
    by_offset = {offset: (row_id, number) for offset, row_id, number in found}
    assert len(by_offset) == len(found)
    assert None not in {part for pair in by_offset.values() for part in pair}
    assert len({row_id for row_id, _ in by_offset.values()}) == len(found)
    return by_offset


def write(world: World, committer: Committer, start: int, batches: int = 1) -> int:
    """Commit batches of three rows, and return the next offset."""
    for number in range(batches):
        world.run(committer, {0: (start + 3 * number, start + 3 * number + 3)})
    return start + 3 * batches


def assert_kept(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> None:
    assert {offset: after[offset] for offset in before} == before


def test_each_row_keeps_one_id_while_manifests_are_merged(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0, 3)
    first = rows(spark)
    end = write(world, committer, end, BATCHES)
    last = rows(spark)

    assert sorted(last) == list(range(end))
    assert_kept(first, last)
    head = world.load().current_snapshot()
    assert head is not None
    assert len(head.manifests(world.load().io)) < BATCHES
    assert max(row_id for row_id, _ in last.values()) < world.load().metadata.next_row_id  # type: ignore[operator, union-attr]
    assert last[end - 1][1] == head.sequence_number


def test_spark_appends_between_two_commits(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0)
    sql(spark, f"INSERT INTO {TABLE} SELECT ts, name, kafka_partition, kafka_offset + 1000 FROM {TABLE}")
    before = rows(spark)
    end = write(world, committer, end, BATCHES)
    after = rows(spark)
    assert sorted(after) == [*range(end), *range(1000, 1003)]
    assert_kept(before, after)


@pytest.mark.rotates(2)
def test_the_writer_continues_after_spark_compacts_deletes_and_appends(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0, 3)
    before = rows(spark)
    sql(spark, "CALL default.system.rewrite_data_files(table => 'demo.events', options => map('rewrite-all', 'true'))")
    assert rows(spark) == before
    end = write(world, committer, end, 2)
    sql(spark, "CALL default.system.rewrite_manifests('demo.events')")
    assert_kept(before, rows(spark))
    sql(spark, f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql(spark, f"DELETE FROM {TABLE} WHERE kafka_offset IN (1, 4)")
    before = rows(spark)
    end = write(world, committer, end, BATCHES)
    after = rows(spark)
    assert_kept(before, after)
    assert sorted(after) == [offset for offset in range(end) if offset not in (1, 4)]
    assert world.load().scan().to_arrow().num_rows == len(after)
    later = f"TIMESTAMP '{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%d %H:%M:%S}'"
    sql(spark, f"CALL default.system.expire_snapshots(table => 'demo.events', older_than => {later}, retain_last => 1)")
    end = write(world, committer, end, 2)
    assert_kept(after, rows(spark))


@pytest.mark.parametrize("version", [2], indirect=True)
def test_writing_continues_after_another_program_upgrades_the_table(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0, 3)
    sql(spark, f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('format-version' = '3')")
    end = write(world, committer, end)
    before = rows(spark)
    end = write(world, committer, end, BATCHES)
    after = rows(spark)
    assert sorted(after) == list(range(end))
    assert_kept(before, after)


def test_spark_reads_the_default_of_a_column_that_older_files_do_not_have(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0)
    with world.load().update_schema() as update:
        update.add_column("gate", StringType(), default_value="A1")
    write(world, committer, end)
    found = sql(spark, f"SELECT kafka_offset, gate FROM {TABLE}").collect()
    by_pyiceberg = world.load().scan().to_arrow()
    gates = {offset: "A1" if offset < end else None for offset in range(2 * end)}
    assert {row.kafka_offset: row.gate for row in found} == gates
    assert dict(zip(by_pyiceberg["kafka_offset"].to_pylist(), by_pyiceberg["gate"].to_pylist(), strict=True)) == gates


ACCOUNTS = "default.demo.accounts"
ROWS = {number: ("eu" if number % 2 else "us", number) for number in range(20)}


def ids_of(spark: Any) -> dict[tuple[int, str, int], tuple[int, int]]:
    """The id of each account's row, and the number of the commit that last changed it."""
    columns = "id, region, amount, _row_id, _last_updated_sequence_number"
    found = sql(spark, f"SELECT {columns} FROM {ACCOUNTS}", ACCOUNTS).collect()
    assert len({row.id for row in found}) == len({row._row_id for row in found}) == len(found)
    return {tuple(row[:3]): tuple(row[3:]) for row in found}


def accounts_of(spark: Any) -> dict[int, tuple[str, int]]:
    return {number: (region, amount) for number, region, amount in ids_of(spark)}


@pytest.mark.parametrize("version", [2, 3], indirect=True)
def test_upserts_and_spark_delete_by_deletion_vectors(spark: Any, accounts: UpsertWorld, version: int) -> None:
    committer = accounts.begin()
    accounts.upsert(committer, [*ROWS.items()])
    accounts.upsert(committer, [(1, None)])
    if version == 2:
        sql(spark, f"ALTER TABLE {ACCOUNTS} SET TBLPROPERTIES ('format-version' = '3')", ACCOUNTS)
    accounts.upsert(committer, [(0, ("us", 100)), (3, None)])
    expected = {**ROWS, 0: ("us", 100)}
    del expected[1], expected[3]
    assert accounts_of(spark) == accounts.accounts() == expected

    sql(spark, f"ALTER TABLE {ACCOUNTS} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')", ACCOUNTS)
    sql(spark, f"DELETE FROM {ACCOUNTS} WHERE id IN (4, 5)", ACCOUNTS)
    accounts.upsert(committer, [(6, None), (7, ("eu", 700))])

    del expected[4], expected[5], expected[6]
    expected[7] = ("eu", 700)
    assert accounts_of(spark) == accounts.accounts() == expected
    head = accounts.load().current_snapshot()
    assert head is not None
    entries = [e for m in head.manifests(accounts.load().io) for e in m.fetch_manifest_entry(accounts.load().io)]
    vectors = [e.data_file[17] for e in entries if e.data_file.file_format is FileFormat.PUFFIN]
    assert len(vectors) == len(set(vectors)) == 2
    assert all(e.data_file.file_format is FileFormat.PARQUET for e in entries if e.data_file.content == 0)


def test_maintenance_keeps_the_ids_of_rows(spark: Any, accounts: UpsertWorld) -> None:
    committer = accounts.begin()
    accounts.upsert(committer, [*ROWS.items()])
    accounts.upsert(committer, [(1, None), (3, None), (5, None)])
    before = ids_of(spark)
    now_ms = time.time_ns() // 1_000_000
    (done,) = maintain(lambda: spark, accounts.catalog.inner, maintained(), actions=[Action.COMPACTION], now_ms=now_ms)
    assert (done.ending, done.numbers["files-removed"]) == (Ending.DONE, 1), done
    assert ids_of(spark) == before
    assert accounts.delete_files() == 0
    accounts.upsert(committer, [(7, None), (20, ("us", 20))])
    after = ids_of(spark)
    assert {row: after.get(row) for row in before} == {**before, (7, "eu", 7): None}


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType()], ids=str)
def test_spark_cannot_read_any_column_of_a_table_with_nanoseconds(
    spark: Any,
    shared_home: Path,  # noqa: ARG001
    kind: PrimitiveType,
) -> None:
    """frazil refuses these types until Spark reads them."""
    catalog = load_catalog(None)
    catalog.create_namespace_if_not_exists("demo")
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "at", kind, required=False))
    catalog.create_table(f"demo.with_{kind}", schema, properties={"format-version": "3"})
    with pytest.raises(Exception, match="Cannot convert unsupported type to Spark"):
        spark.sql(f"SELECT id FROM default.demo.with_{kind}").collect()
    catalog.drop_table(f"demo.with_{kind}")


VARIANTS: list[Any] = [
    {"b": 1, "a": {"é": [1.5, None, "x" * 100], "": {}}},
    [2**63 - 1, -(2**63), 2**63, 10**37, 1e300, 0.1, -7],
    {f"key {n}": n for n in range(300)},
    json.loads('{"a":[' * 50 + "7" + "]}" * 50),
    {"big": "y" * 1_000_000},
    "text",
    True,
    None,
]


def variants(spark: Any) -> list[Any]:
    return [row.v and row.v.toPython() for row in sql(spark, f"SELECT v FROM {TABLE} ORDER BY kafka_offset").collect()]


def test_spark_reads_variants_before_and_after_it_compacts_them(spark: Any, world: World) -> None:
    committer = world.begin()
    with world.load().update_schema() as update:
        update.add_column("v", VariantType())
    texts = [None if value is None else json.dumps(value) for value in VARIANTS]
    encoded = VariantEncoder(world.load().schema())(
        pa.Table.from_pydict({name: [None] * len(texts) for name in ("ts", "name", "kafka_partition", "kafka_offset")})
        .append_column("v", pa.array(texts, pa.large_string()))
    )  # fmt: skip
    groups = encoded[0]["v"].to_pylist()
    write_rows = world._write
    world._write = lambda table, key, target, rows: write_rows(  # type: ignore[method-assign]
        table, key, target, [{**row, "v": groups[row["kafka_offset"]]} for row in rows]
    )
    world.run(committer, {0: (0, 3)})
    world.run(committer, {0: (3, len(VARIANTS))})

    parsed = json.loads(json.dumps(VARIANTS), parse_float=lambda text: float(text) if "e" in text else Decimal(text))
    assert variants(spark) == parsed
    for name, wanted in (("$.b", 1), ("$.a.é[2]", "x" * 100), ("$.none", None)):
        kind = "int" if wanted == 1 else "string"
        found = sql(spark, f"SELECT variant_get(v, '{name}', '{kind}') FROM {TABLE} WHERE kafka_offset = 0").first()
        assert found[0] == wanted
    (path,) = [path for path in world.parquet_files() if pq.read_metadata(path).num_rows == 3]
    (by_duckdb,) = duckdb.sql(f"SELECT v::JSON FROM '{path}' WHERE kafka_offset = 0").fetchall()
    assert json.loads(by_duckdb[0]) == VARIANTS[0]

    sql(spark, "CALL default.system.rewrite_data_files(table => 'demo.events', options => map('rewrite-all', 'true'))")
    assert variants(spark) == parsed
    assert [offset for _, offset in world.rows(row_filter="kafka_offset > 2")] == [*range(3, len(VARIANTS))]


def test_frazil_opens_a_table_in_which_spark_shredded_variants(spark: Any, world: World) -> None:
    committer = world.begin()
    end = write(world, committer, 0)
    sql(spark, f"ALTER TABLE {TABLE} ADD COLUMN v variant")
    sql(spark, f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')")
    values = """SELECT ts, name, kafka_partition, kafka_offset + 1000, parse_json('{"a": 1}')"""
    sql(spark, f"INSERT INTO {TABLE} {values} FROM {TABLE}")
    assert any("typed_value" in str(pq.read_metadata(path).schema) for path in world.parquet_files())
    write(world, committer, end)
    assert [offset for _, offset in world.rows()] == [*range(2 * end), *range(1000, 1000 + end)]
    found = sql(spark, f"SELECT variant_get(v, '$.a', 'int') FROM {TABLE} WHERE kafka_offset >= 1000").collect()
    assert [row[0] for row in found] == [1] * end
