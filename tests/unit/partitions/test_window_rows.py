"""Rows of windows at the ends of the calendar are counted like others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import MonthTransform, YearTransform
from pyiceberg.types import NestedField, TimestamptzType

from frazil.partitions.window_rows import count_rows
from frazil.partitions.windows import Grain, Window
from tests.unit.commit.conftest import catalog_in

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
SCHEMA = Schema(NestedField(1, "at", TimestamptzType(), required=False))


@pytest.mark.parametrize("transform", [MonthTransform(), YearTransform()], ids=str)
@pytest.mark.parametrize("grain", [Grain.HOUR, Grain.DAY])
def test_rows_in_the_first_and_the_last_possible_window_are_counted(tmp_path: Path, transform, grain):
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    with catalog_in(tmp_path) as catalog:
        table = catalog.inner.create_table("demo.t", SCHEMA, partition_spec=spec)
        table.append(pa.table({"at": pa.array([FIRST, None, 0, LAST, LAST], pa.timestamp("us", "UTC"))}))
        snapshot = table.metadata.snapshots[-1].snapshot_id

        windows = [Window.containing(at, grain) for at in (FIRST, 0, LAST)]
        assert list(count_rows(table, windows, column="at", snapshot_id=snapshot).values()) == [1, 1, 2]
