"""Repeated rows: the pure decisions, compared with a simple loop over all rows."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType
from pyroaring import BitMap64

from frazil.merge.contract import DeleteFile, MergeContext, MergeRules, MergeTask
from frazil.merge.repeats import _rank_rows, find_repeats_in_batch, find_repeats_of_table
from frazil.merge.table_files import write_deletes
from frazil.merge.task import run_merge_task
from tests.unit.merge.made_table import MadeTable
from tests.unit.merge.test_dead_letters import COORDINATES

small = st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20)), max_size=25)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([k for k, _ in rows], np.int64), np.array([t for _, t in rows], np.int64)


@given(rows=small, within=st.integers(0, 12), seed=st.randoms())
def test_the_first_of_close_rows_with_one_key_is_kept(rows, within, seed):
    order = list(range(len(rows)))
    seed.shuffle(order)
    kept: list[tuple[int, int]] = []
    expected = [False] * len(rows)
    for place in sorted(range(len(rows)), key=lambda n: order[n]):
        key, time = rows[place]
        expected[place] = any(k == key and abs(t - time) <= within for k, t in kept)
        if not expected[place]:
            kept.append((key, time))
    found = find_repeats_in_batch(*columns(rows), np.array(order, np.int64), within_us=within)
    assert found.tolist() == expected


@given(rows=small, table=small, within=st.integers(0, 12))
def test_a_row_repeats_a_table_row_with_the_same_key_within_the_time_limit(rows, table, within):
    expected = [any(k == key and abs(t - time) <= within for k, t in table) for key, time in rows]
    assert find_repeats_of_table(*columns(rows), *columns(table), within_us=within).tolist() == expected


@pytest.mark.parametrize(("one", "other"), [(-(2**63), 2**63 - 1), (2**63 - 1, -(2**63))])
def test_time_differences_do_not_overflow(one: int, other: int) -> None:
    times = np.array([one, other], np.int64)
    same = np.zeros(2, np.int64)
    assert find_repeats_in_batch(same, times, np.arange(2), within_us=10**15).tolist() == [False, False]
    assert not find_repeats_of_table(same[:1], times[:1], same[1:], times[1:], within_us=10**15).any()


def placed(*rows: tuple[int, int, int | None]) -> pa.Table:
    """Rows by partition, offset and Kafka timestamp in seconds."""
    return pa.table(
        {
            "kafka_topic": pa.array(["t"] * len(rows), pa.string()),
            "kafka_partition": pa.array([p for p, _, _ in rows], pa.int32()),
            "kafka_offset": pa.array([o for _, o, _ in rows], pa.int64()),
            "kafka_timestamp": pa.array([s and s * 10**6 for _, _, s in rows], pa.timestamp("us", "UTC")),
        }
    )


def test_a_partition_keeps_its_order_although_its_timestamps_go_back() -> None:
    rows = placed((0, 2, 10), (0, 1, 30), (1, 7, 20), (1, 8, 40))
    assert _rank_rows(rows).tolist() == [2, 1, 0, 3]


def test_rows_without_a_timestamp_have_an_order_too() -> None:
    assert _rank_rows(placed((1, 0, None), (0, 5, None), (0, 4, None))).tolist() == [2, 1, 0]
    assert _rank_rows(placed()).tolist() == []


def test_a_record_does_not_repeat_a_row_that_a_delete_file_deletes(tmp_path: Path) -> None:
    """The table's file has three row groups of two rows; the first row of each but the first is deleted."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "at", TimestamptzType()), *COORDINATES
    )
    table = MadeTable(tmp_path, schema, MergeRules(("id",), event_time="at", within_us=0))
    rows = [{"id": n, "at": datetime(2033, 5, 18, tzinfo=UTC)} for n in range(6)]
    table.land(rows)
    (file,) = table.files
    pq.write_table(pq.read_table(file.path), file.path, row_group_size=2)
    deletes = write_deletes(
        load_file_io({}), file, np.array([2, 4]), target=dataclasses.replace(table.target, folder=str(tmp_path))
    )
    file = dataclasses.replace(file, deletes=(DeleteFile(deletes.path, 2, alone=True),))
    table.land([{**row, "kafka_topic": "t", "kafka_partition": 0, "kafka_offset": row["id"]} for row in rows])
    context = MergeContext("s", table.rules, dataclasses.replace(table.target, content="candidates"), table.target)
    found = run_merge_task(context, MergeTask(0, (table.files[1].path,), (file,), inserts=False))
    assert list(BitMap64.deserialize(found.matched)) == [0, 1, 3, 5]
