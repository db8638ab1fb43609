"""A merge compared with a dictionary: for any changes in any tasks, the table has each key's newest version."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType

from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS
from frazil.merge.changes import find_newest_changes
from frazil.merge.contract import (
    DeleteFile,
    MergeContext,
    MergeCounts,
    MergeRules,
    MergeTask,
    RowRemoval,
    TableFile,
)
from frazil.merge.repeats import KeyIndex, locate_rows
from frazil.merge.table_files import TableFileReader
from frazil.merge.task import run_merge_task
from tests.unit.merge.made_table import MadeTable, Row, deleted

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", StringType(), required=True),
    NestedField(3, "version", IntegerType(), required=False),
    NestedField(4, "price", DoubleType(), required=False),
    NestedField(5, "tags", ListType(6, StringType(), element_required=False), required=False),
)
KEY = ("id", "part")
BY_ID = PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket"), spec_id=0)
HOWS: list[RowRemoval] = ["auto", "copy-on-write", "merge-on-read"]


class Model:
    """A dictionary that applies the changes."""

    def __init__(self, order_by: str | None) -> None:
        self.order_by = order_by
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def merge(self, changes: Sequence[Row]) -> MergeCounts:
        counts = {"superseded": 0, "stale": 0, "unchanged": 0, "deleted": 0, "updated": 0, "inserted": 0}
        newest: dict[tuple[Any, ...], Row] = {}
        self.cut: set[tuple[Any, ...]] = set()
        by_key: dict[tuple[Any, ...], list[Row]] = {}
        for change in changes:
            by_key.setdefault(tuple(change[name] for name in KEY), []).append(change)
        for key, of in by_key.items():
            counts["superseded"] += len(of) - 1
            bare = max((n for n, change in enumerate(of) if self._is_bare(change)), default=None)
            if bare is not None:
                self.cut.add(key)
            ordered = sorted(of[bare:], key=self._rank)
            if (row := self.rows.get(key)) is not None and bare is None:
                ordered = [c for c in ordered if self._rank(c) >= self._rank(row)] or ordered[-1:]
            for change in ordered:
                newest[key] = self._batches_after(newest.get(key), change)
        for key, change in newest.items():
            counts[self._one(key, change)] += 1
        return MergeCounts(**counts)

    def _batches_after(self, before: Row | None, change: Row) -> Row:
        """Return a change with the preceding change's values for the columns that it keeps."""
        if before is None or not change.get(OMITTED_COLUMNS):
            return change
        if before.get(CHANGE) == DELETE:
            return {**change, OMITTED_COLUMNS: None}
        names = {field.field_id: field.name for field in SCHEMA.fields}
        reported = {
            names[i]: before[names[i]] for i in change[OMITTED_COLUMNS] if i not in (before.get(OMITTED_COLUMNS) or ())
        }
        return {**change, **reported, OMITTED_COLUMNS: [i for i in change[OMITTED_COLUMNS] if names[i] not in reported]}

    def _is_bare(self, change: Row) -> bool:
        return bool(self.order_by) and change.get(CHANGE) == DELETE and change.get(str(self.order_by)) is None

    def _rank(self, row: Row) -> float:
        value = row.get(self.order_by) if self.order_by else 0
        return float("-inf") if value is None else value

    def _one(self, key: tuple[Any, ...], change: Row) -> str:
        row = self.rows.get(key)
        if row is not None and key not in self.cut and self._rank(change) < self._rank(row):
            return "stale"
        if change.get(CHANGE) == DELETE:
            return "unchanged" if self.rows.pop(key, None) is None else "deleted"
        kept = {field.name for field in SCHEMA.fields if field.field_id in (change.get(OMITTED_COLUMNS) or ())}
        new = {f.name: (row or {}).get(f.name) if f.name in kept else change.get(f.name) for f in SCHEMA.fields}
        self.rows[key] = new
        return "inserted" if row is None else "unchanged" if repr(row) == repr(new) else "updated"


