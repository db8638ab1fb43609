"""Dead letters merged after later records give the same table as in log order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.merge.contract import MergeCounts, MergeRules
from tests.unit.merge.made_table import MadeTable, Row

COORDINATES = (
    NestedField(4, "kafka_topic", StringType(), required=False),
    NestedField(5, "kafka_partition", IntegerType(), required=False),
    NestedField(6, "kafka_offset", LongType(), required=False),
    NestedField(7, "kafka_timestamp", TimestamptzType(), required=False),
)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "version", IntegerType(), required=False),
    NestedField(3, "price", LongType(), required=False),
    *COORDINATES,
)
BEGAN = datetime(2033, 5, 18, tzinfo=UTC)


class Stream:
    """Records of one topic, some of which were rejected at first. Offsets grow by one over all partitions."""

    def __init__(self, folder: Path, order_by: str | None) -> None:
        rules = MergeRules(("id",), order_by, ignored=tuple(field.name for field in COORDINATES))
        self.table = MadeTable(folder, SCHEMA, rules)
        self._plain = rules

    def know(self, landed: tuple[tuple[str, int], ...]) -> None:
        self._plain = dataclasses.replace(self._plain, landed=landed)

    def write(self, records: Sequence[Row]) -> None:
        self._merge(records, self._plain)

    def replay(self, dead_letters: Sequence[Row]) -> MergeCounts:
        return self._merge(dead_letters, dataclasses.replace(self._plain, replays=True))

    def _merge(self, records: Sequence[Row], rules: MergeRules) -> MergeCounts:
        self.table.rules = rules
        return self.table.merge(self.table.stage(records))

    def rows(self) -> dict[int, tuple[Any, Any]]:
        rows = self.table.rows()
        found = {row["id"]: (row["version"], row["price"]) for row in rows}
        assert len(found) == len(rows)
        return found


def record(offset: int, **more: Any) -> Row:
    """Return a record with a unique price, so that it always changes its row."""
    at = BEGAN + timedelta(seconds=offset)
    return {"id": 0, "version": 1, "price": offset, "kafka_offset": offset, "kafka_timestamp": at, **more}


def deletes(row: Row) -> bool:
    return bool(row.get(CHANGE) == DELETE)


@pytest.mark.parametrize(
    ("landed", "is_former"),
    [((), False), ((("t/0", 2),), True), ((("t/0", 6),), False), ((("t/1", 2), ("u/0", 2)), False)],
)
def test_each_change_is_later_than_a_row_of_a_record_that_its_log_no_longer_has(
    tmp_path: Path, landed: tuple[tuple[str, int], ...], is_former: bool
) -> None:
    deleted, replaced = Stream(tmp_path / "deleted", "version"), Stream(tmp_path / "replaced", None)
    for stream in (deleted, replaced):
        stream.write([record(5)])
        stream.know(landed)
    deleted.write([record(2, version=None, **{CHANGE: DELETE})])
    replaced.replay([record(2, price=20)])
    assert deleted.rows() == ({} if is_former else {0: (1, 5)})
    assert replaced.rows() == {0: (1, 20 if is_former else 5)}


@pytest.mark.parametrize("order_by", ["version", None])
def test_a_change_that_is_read_again_is_unchanged_and_an_older_one_is_stale(
    tmp_path: Path, order_by: str | None
) -> None:
    stream = Stream(tmp_path, order_by)
    stream.write([record(5), record(6, id=1)])
    counts = stream.replay([record(4), record(5, price=50), record(6, id=1)])
    assert (counts.superseded, counts.stale, counts.unchanged, counts.updated) == (1, 0, 2, 0)
    counts = stream.replay([record(4), record(3, id=1)])
    assert (counts.stale, counts.unchanged) == (2, 0)
    assert stream.rows() == {0: (1, 5), 1: (1, 6)}


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 1),
            "version": st.none() | st.integers(0, 3),
            CHANGE: st.sampled_from([UPSERT, UPSERT, DELETE]),
            "replayed": st.sampled_from([None, None, None, *range(6)]),
        },
        optional={"price": st.just(7)},
    ),
    min_size=1,
    max_size=10,
)
"""`replayed` is the replay that merges a dead letter: two follow each batch. None is a record that never was one."""
CUTS = st.tuples(st.integers(0, 10), st.integers(0, 10))


def history(*records: tuple[int, int | None, int, int | None], **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": key, "version": version, CHANGE: change, "replayed": replayed, **more}
        for key, version, change, replayed in records
    ]


BESIDE_A_LATER_LETTER = history(
    (0, None, DELETE, 0), (0, 3, UPSERT, None), (1, 1, UPSERT, None), (1, 1, UPSERT, None), (0, 1, UPSERT, 0)
)
"""The first of four partitions has a delete and a later letter, and the row between them is of another one."""
DELETED_BEFORE_A_LOWER_VALUE = history((0, 1, UPSERT, 0), (0, 2, UPSERT, 0), (0, None, DELETE, 1), (0, 0, UPSERT, None))
HIGHER_BEFORE_A_DELETE = history((0, 3, UPSERT, None), (0, None, DELETE, 0), (0, 1, UPSERT, None))
FALLING_IN_ONE_BATCH = history((0, None, DELETE, None), (0, 3, UPSERT, None), (0, 1, UPSERT, None))
EQUAL_AROUND_A_DELETE = history(
    (0, 1, UPSERT, 3), (0, 1, UPSERT, None), (0, None, DELETE, 2), (0, 1, UPSERT, None), (0, 1, UPSERT, 1), price=7
)


def as_they_come(offset: int, of: dict[str, Any]) -> Row:
    return record(offset, **of)


def upserts_in_any_order(offset: int, of: dict[str, Any]) -> Row:
    return record(offset, **{**of, CHANGE: UPSERT})


def deletes_in_their_order(offset: int, of: dict[str, Any]) -> Row:
    return record(offset, **{**of, "version": None if of["version"] is None and deletes(of) else offset})


def deletes_without_an_order(offset: int, of: dict[str, Any]) -> Row:
    return record(offset, **{**of, "version": None if deletes(of) else of["version"]})


def without_the_mistake(records: Sequence[Row], order_by: str | None) -> dict[int, tuple[Any, Any]]:
    rows: dict[int, Row] = {}
    for one in records:
        row = rows.get(one["id"])
        bare = deletes(one) and one["version"] is None
        if order_by and row and not bare and order(one) < order(row):
            continue
        rows.pop(one["id"], None)
        if not deletes(one):
            rows[one["id"]] = one
    return {key: (row["version"], row["price"]) for key, row in rows.items()}


def order(row: Row) -> int:
    return -1 if row["version"] is None else int(row["version"])


def with_dead_letters(stream: Stream, records: Sequence[Row], cuts: tuple[int, int]) -> set[int]:
    """Write three batches, with replays after each. Return the keys whose record came after a later delete."""
    ends = [*sorted(cuts), len(records)]
    late: set[int] = set()
    gone: dict[int, int] = {}
    waiting: list[Row] = []
    for begin, end, number in zip([0, *ends], ends, range(3), strict=False):
        batch = records[begin:end]
        good = [one for one in batch if one["replayed"] is None]
        waiting += [one for one in batch if one["replayed"] is not None]
        stream.write(good)
        for of in [good, *([one for one in waiting if one["replayed"] == n] for n in range(2 * number + 2))]:
            if of is not good:
                for _ in range(2 if of else 0):  # twice is once
                    stream.replay(of[::-1])
                waiting = [one for one in waiting if one not in of]
            late |= {one["id"] for one in of if gone.get(one["id"], -1) > one["kafka_offset"]}
            for one in filter(deletes, of):
                gone[one["id"]] = max(one["kafka_offset"], gone.get(one["id"], -1))
    return late


def falls(records: Sequence[Row], key: int) -> bool:
    """Whether a key's order after a delete is below one before it: a stale record leaves nothing in the table."""
    highest = before = -1
    for one in records:
        if one["id"] != key:
            continue
        if not deletes(one) and order(one) < before:
            return True
        highest = max(highest, order(one))
        before = highest if deletes(one) else before
    return False


