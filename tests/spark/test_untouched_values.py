"""Spark reads untouched rows with their first values, after a merge or Spark itself has rewritten them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
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

ALL = [name for name in EXTREMES if name != "time"]
"""Spark has no times of day in Iceberg tables."""
NO_PLACES = {"fixed", "uuid"}
"""Iceberg 1.12 does not read manifests with a fixed partition value, and Spark deletes no rows of UUID partitions."""
FEW = ["double", "uuid", "timestamptz", "binary"]
BY_SPARK = {
    "compaction": [
        "CALL default.system.rewrite_data_files(table => 'demo.valued', options => map('rewrite-all', 'true'))",
        "CALL default.system.rewrite_manifests('demo.valued')",
    ],
    "deletion": [
        (
            "ALTER TABLE default.demo.valued SET TBLPROPERTIES "
            "('write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'file')"
        ),
        f"DELETE FROM default.demo.valued WHERE id >= {CHANGED} AND id % 5 = 0",
    ],
}
HAPPENS = [
    *(
        "copy-on-write",
        "merge-on-read",
        "deletion",
        "merge-on-read",
        "compaction",
        "evolution",
        "copy-on-write",
        "dedupe",
    ),
]


@contextmanager
def world_of(folder: Path, place: str, key: str, types: list[str]) -> Iterator[ValuedWorld]:
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
        types=types,
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
    ("place", "key", "types"),
    [
        pytest.param("double", "long", FEW, marks=pytest.mark.rotates(2)),
        *(
            pytest.param(place, key, ALL, marks=[pytest.mark.soak, pytest.mark.timeout(900)])
            for place, key in zip(
                [name for name in ALL if name not in NO_PLACES], cycle(sorted({*ALL} & {*KEYS})), strict=False
            )
        ),
    ],
)
def test_spark_reads_unchanged_rows_with_their_original_values(
    spark: Any, tmp_path: Path, place: str, key: str, types: list[str]
) -> None:
    with world_of(tmp_path, place, key, types) as world:
        world.append([world.row(n + first) for first in (0, CHANGED) for n in range(world.rows_of_each)])
        first = read(spark, world)
        assert sorted(first) == [*range(world.rows_of_each)]
        for n, happening in enumerate(HAPPENS):
            if happening in BY_SPARK:
                for statement in BY_SPARK[happening]:
                    spark.sql(statement)
            else:
                HAPPENINGS[happening](world, n)
            if happening == "deletion":
                world.live = {number: row for number, row in world.live.items() if number < CHANGED or number % 5}
            assert read(spark, world) == first, happening
            world.check()
