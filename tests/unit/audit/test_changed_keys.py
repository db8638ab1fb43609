"""The audit names the keys that a merge would insert, update and delete, whichever files it may still read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, PrimitiveType, StringType, UUIDType

from frazil.audit.changed_keys import MAX_LISTED_KEYS, ChangedKeys, DeclaredRules, KeyCount, find_changed_keys
from frazil.audit.claims import CommittedRange
from frazil.commit.journal import RuleHashes
from frazil.merge.contract import MergeContext, MergeRules, MergeTask
from frazil.merge.table_files import TableFileReader
from frazil.merge.task import run_merge_task
from tests.unit.merge.made_table import MadeTable, Row, deleted


class Audited:
    def __init__(self, folder: Path, *kinds: PrimitiveType, coordinates: bool = True, located: bool = False) -> None:
        keys = [NestedField(n, f"k{n}", kind, required=True) for n, kind in enumerate(kinds, 1)]
        others = [NestedField(n, name, StringType(), required=False) for n, name in ((9, "note"), (10, "kafka_topic"))]
        position = [NestedField(11, "kafka_partition", IntegerType()), NestedField(12, "kafka_offset", LongType())]
        schema = Schema(*keys, *others[: None if coordinates else 1], *(position if located else ()))
        self.key = tuple(field.name for field in keys)
        rules = MergeRules(
            self.key,
            row_removal="merge-on-read",
            ignored=("kafka_topic", "kafka_partition", "kafka_offset"),
            traced=False,
        )
        self.table = MadeTable(folder, schema, rules)
        self.declared = DeclaredRules(RuleHashes(), {})

    def keys(self, changes: Sequence[Row], *, shared: bool = False) -> ChangedKeys:
        """Keys of a merge that is not committed, as the audit's."""
        table = self.table
        task = MergeTask(0, tuple(f.path for f in table.stage(changes)), tuple(table.files), inserts=True)
        context = MergeContext("s", table.rules, table.changes, table.target)
        result = run_merge_task(context, task)
        reader = TableFileReader(load_file_io({}, location=table.target.folder), {})
        return find_changed_keys([(task, result)], reader, context, {"t"}, self.declared, shared=shared)


def row(*key: Any, note: str | None = None) -> dict[str, Any]:
    return {**{f"k{n}": value for n, value in enumerate(key, 1)}, "note": note}


def named(*keys: Mapping[str, Any]) -> KeyCount:
    return KeyCount(len(keys), keys)


def test_inserted_updated_and_deleted_keys_are_reported_separately(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType(), StringType())
    audited.table.land([row(n, "a") for n in range(6)])
    changes = [row(9, "a"), row(1, "a", note="new"), deleted(k1=5, k2="a"), row(2, "a"), deleted(k1=7, k2="a")]
    assert audited.keys(changes) == ChangedKeys(
        inserted=named({"k1": 9, "k2": "a"}), updated=named({"k1": 1, "k2": "a"}), deleted=named({"k1": 5, "k2": "a"})
    )


def test_rows_of_records_of_another_topic_are_counted_apart(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType())
    audited.table.land([row(n) for n in range(3)])
    audited.table.land([{**row(n), "kafka_topic": "another"} for n in range(3, 6)])
    audited.table.land([{**row(n), "kafka_topic": "t"} for n in range(6, 9)])
    changes = [change for n in (0, 3, 6) for change in (row(n, note="new"), deleted(k1=n + 1), row(n + 2))]
    assert audited.keys(changes) == ChangedKeys(
        updated=named({"k1": 0}, {"k1": 6}), deleted=named({"k1": 1}, {"k1": 7}), others=2
    )


def test_without_coordinates_each_row_of_a_shared_table_may_be_anothers(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType(), coordinates=False)
    audited.table.land([row(n) for n in range(3)])
    changes = [row(0, note="new"), deleted(k1=1), row(2)]
    assert audited.keys(changes) == ChangedKeys(updated=named({"k1": 0}), deleted=named({"k1": 1}))
    assert audited.keys(changes, shared=True) == ChangedKeys(others=2)