@pytest.mark.rotates(2)
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("made", "order_by"),
    [
        (as_they_come, None),
        (as_they_come, "version"),
        (upserts_in_any_order, "version"),
        (deletes_in_their_order, "version"),
        (deletes_without_an_order, "version"),
    ],
)
@settings(max_examples=max(2, settings().max_examples // 10))
@given(records=RECORDS, cuts=CUTS)
@example(records=BESIDE_A_LATER_LETTER, cuts=(5, 5))
@example(records=EQUAL_AROUND_A_DELETE, cuts=(2, 4))
def test_replaying_dead_letters_in_any_order_gives_the_table_of_a_stream_without_the_mistake(
    made: Any, order_by: str | None, partitions: int, records: list[Any], cuts: tuple[int, int]
) -> None:
    """Except dead letters replayed after a later delete of their key, and keys whose order falls across a delete."""
    every = [made(n, {**of, "kafka_partition": n % partitions}) for n, of in enumerate(records)]
    valid = without_the_mistake(every, order_by)
    with TemporaryDirectory() as folder:
        stream = Stream(Path(folder), order_by)
        back = with_dead_letters(stream, every, cuts) - valid.keys()
        if order_by:
            back |= {key for key in range(2) if falls(every, key)}
        assert without(back, stream.rows()) == without(back, valid)


def without(keys: set[int], rows: dict[int, tuple[Any, Any]]) -> dict[int, tuple[Any, Any]]:
    return {key: row for key, row in rows.items() if key not in keys}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("made", [upserts_in_any_order, deletes_in_their_order, deletes_without_an_order])
@settings(max_examples=max(2, settings().max_examples // 10))
@given(records=RECORDS, cuts=CUTS)
@example(records=DELETED_BEFORE_A_LOWER_VALUE, cuts=(4, 4))
@example(records=HIGHER_BEFORE_A_DELETE, cuts=(3, 3))
@example(records=FALLING_IN_ONE_BATCH, cuts=(3, 3))
@example(records=EQUAL_AROUND_A_DELETE, cuts=(2, 4))
def test_merging_all_records_again_as_an_audit_does_corrects_each_row_that_replays_left_wrong(
    made: Any, partitions: int, records: list[Any], cuts: tuple[int, int]
) -> None:
    every = [made(n, {**of, "kafka_partition": n % partitions}) for n, of in enumerate(records)]
    with TemporaryDirectory() as folder:
        stream = Stream(Path(folder), "version")
        with_dead_letters(stream, every, cuts)
        stream.write(every)
        assert stream.rows() == without_the_mistake(every, "version")


def test_a_delete_applies_at_its_own_time_despite_a_later_dead_letter_of_its_partition(tmp_path: Path) -> None:
    tombstone = record(10, version=None, kafka_partition=0, **{CHANGE: DELETE})
    dead_letter, row = record(30, version=1, kafka_partition=0), record(20, version=5, kafka_partition=1)
    for number, replays in enumerate(
        [[[tombstone, dead_letter]], [[tombstone], [dead_letter]], [[dead_letter], [tombstone]]]
    ):
        stream = Stream(tmp_path / str(number), "version")
        stream.write([row])
        for dead_letters in replays:
            stream.replay(dead_letters)
        assert stream.rows() == {0: (5, 20)}


@pytest.mark.parametrize("order_by", ["version", None])
@pytest.mark.parametrize("dead_letter", [{CHANGE: DELETE}, {"price": 2}], ids=["a delete", "an older value"])
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
def test_a_dead_letter_is_stale_after_a_later_record_that_left_its_row_unchanged(
    tmp_path: Path, order_by: str | None, dead_letter: dict[str, Any], *, together: bool
) -> None:
    stream = Stream(tmp_path, order_by)
    stream.write([record(10, price=1)])
    for batch in [[record(40, price=1), record(50, price=1)]] if together else [[record(n, price=1)] for n in (40, 50)]:
        stream.write(batch)
    stream.replay([record(30, **dead_letter)])
    assert stream.rows() == {0: (1, 1)}


def test_a_record_that_leaves_its_row_as_it_was_changes_no_window_and_counts_as_unchanged(tmp_path: Path) -> None:
    stream = Stream(tmp_path, None)
    stream.table.rules = rules = dataclasses.replace(stream.table.rules, event_time="at", window_us=3_600_000_000)
    stream.table = MadeTable(tmp_path, Schema(*SCHEMA.fields, NestedField(8, "at", TimestamptzType())), rules)
    for offset, rewritten in ((1, 1), (2, 1), (3, 0)):
        stream.table.rules = dataclasses.replace(rules, traced=rewritten == 1)
        counts = stream.table.merge(stream.table.stage([record(offset, price=1, at=BEGAN)]))
        assert (counts.inserted, counts.unchanged, counts.updated) == (offset == 1, offset > 1, 0)
        assert [result.windows for result in stream.table.last if result.windows] == (
            [{int(BEGAN.timestamp()) * 1_000_000: 1}] if offset == 1 else []
        )
    assert [row["kafka_offset"] for row in stream.table.rows()] == [2]


def place(offset: int | None, partition: int | None = 0) -> dict[str, Any]:
    at = None if offset is None else BEGAN + timedelta(seconds=offset)
    topic = None if offset is None else "t"
    return {"kafka_topic": topic, "kafka_partition": partition, "kafka_offset": offset, "kafka_timestamp": at}


@pytest.mark.parametrize(
    ("row", "dead_letter", "stays"),
    [
        (place(5), place(3), True),
        (place(5), place(7), False),
        (place(5), place(5), True),
        (place(5), {**place(7, 1), "kafka_offset": 2}, False),
        (place(5), {**place(3, 1), "kafka_offset": 9}, True),
        (place(5), {**place(7, 1), "kafka_timestamp": None}, True),
        (place(None, None), place(7), True),
    ],
    ids=["later", "earlier", "its own", "earlier by time", "later by time", "a letter without a time", "unknown"],
)
@pytest.mark.parametrize("change", [UPSERT, DELETE])
def test_with_equal_versions_a_row_stays_unless_its_record_precedes_the_dead_letter(
    tmp_path: Path, row: Row, dead_letter: Row, stays: bool, change: int
) -> None:
    for order_by, version in (("version", 1), ("version", None), (None, 1)):
        stream = Stream(tmp_path / f"{order_by}{version}", order_by)
        stream.table.land([{"id": 0, "version": version, "price": 1, **row}])
        stream.replay([{"id": 0, "version": version, "price": 2, CHANGE: change, **dead_letter}])
        replaced = {} if change == DELETE else {0: (version, 2)}
        assert stream.rows() == ({0: (version, 1)} if stays else replaced)


def test_a_value_omitted_in_a_dead_letter_comes_from_an_earlier_dead_letter_or_row(
    tmp_path: Path,
) -> None:
    """The dead letter omits a column, like an update that omits an unchanged large value."""
    price = SCHEMA.find_field("price").field_id
    dead_letters = [record(1, price=10), record(9, price=None, **{OMITTED_COLUMNS: [price]})]
    for between, reported in ((0, 10), (5, 20)):
        stream = Stream(tmp_path / str(between), None)
        stream.write([record(between, price=20)])
        stream.replay(dead_letters)
        assert stream.rows() == {0: (1, reported)}
