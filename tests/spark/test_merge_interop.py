"""Spark reads what merges wrote, and merges go on with what Spark made of the table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from frazil.maintenance.due import Action
from frazil.maintenance.measure import measure
from frazil.maintenance.outcome import Ending, Outcome
from frazil.maintenance.run import maintain
from frazil.table.catalogs import load_catalog
from tests.unit.commit.conftest import FaultyCatalog
from tests.unit.commit.upserts import BY_REGION, UpsertWorld, maintained, upsert_world

pytestmark = pytest.mark.usefixtures("shared_home")


def _seen_by(spark: Any) -> dict[int, tuple[str, int]]:
    spark.sql("REFRESH TABLE default.demo.accounts")
    rows = spark.sql("SELECT id, region, amount FROM default.demo.accounts").collect()
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: (row.region, row.amount) for row in rows}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[UpsertWorld]:
    catalog = load_catalog(None)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("demo")
    now_ms = time.time_ns() // 1_000_000
    world = upsert_world(FaultyCatalog(catalog), tmp_path, BY_REGION, how="merge-on-read", clock_ms=now_ms)
    yield world
    for table in (world.table, world.dead_letter_table):
        catalog.drop_table(table)


ROWS = {number: ("eu" if number % 2 else "us", number) for number in range(20)}


def test_spark_reads_what_a_merge_deleted(spark: Any, world: UpsertWorld) -> None:
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])

    world.upsert(committer, [(0, ("us", 100)), (1, None), (2, ("eu", 2))])

    assert world.delete_files() == 2
    expected = {**ROWS, 0: ("us", 100), 2: ("eu", 2)}
    del expected[1]
    assert _seen_by(spark) == expected


@pytest.mark.soak
def test_merges_go_on_with_what_spark_deleted_and_compacted(spark: Any, world: UpsertWorld) -> None:
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])
    assert _seen_by(spark) == ROWS
    spark.sql("ALTER TABLE default.demo.accounts SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql("DELETE FROM default.demo.accounts WHERE id IN (3, 4)")

    world.upsert(committer, [(3, ("eu", 300)), (5, None)])

    rows = {**ROWS, 3: ("eu", 300)}
    del rows[4], rows[5]
    assert _seen_by(spark) == world.accounts() == rows
    spark.sql(
        "CALL default.system.rewrite_data_files(table => 'demo.accounts', "
        "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true'))"
    )

    world.upsert(committer, [(6, ("us", 600)), (7, None)])

    rows[6] = ("us", 600)
    del rows[7]
    assert _seen_by(spark) == world.accounts() == rows


def compact(spark: Any, world: UpsertWorld) -> Outcome:
    spark.sql("REFRESH TABLE default.demo.accounts")  # an earlier test had another one of the same name
    now_ms = time.time_ns() // 1_000_000
    catalog = world.catalog.inner
    (done,) = maintain(lambda: spark, catalog, maintained(), actions=[Action.COMPACTION], now_ms=now_ms)
    return done


def test_files_with_many_deleted_rows_are_compacted_and_their_delete_files_go(spark: Any, world: UpsertWorld) -> None:
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])
    world.upsert(committer, [(0, ("us", 100)), (1, None)])
    rows = {**ROWS, 0: ("us", 100)}
    del rows[1]
    assert compact(spark, world).ending is Ending.SKIPPED, "one of ten rows is deleted in each file"

    world.upsert(committer, [(3, None), (5, None)])
    del rows[3], rows[5]
    done = compact(spark, world)

    assert (done.ending, done.numbers["files-removed"], done.numbers["deletes-dropped"]) == (Ending.DONE, 1, 1), done
    assert _seen_by(spark) == world.accounts() == rows
    assert world.delete_files() == 1, "that of the other region"
    found = measure(world.catalog.inner, maintained(), now_ms=0)
    assert found is not None
    assert (found.rows, found.deleted_rows) == (len(rows), 1)

    world.upsert(committer, [(7, ("eu", 700)), (9, None)])
    rows[7] = ("eu", 700)
    del rows[9]
    assert _seen_by(spark) == world.accounts() == rows