def test_values_that_other_rules_wrote_are_listed_apart_from_errors(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType(), coordinates=False)
    audited.table.land([row(1, note="former"), row(2, note="same")])
    now = {"k1": "a", "note": "b"}
    changes = [row(1, note="new"), row(2, note="same")]

    def found(rules: Mapping[str, str]) -> ChangedKeys:
        ranges = {("t", 0): [CommittedRange(0, 9, 9, 0, "", rules=RuleHashes(rules))]}
        audited.declared = DeclaredRules(RuleHashes(now), ranges)
        return audited.keys(changes)

    redeclared = ChangedKeys(redeclared=named({"k1": 1}), redeclared_columns=("note",))
    assert found(now) == ChangedKeys(updated=named({"k1": 1}))
    assert found({**now, "note": "other"}) == redeclared
    assert found({}) == redeclared, "the rules are unknown"
    assert found({**now, "k1": "other"}) == ChangedKeys(updated=named({"k1": 1})), "another column's rules changed"


def test_keys_of_records_with_other_deciding_rules_are_not_compared(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType(), coordinates=False)
    audited.table.land([row(1, note="former"), row(2)])
    columns = {"k1": "a", "note": "b"}
    now, others = RuleHashes(columns, "c"), {**columns, "k1": "other"}
    changes = [row(1, note="new"), deleted(k1=2), row(3)]

    def found(rules: RuleHashes, *, rejects: bool = False) -> ChangedKeys:
        ranges = {("t", 0): [CommittedRange(0, 9, 9, 0, "", rules=rules)]}
        audited.declared = DeclaredRules(now, ranges, rejects=rejects)
        return audited.keys(changes)

    compared = ChangedKeys(named({"k1": 3}), named({"k1": 1}), deleted=named({"k1": 2}))
    undecided = ChangedKeys(undecided=named({"k1": 1}, {"k1": 2}, {"k1": 3}))
    assert found(now) == found(now, rejects=True) == compared
    assert found(RuleHashes(columns, "other")) == found(RuleHashes()) == undecided
    assert found(RuleHashes(others, "c")) == compared
    assert found(RuleHashes(others, "c"), rejects=True) == undecided, "a record of another key may be rejected now"


def test_keys_that_a_later_batch_of_other_deciding_rules_may_have_deleted_or_kept_are_not_compared(
    tmp_path: Path,
) -> None:
    audited = Audited(tmp_path, LongType(), located=True)
    place = {"kafka_topic": "t", "kafka_partition": 0}
    audited.table.land([{**row(1), **place, "kafka_offset": 0}, {**row(2), **place, "kafka_offset": 4}])
    changes = [
        deleted(k1=1),
        deleted(k1=2),
        {**row(3), **place, "kafka_offset": 1},
        {**row(4), **place, "kafka_offset": 5},
    ]

    def found(*deciding: str) -> ChangedKeys:
        """Find keys after batches of two records with these rules, one after the other."""
        rules = [RuleHashes({"k1": "a"}, each) for each in deciding]
        ranges = [CommittedRange(2 * n, 2 * n + 2, 2, 0, "", epoch=n + 1, rules=each) for n, each in enumerate(rules)]
        audited.declared = DeclaredRules(RuleHashes({"k1": "a"}, "now"), {("t", 0): ranges})
        return audited.keys(changes)

    def found_with_replay(deciding: str, newest: int) -> ChangedKeys:
        """Find keys after three batches of the current rules, and a replay of the second in this epoch."""
        now, other = (RuleHashes({"k1": "a"}, each) for each in ("now", deciding))
        batches = [CommittedRange(2 * n, 2 * n + 2, 2, 0, "", epoch=n + 1, rules=now) for n in range(3)]
        replay = CommittedRange(2, 4, 2, 0, "", published_in=(2, newest), rules=other)
        audited.declared = DeclaredRules(now, {("t", 0): [*batches, replay]})
        return audited.keys(changes)

    compared = ChangedKeys(inserted=named({"k1": 3}, {"k1": 4}), deleted=named({"k1": 1}, {"k1": 2}))
    partly = ChangedKeys(named({"k1": 4}), undecided=named({"k1": 1}, {"k1": 3}), deleted=named({"k1": 2}))
    assert found("now", "now", "now") == compared
    assert found("now", "other", "now") == partly, "the second batch may have kept key 1, and deleted key 3"
    assert found("other", "now", "now") == partly
    assert found_with_replay("now", 2) == compared
    assert found_with_replay("other", 2) == partly, "the replay may have kept key 1, and deleted key 3"
    assert found_with_replay("other", 3) == ChangedKeys(undecided=named(*({"k1": key} for key in (1, 2, 3, 4))))