def made(folder: Path, how: RowRemoval = "auto", order_by: str | None = "version", **more: Any) -> MadeTable:
    return MadeTable(folder, SCHEMA, MergeRules(KEY, order_by, row_removal=how), **more)


def sorted_rows(rows: Any) -> list[str]:
    return sorted(repr({field.name: row[field.name] for field in SCHEMA.fields}) for row in rows)


VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(0, 7),
        "part": st.sampled_from("ab"),
        "version": st.none() | st.integers(0, 3),
        "price": st.sampled_from([None, 1.0, 2.0, float("nan")]),
        "tags": st.sampled_from([None, [], ["x"], ["x", None]]),
        CHANGE: st.sampled_from([0, 0, 0, DELETE]),
        OMITTED_COLUMNS: st.sampled_from([None, None, [], [4], [4, 5]]),
    }
)


def without_kept(change: dict[str, Any]) -> dict[str, Any]:
    """Return a change without the columns that it keeps; for a delete, only its key and order."""
    kept = {field.name for field in SCHEMA.fields if field.field_id in (change[OMITTED_COLUMNS] or ())}
    if change[CHANGE] == DELETE:
        kept |= {"price", "tags"}
    return {name: None if name in kept else value for name, value in change.items()}


BATCHES = st.lists(st.lists(VALUES.map(without_kept), max_size=12), min_size=1, max_size=5)
FIRST = {"id": 0, "part": "a", "version": None, "price": 1.0, "tags": ["x"], CHANGE: 0, OMITTED_COLUMNS: None}
KEEPS_TWO_COLUMNS = [[FIRST], [{**FIRST, "version": 0, "price": None, "tags": None, OMITTED_COLUMNS: [4, 5]}]]


@settings(max_examples=max(10, settings().max_examples // 4))
@example(KEEPS_TWO_COLUMNS, "auto", False, "version", 1)
@given(BATCHES, st.sampled_from(HOWS), st.booleans(), st.sampled_from(["version", None]), st.integers(1, 3))
def test_an_upserted_table_equals_a_dictionary_with_the_same_changes(
    batches: list[list[Row]], how: RowRemoval, alone: bool, order_by: str | None, tasks: int
) -> None:
    model = Model(order_by)
    with TemporaryDirectory() as folder:
        table = made(Path(folder), how, order_by, **({"spec": BY_ID} if alone else {}))
        for batch in batches:
            counts = table.merge(table.stage(batch), tasks, alone=alone)
            assert counts == model.merge(batch)
            assert sorted_rows(table.rows()) == sorted_rows(model.rows.values())
            assert sum(vars_of(counts)) == len(batch)


def vars_of(counts: MergeCounts) -> list[int]:
    return [counts.inserted, counts.updated, counts.deleted, counts.stale, counts.superseded, counts.unchanged]


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "part": "a", "version": 1, "price": 1.0, "tags": None, **more} for n in range(count)]


