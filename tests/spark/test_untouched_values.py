"""Spark reads rows that no change touches as at first, whoever wrote them again: a merge, or Spark itself."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from frazil.table.catalogs import load_catalog
from tests.laws.test_untouched_values import HAPPENINGS, KEYS
from tests.unit.commit.conftest import FaultyCatalog
from tests.unit.commit.valued import CHANGED, EXTREMES, ValuedWorld, valued_world

pytestmark = pytest.mark.usefixtures("shared_home")

SPARKS = [name for name in EXTREMES if name != "time"]
"""Spark has no times of day in Iceberg tables."""
COMPACTION = "CALL default.system.rewrite_data_files(table => 'demo.valued', options => map('rewrite-all', 'true'))"
DELETION = f"DELETE FROM default.demo.valued WHERE id >= {CHANGED} AND id % 5 = 0"


@contextmanager
def world_of(folder: Path, place: str, key: str) -> Iterator[ValuedWorld]:
    catalog = load_catalog(None)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("demo")
    location = f"file://{folder}/a b é p%20c"
    world = valued_world(
        FaultyCatalog(catalog),
        folder,
        place=place,
        transform=IdentityTransform(),
        key=key,
        types=SPARKS,
        location=location,
    )
    world.clock_ms = time.time_ns() // 1_000_000
    try:
        yield world
    finally:
        for table in (world.table, world.dead_letter_table):
            catalog.drop_table(table)
        shutil.rmtree(location.removeprefix("file://"))


def read(spark: Any, world: ValuedWorld) -> dict[int, list[str]]:
    spark.sql("REFRESH TABLE default.demo.valued")
    columns = ", ".join(f"CAST({name} AS STRING)" for name in world.values)
    rows = spark.sql(f"SELECT id, {columns} FROM default.demo.valued WHERE id < {CHANGED}").collect()
    found = {row[0]: list(row[1:]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("double", "long"),
        *(
            pytest.param(name, KEYS[n % len(KEYS)] if KEYS[n % len(KEYS)] != "time" else "int", marks=pytest.mark.soak)
            for n, name in enumerate(SPARKS)
        ),
    ],
)
def test_spark_reads_rows_that_no_change_touches_as_at_first(spark: Any, tmp_path: Path, place: str, key: str) -> None:
    with world_of(tmp_path, place, key) as world:
        world.append([world.row(n + first) for first in (0, CHANGED) for n in range(world.rows_of_each)])
        first = read(spark, world)
        assert sorted(first) == [*range(world.rows_of_each)]
        for n, happening in enumerate(
            [
                "copy-on-write",
                "merge-on-read",
                "deletion",
                "merge-on-read",
                "compaction",
                "evolution",
                "copy-on-write",
                "dedupe",
            ]
        ):
            if happening == "compaction":
                spark.sql(COMPACTION)
            elif happening == "deletion":
                spark.sql("ALTER TABLE default.demo.valued SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
                spark.sql(DELETION)
                world.live = {i: row for i, row in world.live.items() if i < CHANGED or i % 5}
            else:
                HAPPENINGS[happening](world, n)
            assert read(spark, world) == first, happening
            world.check()
