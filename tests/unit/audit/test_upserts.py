"""The audit of an upsert reports keys that a merge of all records would change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from frazil.audit import kafka_source, upserts
from frazil.audit.changed_keys import ChangedKeys, DeclaredRules, KeyCount
from frazil.audit.claims import Claims, CommittedRange
from frazil.audit.findings import Finding, FindingKind
from frazil.audit.source_records import ComparedTables, SourceRecords
from frazil.audit.upserts import (
    _report_differences,
    _report_keys,
    _report_offsets_read_again,
    _values_not_compared,
    audit_upserts,
)
from frazil.commit.journal import RuleHashes
from frazil.commit.marker import BatchKey
from frazil.commit.merging import DEDUPE_MODE, UPSERT_MODE
from frazil.commit.staging_targets import target_table
from frazil.merge.contract import MergeContext, MergeCounts, MergeRules
from frazil.offsets.spans import SourceIdentity, TopicPartition
from frazil.spec.model import StreamSpec
from tests.unit.audit.test_source import IDENTITY, T0, StandInKafka
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.repeated import WITHIN_US, repeated_world
from tests.unit.commit.upserts import BY_REGION, SCHEMA, SPEC, UpsertWorld, upsert_world
from tests.unit.ingest.test_changes import ORDERS

U0 = ("u", 0)


@pytest.mark.parametrize("order_by", ["at", None])
def test_a_row_restored_by_an_older_change_is_explained_if_the_stream_has_an_order(order_by: str | None) -> None:
    spec = StreamSpec.model_validate({**ORDERS, "order-by": order_by})
    keys = ChangedKeys(inserted=KeyCount(1, ({"ref": "a"},)), deleted=KeyCount(3, ({"ref": "b"}, {"ref": "c"})))
    inserted, deleted = _report_keys(keys, spec, "orders")
    again = "To merge Kafka's records again, run `frazil reset s --to earliest`, then start the stream"
    assert inserted.sentence == (
        f"1 key (ref a): each is not in the table, although the key's newest change in Kafka is not a delete. {again}"
    )
    assert deleted.kind is FindingKind.UNCLAIMED
    assert deleted.keys == keys.deleted.first
    assert deleted.sentence.startswith(
        "3 keys (ref b; ref c; …): each is in the table, although the key's newest change in Kafka is a delete"
    )
    assert ("an older change in a later batch than the delete" in deleted.sentence) == bool(order_by)


def test_values_of_an_earlier_declaration_are_not_compared_and_no_advice_replaces_them_silently() -> None:
    updated, redeclared = (KeyCount(1, ({"ref": name},)) for name in "ab")
    keys = ChangedKeys(updated=updated, redeclared=redeclared, redeclared_columns=("kind", "remark"))
    wrong, former = _report_keys(keys, StreamSpec.model_validate(ORDERS), "orders")
    assert (wrong.kind, wrong.count, former.kind, former.count) == (
        FindingKind.MISCOUNTED, 1, FindingKind.NOT_COMPARED, 1,
    )  # fmt: skip
    assert wrong.sentence.endswith("A reset also replaces values of kind, remark that an earlier declaration wrote")
    assert former.sentence.startswith("1 key (ref b): each has values of kind, remark that an earlier declaration")


def test_offsets_that_were_committed_again_are_reported_for_their_topic_partition() -> None:
    def ranges(*spans: tuple[int, int], topic_id: str = "a") -> tuple[CommittedRange, ...]:
        return tuple(CommittedRange(start, end, end - start, 0, topic_id) for start, end in spans)

    once = ranges((0, 10), (10, 31), (31, 31))
    made_again = (*once, *ranges((0, 31), topic_id="b"))
    thrice = ranges((0, 10), (10, 31), (5, 31), (20, 31))
    (found,) = _report_offsets_read_again(Claims({("t", 0): once, ("t", 1): made_again, ("t", 2): thrice}))
    assert (found.kind, found.where, found.count, found.kind.is_wrong) == (FindingKind.READ_AGAIN, "t-2", 26, False)
    assert found.sentence == (
        "26 offsets were committed more than once, by a backfill or a reset: "
        "their changes and dead letters are counted each time"
    )


def test_a_log_truncated_below_merged_offsets_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older records in the place of newer ones change nothing by `order-by`, so a merge would not notice."""
    (found,) = compared(monkeypatch, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1))
    assert (found.kind, found.where) == (FindingKind.LOG_TRUNCATED, "t-0")
    assert "truncated at offset 40" in found.sentence


