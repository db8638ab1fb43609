"""Spark reads the results of merges, and merges continue after Spark has changed the table."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from frazil.commit.marker import BatchKey
from frazil.commit.merging import run_in_process
from frazil.commit.sweep import batch_folder
from frazil.maintenance.due import Action
from frazil.maintenance.measure import measure
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.outcomes import Ending, Outcome
from frazil.maintenance.run import maintain
from frazil.maintenance.spark_actions import SparkTable
from frazil.merge.contract import MergeContext, MergeResult, MergeTask, RowRemoval
from frazil.spec.maintenance import Expiry, Maintenance
from frazil.table.catalogs import load_catalog
from tests.unit.commit.conftest import FaultyCatalog
from tests.unit.commit.upserts import BY_REGION, UpsertWorld, maintained, upsert_world

VERSION = 2 + int(os.environ["FRAZIL_TEST_SEED"]) % 2
"""The tables' format version, the other one for the next commit."""

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
    world = upsert_world(
        FaultyCatalog(catalog), tmp_path, BY_REGION, version=VERSION, how="merge-on-read", clock_ms=now_ms
    )
    yield world
    for table in (world.table, world.dead_letter_table):
        location = catalog.load_table(table).location()
        catalog.drop_table(table)
        shutil.rmtree(location.removeprefix("file://"))  # the next test has a table there too


ROWS = {number: ("eu" if number % 2 else "us", number) for number in range(20)}


def test_spark_does_not_read_rows_that_a_merge_deleted(spark: Any, world: UpsertWorld) -> None:
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])

    world.upsert(committer, [(0, ("us", 100)), (1, None), (2, ("eu", 2))])

    assert world.delete_files() == 2
    expected = {**ROWS, 0: ("us", 100), 2: ("eu", 2)}
    del expected[1]
    assert _seen_by(spark) == expected


@pytest.mark.soak
def test_merges_continue_after_spark_deletes_and_compactions(spark: Any, world: UpsertWorld) -> None:
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


def test_a_partition_column_missing_in_imported_files_keeps_its_value(
    spark: Any, world: UpsertWorld, tmp_path: Path
) -> None:
    """Hive files do not have their partition columns: see apache/iceberg-python#1401 and apache/auron#2527."""
    committer = world.begin()
    world.upsert(committer, [(100, ("eu", 100))])
    made = spark.createDataFrame(
        [(number, *row) for number, row in ROWS.items()], "id long, region string, amount long"
    )
    made.coalesce(1).write.partitionBy("region").parquet(f"{tmp_path}/hive")
    spark.sql("REFRESH TABLE default.demo.accounts")
    spark.sql(
        "CALL default.system.add_files(table => 'default.demo.accounts', "
        f"source_table => '`spark_catalog`.`parquet`.`{tmp_path}/hive`')"
    )
    rows = {**ROWS, 100: ("eu", 100)}
    assert _seen_by(spark) == rows

    for how, changes in (
        ("merge-on-read", {1: ("eu", 10), 2: ("eu", 20)}),
        ("copy-on-write", {3: ("us", 30), 4: None}),
    ):
        world.how = how  # type: ignore[assignment]
        world.upsert(committer, [*changes.items()])

        rows = {number: row for number, row in {**rows, **changes}.items() if row is not None}
        assert _seen_by(spark) == rows  # PyIceberg does not read such a column if it is required


SETTINGS = Maintenance(expiry=Expiry(keep=timedelta(hours=1), at_least=2))
MAINTAINED = dataclasses.replace(maintained(), settings=SETTINGS)


def maintain_now(spark: Any, world: UpsertWorld, *actions: Action, hours: int = 0) -> tuple[Outcome, ...]:
    """Maintain the table as if it were `hours` later."""
    spark.sql("REFRESH TABLE default.demo.accounts")  # an earlier test had another one of the same name
    now_ms = time.time_ns() // 1_000_000 + hours * 3_600_000
    return maintain(lambda: spark, world.catalog.inner, MAINTAINED, actions=actions, now_ms=now_ms)


def compact(spark: Any, world: UpsertWorld) -> Outcome:
    (done,) = maintain_now(spark, world, Action.COMPACTION)
    return done


def test_files_with_many_deleted_rows_are_compacted_and_their_delete_files_go(spark: Any, world: UpsertWorld) -> None:
    with world.load().transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "100"})
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])
    world.upsert(committer, [(0, ("us", 100)), (1, None)])
    rows = {**ROWS, 0: ("us", 100)}
    del rows[1]
    assert compact(spark, world).ending is Ending.SKIPPED, "one of ten rows is deleted in each file"

    world.upsert(committer, [(3, None), (5, None)])
    del rows[3], rows[5]
    done = compact(spark, world)

    assert (done.ending, done.numbers["files-removed"]) == (Ending.DONE, 1), done
    # Spark itself drops the deletion vectors of files that it rewrites.
    assert done.numbers.get("deletes-dropped", 0) == (1 if VERSION == 2 else 0)
    assert _seen_by(spark) == world.accounts() == rows
    assert world.delete_files() == 1, "that of the other region"
    found = measure(world.catalog.inner, maintained(), now_ms=0)
    assert found is not None
    assert (found.rows, found.deleted_rows) == (len(rows), 1)

    world.upsert(committer, [(7, ("eu", 700)), (9, None)])
    rows[7] = ("eu", 700)
    del rows[9]
    assert _seen_by(spark) == world.accounts() == rows