def test_the_rows_of_a_backfill_that_a_batch_of_other_deciding_rules_may_have_deleted_are_not_compared(
    tmp_path: Path,
) -> None:
    audited = Audited(tmp_path, LongType(), located=True)
    place = {"kafka_topic": "t", "kafka_partition": 0}

    def found(*, published_in: tuple[int, int]) -> ChangedKeys:
        now, other = (RuleHashes({"k1": "a"}, each) for each in ("now", "other"))
        backfill = CommittedRange(0, 2, 2, 0, "", published_in=published_in, rules=now)
        batch = CommittedRange(2, 4, 2, 0, "", epoch=2, rules=other)
        audited.declared = DeclaredRules(now, {("t", 0): [backfill, batch]})
        return audited.keys([{**row(3), **place, "kafka_offset": 1}])

    assert found(published_in=(2, 2)) == ChangedKeys(undecided=named({"k1": 3})), "the batch came before it or after"
    assert found(published_in=(1, 3)) == ChangedKeys(undecided=named({"k1": 3}))
    assert found(published_in=(3, 3)) == ChangedKeys(named({"k1": 3}))


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 2)), max_size=6))
def test_a_row_is_overtaken_if_any_later_commit_had_other_deciding_rules(
    history: list[tuple[bool, bool, int, int]],
) -> None:
    """Each commit is a backfill or the next epoch's batch. The true epoch of a backfill is known only roughly."""
    now, other = RuleHashes(deciding="now"), RuleHashes(deciding="other")
    epoch, ranges = 0, []
    for n, (is_backfill, has_other_rules, earlier, later) in enumerate(history):
        epoch += not is_backfill
        rules, published_in = other if has_other_rules else now, (max(0, epoch - earlier), epoch + later)
        of_batch = None if is_backfill else epoch
        ranges.append(CommittedRange(n, n + 1, 1, 0, "", epoch=of_batch, published_in=published_in, rules=rules))
    rows = pa.table(
        {
            "kafka_topic": ["t"] * len(ranges),
            "kafka_partition": pa.array([0] * len(ranges), pa.int32()),
            "kafka_offset": pa.array(range(len(ranges)), pa.int64()),
        }
    )

    overtaken = DeclaredRules(now, {("t", 0): ranges}).changed(rows).overtaken.tolist()

    expected = [any(has_other_rules for _, has_other_rules, *_ in history[n:]) for n in range(len(history))]
    assert all(found for found, needed in zip(overtaken, expected, strict=True) if needed)
    assert any(expected) or not any(overtaken)