def test_a_merge_without_changes_writes_no_file(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.land(rows(10))
    assert table.merge([]) == MergeCounts()
    assert [r.files for r in table.last] == [(), ()]


@pytest.mark.parametrize("how", HOWS)
def test_many_changes_of_one_key_give_one_row(tmp_path: Path, how: RowRemoval) -> None:
    table = made(tmp_path, how, order_by=None)
    assert table.merge(table.stage([{"id": 1, "part": "a", "version": n} for n in range(50_000)])) == MergeCounts(
        inserted=1, superseded=49_999
    )
    assert [row["version"] for row in table.rows()] == [49_999]


def test_a_file_without_remaining_rows_is_removed_without_a_replacement(tmp_path: Path) -> None:
    for how in HOWS:
        table = made(tmp_path / how, how)
        table.land(rows(5))
        counts = table.merge(table.stage([deleted(id=n, part="a", version=2) for n in range(5)]))
        assert counts == MergeCounts(deleted=5)
        assert table.files == []


def test_a_few_deleted_rows_of_a_large_file_use_one_delete_file_that_the_next_merge_replaces(tmp_path: Path) -> None:
    table = made(tmp_path, "merge-on-read")
    table.land(rows(1000))
    for n, version in enumerate((2, 3)):
        table.merge(table.stage([{"id": 7 + n, "part": "a", "version": version}]))
        (file,) = (f for f in table.files if f.records == 1000)
        assert [delete.records for delete in file.deletes] == [n + 1]
    assert len(table.rows()) == 1000


def test_a_file_with_many_changed_rows_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.land(rows(1000))
    table.merge(table.stage([{"id": n, "part": "a", "version": 2} for n in range(300)]))
    assert [(f.records, f.deletes) for f in table.files] == [(1000, ())]


def test_small_files_do_not_pile_up(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.land(rows(20_000))
    for batch in range(40):
        table.merge(table.stage([{"id": 20_000 + batch, "part": "a", "version": 1}]))
    assert len(table.rows()) == 20_040
    assert len(table.files) <= 12


def test_stale_and_unchanged_changes_write_nothing(tmp_path: Path) -> None:
    table = made(tmp_path, "copy-on-write")
    table.land(rows(10))
    changes = [{**rows(10)[n], "version": 1 if n % 2 else 0, "price": 1.0} for n in range(10)]
    assert table.merge(table.stage(changes)) == MergeCounts(stale=5, unchanged=5)
    assert all(not result.files for result in table.last)


@pytest.mark.parametrize("prices", [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (3.0, 4.0)])
@pytest.mark.parametrize("files", [1, 2])
def test_duplicate_rows_of_a_key_from_another_program_become_one_row_at_its_next_change(
    tmp_path: Path, prices: tuple[float, float], files: int
) -> None:
    table = made(tmp_path)
    both = [{**rows(1)[0], "price": price} for price in prices]
    for part in [both] if files == 1 else [both[:1], both[1:]]:
        table.land([*part, *rows(5)[3:]] if part is both else part)
    table.merge(table.stage([{**rows(1)[0], "price": 2.0}]))
    assert [row["price"] for row in table.rows() if row["id"] == 0] == [2.0]


def test_the_later_timestamp_wins_across_topic_partitions(tmp_path: Path) -> None:
    for places in itertools.permutations([(0, 5, 10), (1, 3, 20), (2, 9, 15)]):
        table = made(tmp_path / str(places), order_by=None)
        changes = [
            {
                "id": 1,
                "part": "a",
                "version": partition,
                "kafka_partition": partition,
                "kafka_offset": offset,
                "kafka_timestamp": datetime(2026, 1, 1, 0, minute, tzinfo=UTC),
            }
            for partition, offset, minute in places
        ]
        table.merge(table.stage(changes))
        assert [row["version"] for row in table.rows()] == [1]


def test_the_greater_topic_partition_wins_between_equal_timestamps_in_any_order(tmp_path: Path) -> None:
    places = [("a", 11), ("b", 2), ("b", 10)]
    for number, order in enumerate(itertools.permutations(range(3))):
        table = made(tmp_path / str(number), order_by=None)
        changes = [
            {"id": 1, "part": "a", "version": at, "kafka_topic": places[at][0], "kafka_partition": places[at][1]}
            for at in order
        ]
        table.merge(table.stage(changes))
        assert [row["version"] for row in table.rows()] == [2]


def test_windows_of_old_and_new_event_times_are_counted(tmp_path: Path) -> None:
    timed = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestamptzType(), required=False),
        NestedField(3, "note", StringType(), required=False),
    )
    hour = 3_600_000_000
    table = MadeTable(tmp_path, timed, MergeRules(("id",), event_time="at", window_us=hour))

    def at(hours: int) -> datetime:
        return datetime(2026, 1, 1, hours, 30, tzinfo=UTC)

    table.land([{"id": n, "at": at(n)} for n in range(4)])
    changes = [
        {"id": 0, "at": at(0), "note": "in its window"},
        {"id": 1, "at": at(9)},
        {"id": 2, "at": None},
        deleted(id=3),
        {"id": 4, "at": at(20)},
    ]
    table.merge(table.stage(changes))
    midnight = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
    found = Counter({(start - midnight) // hour: n for r in table.last for start, n in r.windows.items()})
    assert found == {0: 1, 1: 1, 9: 1, 2: 1, 3: 1, 20: 1}


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [([150], 1), ([99, 100], 2), ([0, 999], 10), ([5_000], 0), ([-1], 0)],
    ids=["within one", "across two", "all", "above all", "below all"],
)
def test_only_row_groups_within_the_bounds_of_the_keys_are_searched(tmp_path: Path, wanted: list[int], groups: int):
    table = made(tmp_path)
    table.land([{"id": n, "part": "a", "version": 1} for n in range(1_000)])
    (file,) = table.files
    pq.write_table(pq.read_table(file.path), file.path, row_group_size=100)
    reader = TableFileReader(load_file_io({}, location=str(tmp_path)), {})
    (staged,) = table.stage([{"id": n, "part": "a", "version": 2} for n in wanted])
    changes = reader.read_rows(staged.path, Schema.model_validate_json(table.changes.schema_json))
    index = KeyIndex(find_newest_changes(changes, table.rules, {}), KEY)
    reader.rows_read = 0
    (found,) = locate_rows(reader, (file,), index, SCHEMA.select(*KEY))
    assert reader.rows_read == groups * 100
    assert found.positions.tolist() == [n for n in wanted if 0 <= n < 1_000]
    table.merge([staged])
    assert sorted(row["id"] for row in table.rows() if row["version"] == 2) == sorted(wanted)


@pytest.mark.parametrize(("first", "copied"), [(0, 0), (200, 200), (201, 300)])
def test_only_row_groups_with_remaining_rows_are_copied(tmp_path: Path, first: int, copied: int):
    table = made(tmp_path)
    table.land([{"id": n, "part": "a", "version": 1} for n in range(1_000)])
    (file,) = table.files
    pq.write_table(pq.read_table(file.path), file.path, row_group_size=100)
    changes = [{"id": n, "part": "a", "version": 2} for n in range(first, 1_000)]
    (staged,) = table.stage(changes)
    context, read = MergeContext("s", table.rules, table.changes, table.target), list[int]()
    run_merge_task(context, MergeTask(0, (staged.path,), (file,), inserts=True), on_progress=read.append)
    searched = 1_000 - first // 100 * 100
    assert read[-1] == len(changes) + 2 * searched + copied
    table.merge([staged])
    assert sorted(row["id"] for row in table.rows()) == [*range(1_000)]


def test_row_groups_without_usable_statistics_are_all_searched(tmp_path: Path):
    table = made(tmp_path)
    table.land([{"id": n, "part": "a", "version": 1} for n in range(1_000)])
    path, keys = table.files[0].path, SCHEMA.select(*KEY)
    reader = TableFileReader(load_file_io({}, location=str(tmp_path)), {})
    pq.write_table(pq.read_table(path), path, row_group_size=500, write_statistics=False)
    with reader.open(path) as data:
        assert data.may_hold(keys, {"id": (2_000, 2_000)}) == [0, 1]
    pq.write_table(pq.read_table(path), path, row_group_size=500)
    with reader.open(path) as data:
        assert data.may_hold(keys, {"id": ("2", "3")}) == [0, 1], "other types of values"
        assert data.may_hold(keys, {"id": (600, 700), "part": ("a", "b")}) == [1]
        assert data.may_hold(keys, {"part": ("b", "c")}) == []


def test_a_delete_file_for_many_data_files_is_split_once(tmp_path: Path):
    path, paths = str(tmp_path / "deletes.parquet"), ["c", "a", "b", "a", "c", "a"]
    reader = TableFileReader(load_file_io({}, location=str(tmp_path)), {})
    rows = pa.table({"file_path": paths, "pos": pa.array(range(6), pa.int64())})
    pq.write_table(rows, path)
    shared = DeleteFile(path, 6, alone=False)
    found = {name: reader.deleted_positions(TableFile(name, 9, 9, 0, (), (shared,))).tolist() for name in "abcd"}
    assert found == {"a": [1, 3, 5], "b": [2], "c": [0, 4], "d": []}
    assert reader.rows_read == 6
    pq.write_table(rows.slice(0, 0), path)
    reader = TableFileReader(load_file_io({}, location=str(tmp_path)), {})
    assert reader.deleted_positions(TableFile("a", 9, 9, 0, (), (shared,))).tolist() == []


def bare(**more: Any) -> Row:
    """Return a delete with only its key, like a tombstone."""
    return {"id": 0, "part": "a", "version": None, "price": None, "tags": None, CHANGE: DELETE, **more}


def test_a_delete_without_an_order_value_removes_earlier_rows_but_no_later_ones(tmp_path: Path) -> None:
    table = made(tmp_path)
    (row,) = rows(1, version=9)
    table.merge(table.stage([row]))
    assert table.merge(table.stage([bare()])).deleted == 1
    assert table.rows() == []
    table.merge(table.stage([row]))
    counts = table.merge(table.stage([{**row, "version": 12}, bare(), {**row, "version": 5}, {**row, "version": 4}]))
    assert (counts.updated, counts.superseded) == (1, 3)
    assert [one["version"] for one in table.rows()] == [5], "the row of version 9 was gone before it"


def test_a_delete_that_is_read_again_leaves_a_row_that_came_after_it(tmp_path: Path) -> None:
    coordinates = (
        NestedField(7, "kafka_topic", StringType(), required=False),
        NestedField(8, "kafka_partition", IntegerType(), required=False),
        NestedField(9, "kafka_offset", LongType(), required=False),
        NestedField(10, "kafka_timestamp", TimestamptzType(), required=False),
    )
    ignored = tuple(field.name for field in coordinates)
    table = MadeTable(tmp_path, Schema(*SCHEMA.fields, *coordinates), MergeRules(KEY, "version", ignored=ignored))
    (row,) = rows(1, version=9)
    history = [row, bare(), {**row, "version": 3}]
    table.merge(table.stage(history))
    assert table.merge(table.stage([bare(kafka_offset=1)])).stale == 1
    for again in (history[:1], history[:2], history):
        table.merge(table.stage(again))
    assert [one["version"] for one in table.rows()] == [3], "as it was"
    table.merge(table.stage([bare(kafka_offset=7)]))
    assert table.rows() == []


@pytest.mark.parametrize("deleted_at", [0, 2])
def test_between_partitions_a_delete_without_an_order_is_ordered_by_kafkas_time(
    tmp_path: Path, deleted_at: int
) -> None:
    def at(second: int) -> datetime:
        return datetime(2033, 5, 18, 0, 0, second, tzinfo=UTC)

    table = made(tmp_path)
    (row,) = rows(1, version=9)
    table.merge(table.stage([row]))
    elsewhere = {**row, "version": 1, "kafka_partition": 1, "kafka_timestamp": at(1)}
    table.merge(table.stage([{**bare(), "kafka_timestamp": at(deleted_at)}, elsewhere]))
    assert [one["version"] for one in table.rows()] == ([1] if deleted_at == 0 else [])


def test_after_an_unordered_delete_an_update_inherits_values_only_from_later_records(tmp_path: Path) -> None:
    table = made(tmp_path)
    (row,) = rows(1, version=9, price=5.0)
    table.merge(table.stage([row]))
    later = {**row, "version": 2, "price": None, OMITTED_COLUMNS: [SCHEMA.find_field("price").field_id]}
    table.merge(table.stage([bare(), {**row, "version": 1, "price": 2.0}, later]))
    assert [(one["version"], one["price"]) for one in table.rows()] == [(2, 2.0)]