def test_small_files_of_a_busy_partition_are_compacted_to_one_without_deletes(spark: Any, world: UpsertWorld) -> None:
    committer = world.begin()
    world.upsert(committer, [*ROWS.items()])
    world.upsert(committer, [(0, ("us", 100)), (1, None)])
    assert len(world.load().inspect.data_files()) == 3

    done = compact(spark, world)

    assert (done.ending, done.numbers["partitions"], done.numbers["files-removed"]) == (Ending.DONE, 2, 3), done
    assert (len(world.load().inspect.data_files()), world.delete_files()) == (2, 0)
    assert compact(spark, world).ending is Ending.SKIPPED
    rows = {**ROWS, 0: ("us", 100)}
    del rows[1]
    assert _seen_by(spark) == world.accounts() == rows
    world.upsert(committer, [(7, ("eu", 700)), (9, None)])
    rows[7] = ("eu", 700)
    del rows[9]
    assert _seen_by(spark) == world.accounts() == rows


def test_batches_and_compactions_of_the_partition_that_they_change_both_succeed(
    spark: Any, world: UpsertWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch lands while the compaction rewrites, and a compaction while a batch merges: each is overtaken once."""
    committer, rows = world.begin(), dict(ROWS)
    world.upsert(committer, [*ROWS.items()])

    def batch(*deleted: int) -> None:
        world.upsert(committer, [(number, None) for number in deleted])
        for number in deleted:
            del rows[number]

    batch(1, 3, 5)
    options, batches = SparkTable._options, iter([(7,), ()])

    def overtaken(*arguments: Any) -> dict[str, str]:
        batch(*next(batches))
        return options(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SparkTable, "_options", overtaken)
        done = compact(spark, world)
    assert (done.ending, done.numbers["files-removed"]) == (Ending.DONE, 1), done
    assert next(batches, None) is None, "it was tried twice"
    assert world.delete_files() == 0
    assert _seen_by(spark) == world.accounts() == rows

    batch(9, 11)
    merges = 0

    def compacted(context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
        nonlocal merges
        merges += 1
        found = run_in_process(context, tasks)
        if merges == 1:
            assert compact(spark, world).ending is Ending.DONE
        return found

    world.run_tasks = compacted
    batch(13)
    assert merges == 2
    assert _seen_by(spark) == world.accounts() == rows


def below(world: UpsertWorld) -> set[str]:
    """Data files, delete files and change files on disk."""
    root = Path(world.load().location().removeprefix("file://"))
    return {str(path) for path in root.glob("data/**/*.*") if path.suffix in (".parquet", ".puffin")}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_expiry_and_orphan_cleanup_keep_exactly_the_files_that_snapshots_and_journals_need(
    spark: Any, world: UpsertWorld, how: RowRemoval
) -> None:
    world.how = how
    committer, rows, left = world.begin(), {}, []
    for _ in range(2):
        for batch in range(25):
            changes = [(number, ("eu", batch)) for number in range(batch % 4, 20, 2)]
            world.upsert(committer, [*changes, (100 + batch, None if batch % 2 else ("us", batch))])
            rows |= dict(changes)
            rows |= {} if batch % 2 else {100 + batch: ("us", batch)}
        waiting = {file.path.removeprefix("file://") for file in world.change(committer, [(0, ("us", -1))]).files}
        written = below(world)
        assert waiting < written

        (expiry,) = maintain_now(spark, world, Action.EXPIRY, hours=24)
        assert expiry.ending is Ending.DONE, expiry
        assert below(world) == world.needed_files() | waiting
        assert expiry.numbers["data-files-removed"] > (10 if how == "copy-on-write" else 0)
        assert (expiry.numbers["delete-files-removed"] > 0) is (how == "merge-on-read")
        left.append(len(below(world)))
        assert len(written) > left[-1]

        stray = Path(
            batch_folder(world.load(), world.stream, BatchKey(1, 1)).removeprefix("file://"), "merged/x.parquet"
        )
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"nobody's")
        for file in below(world):
            os.utime(file, (time.time() - 5 * 86_400,) * 2)
        now_ms = time.time_ns() // 1_000_000
        needed = below(world) - {str(stray)}
        assert clean_orphans(world.catalog.inner, MAINTAINED, now_ms=now_ms).candidates == 1
        committer = world.begin()  # merges the batch that waits
        assert clean_orphans(world.catalog.inner, MAINTAINED, now_ms=now_ms + 3_600_000).deleted == 1
        assert not stray.exists()
        assert needed - waiting <= below(world) == world.needed_files()
        rows[0] = ("us", -1)
        assert _seen_by(spark) == world.accounts() == rows
    assert left[1] <= left[0] + 5, "the table does not grow"