def test_the_rules_of_a_row_are_those_of_its_records_batches() -> None:
    ranges = {
        ("t", 0): [CommittedRange(0, 10, 10, 0, "", rules=RuleHashes({"a": "1", "b": "1"}))],
        ("t", 1): [
            CommittedRange(0, 5, 5, 0, "", rules=RuleHashes({"a": "2", "b": "1"})),
            CommittedRange(5, 9, 6, 0, "", rules=RuleHashes({"a": "1", "b": "1"})),
        ],
    }
    places = [("t", 0, 3), ("t", 1, 2), ("t", 1, 4), ("t", 1, 7), ("t", 1, 9), ("u", 1, 2)]
    rows = pa.Table.from_pylist([{"kafka_topic": t, "kafka_partition": p, "kafka_offset": o} for t, p, o in places])
    rows = rows.append_column("a", pa.nulls(6)).append_column("b", pa.nulls(6))
    changed = DeclaredRules(RuleHashes({"a": "1", "b": "1"}), ranges).changed(rows).columns
    assert changed["a"].tolist() == [False, True, True, False, False, False]
    assert not changed["b"].any()


def test_the_last_batch_that_read_a_record_decides_its_rules_and_replays_count_in_addition() -> None:
    def committed(start: int, end: int, rules: str, epoch: int | None) -> CommittedRange:
        return CommittedRange(start, end, end - start, 0, "", epoch=epoch, rules=RuleHashes({"a": rules}))

    ranges = [
        committed(0, 4, "old", 1),
        committed(4, 6, "now", 2),
        committed(0, 3, "now", 3),
        committed(4, 5, "old", 4),
    ]
    rows = pa.table({
        "kafka_topic": ["t"] * 6, "kafka_partition": [0] * 6, "kafka_offset": range(6), "a": pa.nulls(6),
    })  # fmt: skip
    now = RuleHashes({"a": "now"})
    found = DeclaredRules(now, {("t", 0): ranges})
    assert found.changed(rows).columns["a"].tolist() == [False, False, False, True, True, False]
    replayed = DeclaredRules(now, {("t", 0): [*ranges, committed(1, 2, "old", None), committed(3, 4, "now", None)]})
    assert replayed.changed(rows).columns["a"].tolist() == [False, True, False, True, True, False]
    assert found.changed(rows.select(["a"])).columns["a"].all(), "without coordinates, each row may be of the old rules"


def test_a_row_that_had_left_its_file_earlier_is_not_reported_as_deleted(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType())
    audited.table.land([row(n) for n in range(6)])
    audited.table.merge(audited.table.stage([deleted(k1=3), row(4, note="moved to another file")]))
    assert audited.keys([deleted(k1=5), deleted(k1=3)]) == ChangedKeys(deleted=named({"k1": 5}))


def test_deleted_keys_are_found_in_a_removed_file_without_a_delete_file(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType())
    audited.table.land([row(1), row(2)])
    audited.table.land([row(5)])
    assert audited.keys([deleted(k1=5)]) == ChangedKeys(deleted=named({"k1": 5}))


def test_the_first_ten_keys_are_named_in_order(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType())
    listed = audited.keys([row(n) for n in reversed(range(25))]).inserted.first
    assert [key["k1"] for key in listed] == [*range(MAX_LISTED_KEYS)]


def test_a_changed_key_is_not_named_if_others_wrote_it_twice(tmp_path: Path) -> None:
    audited = Audited(tmp_path, LongType())
    audited.table.land([row(1), row(1), row(2)])
    assert audited.keys([deleted(k1=1), row(1, note="x"), deleted(k1=2)]).deleted == named({"k1": 2})
    assert audited.keys([row(1)]) == ChangedKeys(), "the copy leaves, and the key stays"


@pytest.mark.parametrize(("kind", "value", "key"), [
    (UUIDType(), uuid.UUID(int=7).bytes, uuid.UUID(int=7)),
    (BinaryType(), b"\x00\xff", "00ff"),
])  # fmt: skip
def test_keys_of_bytes_are_named_as_text(tmp_path: Path, kind: PrimitiveType, value: bytes, key: object) -> None:
    assert Audited(tmp_path, kind).keys([row(value)]).inserted == named({"k1": key})