def test_offsets_of_a_former_topic_are_not_compared_with_the_current_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the former topic is not an offset that the stream has yet to read."""
    former = CommittedRange(0, 80, 80, 0, "id-0", leader_epoch=1)
    (found,) = compared(monkeypatch, former, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=2))
    assert (found.kind, found.count) == (FindingKind.NOT_COMPARED, 80)
    assert found.sentence.startswith("80 offsets are of a former topic of this name")


def test_a_deleted_topic_does_not_hide_the_truncated_log_of_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SourceIdentity("c1", {"t": "id-1", "u": "id-2"})
    ranges = {T0: (CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1),), U0: (CommittedRange(5, 9, 4, 0, "id-2"),)}
    absent, cut = compared_ranges(monkeypatch, ranges, source=known, leader_epochs={T0: 1})
    assert (absent.kind, absent.where, absent.count) == (FindingKind.NOT_COMPARED, "u", 4)
    assert (cut.kind, cut.where) == (FindingKind.LOG_TRUNCATED, "t-0")


def test_records_deleted_by_kafka_are_counted_from_committed_offsets_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StandInKafka, "earliest", lambda _, partitions: dict.fromkeys(partitions, 90))
    (found,) = compared(monkeypatch, CommittedRange(10, 60, 50, 0, "id-1", leader_epoch=2))
    assert (found.kind, found.count) == (FindingKind.NOT_COMPARED, 50)
    assert found.sentence == "50 committed records were not compared, because Kafka no longer has the records"


def test_only_committed_records_are_counted_among_those_that_kafka_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skipped gap was never committed."""
    monkeypatch.setattr(StandInKafka, "earliest", lambda _, partitions: dict.fromkeys(partitions, 40))
    ranges = (CommittedRange(10, 20, 8, 0, "id-1", leader_epoch=2), CommittedRange(30, 60, 30, 0, "id-1"))
    (found,) = compared(monkeypatch, *ranges)
    assert found.sentence == "18 committed records were not compared, because Kafka no longer has the records"


def test_a_topic_with_a_leaderless_partition_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer change of a key may be in that partition."""
    monkeypatch.setattr(StandInKafka, "leaderless", frozenset({T0}))
    (found,) = compared(monkeypatch, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1))
    assert (found.kind, found.where, found.count) == (FindingKind.NOT_COMPARED, "t", 60)
    assert "no leader" in found.sentence


def compared(monkeypatch: pytest.MonkeyPatch, *ranges: CommittedRange) -> list[Finding]:
    return compared_ranges(monkeypatch, {T0: ranges}, source=IDENTITY, leader_epochs={T0: ranges[-1].leader_epoch})


def compared_ranges(
    monkeypatch: pytest.MonkeyPatch,
    ranges: dict[TopicPartition, tuple[CommittedRange, ...]],
    *,
    differences: Callable[[SourceRecords], Iterator[Finding]] = lambda _: iter(()),
    **known: Any,
) -> list[Finding]:
    monkeypatch.setattr(kafka_source, "open_kafka", lambda _: nullcontext(StandInKafka()))
    monkeypatch.setattr(upserts, "_report_differences", differences)
    monkeypatch.setattr(ComparedTables, "load", lambda *_: ComparedTables({}, {}))
    marker: Any = SimpleNamespace(
        offsets={T0: 60, U0: 9}, rewritten={}, given_up={}, given_up_epoch=0, routed=None, **known
    )
    spec: Any = SimpleNamespace(name="orders", route=None, source=SimpleNamespace(reads=("t", "u")))
    tables: Any = None
    table: Any = SimpleNamespace(metadata=SimpleNamespace(refs={}, snapshots=[]))
    found = [*upserts._compare_with_kafka(spec, tables, table, marker, Claims(ranges))]
    assert [f.where for f in found if f.kind is FindingKind.NOT_COMMITTED] == ["orders"], "t-1 was never read"
    return [f for f in found if f.kind is not FindingKind.NOT_COMMITTED]


class Staged(Exception):
    pass


class Replay:
    spec = StreamSpec.model_validate(ORDERS)

    def stage(self, folder: Path) -> Any:
        raise Staged(folder.parent)


def test_records_are_staged_in_the_run_folder_also_where_the_stream_never_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    with pytest.raises(Staged) as found:
        list(_report_differences(Replay()))  # type: ignore[arg-type]
    assert found.value.args == (tmp_path / "home" / "streams" / "s",)


def test_only_records_that_kafka_still_has_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def differences(records: SourceRecords) -> Iterator[Finding]:
        read.append(dict(records.spans))
        return iter(())

    def compare(first: int) -> None:
        monkeypatch.setattr(StandInKafka, "earliest", lambda _, partitions: dict.fromkeys(partitions, first))
        once = CommittedRange(10, 60, 50, 0, "id-1", leader_epoch=2)
        compared_ranges(monkeypatch, {T0: (once,)}, differences=differences, source=IDENTITY, leader_epochs={T0: 2})

    compare(90)
    assert read == []
    compare(40)
    assert read == [{T0: [(40, 60)]}]


@pytest.mark.parametrize(
    ("rows", "said"),
    [(3, "2 changes have no row of their own"), (5, "(--source compares them)"), (None, "(--source compares them)")],
)
def test_changes_without_a_row_of_their_own_are_counted(rows: int | None, said: str) -> None:
    sentence = _values_not_compared(5, rows, "s").sentence
    assert said in sentence
    assert sentence.endswith("(--source compares them)") == (rows != 3)


@pytest.mark.parametrize(
    ("others", "deleted", "kind"),
    [
        (True, None, FindingKind.NOT_COMPARED),
        (True, 2, FindingKind.NOT_COMPARED),
        (True, 1, FindingKind.MISSING),
        (False, 2, FindingKind.MISSING),
    ],
)
def test_keys_are_missing_unless_another_stream_may_have_deleted_as_many(
    monkeypatch: pytest.MonkeyPatch, others: bool, deleted: int | None, kind: FindingKind
) -> None:
    monkeypatch.setattr(
        upserts, "_merge_without_commit", lambda *_: [(None, SimpleNamespace(counts=MergeCounts(inserted=2)))]
    )
    monkeypatch.setattr(upserts, "other_streams", lambda *_, **__: {"another"} if others else set())
    monkeypatch.setattr(upserts, "deleted_by_others", lambda *_: deleted)
    monkeypatch.setattr(upserts, "find_changed_keys", lambda *_, **__: ChangedKeys(inserted=KeyCount(2)))
    monkeypatch.setattr(upserts, "_open_reader", lambda _: None)
    replay: Any = SimpleNamespace(spec=Replay.spec, topics=set(), not_read=())
    table: Any = SimpleNamespace(properties={}, metadata=None)
    context: Any = SimpleNamespace(target=SimpleNamespace(schema=SCHEMA), rules=SimpleNamespace(key=("id",)))
    declared = DeclaredRules(RuleHashes(), {})
    (found,) = upserts._report_table_differences(replay, table, (), context, "s", declared=declared)
    assert (found.kind, found.count) == (kind, 2)


def test_a_partition_with_records_of_former_topics_alone_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = compared(monkeypatch, CommittedRange(0, 80, 80, 0, "id-0", leader_epoch=1))
    assert found.sentence.startswith("80 offsets are of a former topic of this name")
    assert found.sentence.endswith("use `--from` with a time after the topic was recreated"), "the reset has expired"


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([7], "1 record in Kafka has no row and is not a repeat: t-0 at offset 7"),
        ([7, 9], "2 records in Kafka have no row and are not repeats: t-0 at offsets 7, 9"),
    ],
)
def test_records_that_a_dedupe_table_is_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, offsets: list[int], said: str
) -> None:
    monkeypatch.setattr(upserts, "_merge_without_commit", lambda *_: [])
    monkeypatch.setattr(upserts, "_inserted_offsets", lambda *_: {T0: BitMap64(offsets)})
    mode: Any = SimpleNamespace(sinks=SimpleNamespace(mode=SimpleNamespace(replaces_rows=False)))
    rest: Any = None
    (found,) = upserts._report_table_differences(
        SimpleNamespace(spec=mode), rest, (), rest, "s", declared=DeclaredRules(RuleHashes(), {})
    )  # type: ignore[arg-type]
    assert (found.kind, found.count, found.sentence) == (FindingKind.MISSING, len(offsets), said)


@pytest.fixture
def world(tmp_path: Path, frazil_home: Path) -> Iterator[UpsertWorld]:  # noqa: ARG001
    with catalog_in(tmp_path) as catalog:
        yield upsert_world(catalog, tmp_path, BY_REGION)


def test_a_merge_without_commit_does_not_count_existing_keys_as_insertions(world: UpsertWorld) -> None:
    changes = [(number, ("eu", number)) for number in range(6)]
    world.upsert(world.begin(), changes)
    again = world.stage_changes(BatchKey(9, 1), [*changes, (6, ("eu", 6))])
    table = world.load()
    target = target_table(table, folder=f"{table.location()}/data/again")
    context = MergeContext(world.stream, MergeRules(("id",)), UPSERT_MODE.staging_target(target, ("id",)), target)
    done = upserts._merge_without_commit(table, again, context)
    assert sum((result.counts for _, result in done), MergeCounts()).inserted == 1


@pytest.mark.parametrize("window", [{}, {"complete": "hour"}])
def test_a_foreign_change_is_reported_with_signals_only_if_windows_are_declared(
    world: UpsertWorld, window: dict[str, str]
) -> None:
    world.upsert(world.begin(), [(number, ("eu", 0)) for number in range(3)])
    world.load().delete("id = 1")
    spec = StreamSpec.model_validate({**SPEC.model_dump(by_alias=True, exclude_unset=True), **window})
    (changed,) = (f for f in audit_upserts(spec, world.tables).findings if f.kind is FindingKind.CHANGED)
    assert ("Windows already signalled stay signalled" in changed.sentence) == bool(window)


def test_a_merge_without_commit_inserts_only_rows_that_the_dedupe_table_is_missing(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    with catalog_in(tmp_path) as catalog:
        made = repeated_world(catalog, tmp_path)
        made.batch(made.begin(), [(1, 0), (2, 0)])
        again = made.stage_rows(BatchKey(9, 1), [(1, 5), (3, 0)], 2)
        table = made.load()
        target = target_table(table, folder=f"{table.location()}/data/again")
        rules = MergeRules(("id",), event_time="at", within_us=WITHIN_US)
        context = MergeContext(made.stream, rules, DEDUPE_MODE.staging_target(target, ("id",)), target)
        done = upserts._merge_without_commit(table, again, context)
        assert upserts._inserted_offsets(done, again, context) == {("events", 0): BitMap64([3])}
