"""The audit of a routed stream: each record is in the default table, a routed table or the dead letters, once."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap64

from frazil.audit import declared_stream, source_records
from frazil.audit.claims import Claims, CommittedRange
from frazil.audit.declared_stream import audit_declared_stream
from frazil.audit.evidence import Evidence, RemainingOffsets
from frazil.audit.findings import Audit, Finding, FindingKind
from frazil.audit.routed_tables import (
    MAX_JOINED_PARTITIONS,
    PublishedReplays,
    RoutedRows,
    compare_table_counts,
    find_misplaced_rows,
    join_table_counts,
)
from frazil.audit.source_records import ComparedTables, SourceRecords, records_by_table
from frazil.audit.stream_audit import audit_stream
from frazil.commit.history import Period
from frazil.commit.marker import BatchKey
from frazil.ingest.contract import StageResult
from frazil.offsets.spans import offset_bitmap
from frazil.offsets.tally import OffsetTally, merge_tallies
from frazil.stream.stage_context import build_stage_context
from frazil.table.catalogs import load_catalog
from tests.made_routes import MadeRoute, shop

pytestmark = pytest.mark.usefixtures("frazil_home")

HOUR_MS = 3_600_000


@pytest.fixture
def made() -> MadeRoute:
    stream = MadeRoute(shop(), time.time_ns() // 1_000_000 + HOUR_MS)
    stream.begin_route("a", "b")
    return stream


def audited(made: MadeRoute, window: Period | None = None) -> Audit:
    return audit_stream(made.tables, window=window)


def error_findings(result: Audit) -> dict[str, str]:
    """Return the error findings by subject."""
    return {finding.where: finding.sentence for finding in result.errors}


def test_each_record_is_a_row_of_the_default_table_a_routed_table_or_a_dead_letter(made: MadeRoute) -> None:
    made.run({"main": 2, "shop.orders": 3, "shop.raw_a": 4}, rejected=1)
    made.run({"shop.raw_a": 1, "shop.raw_b": 5})
    found = audited(made)
    assert (found.clean, found.findings) == (True, ())
    (numbers,) = found.partitions
    assert (numbers.rows, numbers.distinct, numbers.dead_letters) == (15, 15, 1)


def test_a_table_with_missing_rows_is_reported(made: MadeRoute) -> None:
    made.run({"main": 2, "shop.orders": 3, "shop.raw_a": 4})
    load_catalog(None).load_table("shop.raw_a").delete("kafka_offset >= 7")
    found = audited(made)
    assert error_findings(found) == {
        "shop.raw_a": "the table has 2 rows, but commit records count 4. By partition: shop-0: the route is missing 2 "
        "rows that the commit records count, at offsets 7 to 8"
    }
    (note,) = (f for f in found.findings if f.kind is FindingKind.CHANGED)
    assert (note.where, note.count) == ("shop.raw_a", 1)
    assert "removed 2 rows (4 rewritten as 2)" in note.sentence


def test_a_row_in_the_wrong_table_is_reported_for_both_tables(made: MadeRoute) -> None:
    made.run({"shop.orders": 3, "shop.raw_a": 4})
    catalog = load_catalog(None)
    orders, other = catalog.load_table("shop.orders"), catalog.load_table("shop.raw_a")
    other.append(orders.scan(row_filter="kafka_offset = 1").to_arrow().select([f.name for f in other.schema().fields]))
    orders.delete("kafka_offset = 1")
    found = audited(made)
    assert error_findings(found) == {
        "shop.orders": "the table has 2 rows, but commit records count 3",
        "shop.raw_a": "the table has 5 rows, but commit records count 4",
    }


def test_a_row_in_the_wrong_table_is_not_explained_with_missing_dead_letters(made: MadeRoute) -> None:
    made.run({"shop.orders": 3, "shop.raw_a": 4}, rejected=2)
    catalog = load_catalog(None)
    orders, other = catalog.load_table("shop.orders"), catalog.load_table("shop.raw_a")
    other.append(orders.scan(row_filter="kafka_offset = 1").to_arrow().select([f.name for f in other.schema().fields]))
    orders.delete("kafka_offset = 1")
    made.tables.dead_letters.refresh().delete()
    found = error_findings(audited(made))
    assert found.keys() == {"shop.orders", "shop.raw_a", "shop-0"}
    assert found["shop.raw_a"] == "the table has 5 rows, but commit records count 4"
    assert "missing 2 dead letters" in found["shop-0"]


def test_a_row_in_two_tables_is_reported_as_one_row_too_many(made: MadeRoute) -> None:
    made.run({"main": 2, "shop.raw_a": 4})
    catalog = load_catalog(None)
    home, other = catalog.load_table("shop.other"), catalog.load_table("shop.raw_a")
    home.append(other.scan(row_filter="kafka_offset = 3").to_arrow().select([f.name for f in home.schema().fields]))
    found = audited(made)
    assert error_findings(found) == {
        "shop.other": "the table has 3 rows, but commit records count 2. By partition: shop-0: 1 row too many in the "
        "route, at offset 3"
    }


@pytest.mark.parametrize("partitions", [MAX_JOINED_PARTITIONS, MAX_JOINED_PARTITIONS + 1])
def test_a_count_by_table_is_joined_with_at_most_three_partitions(partitions: int) -> None:
    table = Finding(FindingKind.MISCOUNTED, partitions, "the table has 0 rows", "shop.raw_a")
    found = tuple(Finding(FindingKind.MISSING, 1, "1 record", f"shop-{number}") for number in range(partitions))
    joined, left = join_table_counts((table,), found, ())
    expected = ("; ".join(f"{one.where}: 1 record" for one in found), ()) if partitions < 4 else ("", found)
    assert (joined[-1].sentence.partition(". By partition: ")[2], left) == expected


def test_rows_that_wait_for_a_table_are_counted_and_reported(made: MadeRoute) -> None:
    made.run({"main": 1, "shop.raw_a": 1})
    made.batch({"main": 1, "shop.raw_a": 3})
    found = audited(made)
    assert found.clean
    assert [(f.kind, f.where, f.count) for f in found.findings] == [(FindingKind.UNCHECKED, "shop.raw_a", 3)]
    assert "3 rows are not yet committed to the table" in found.findings[0].sentence
    made.follow()
    assert audited(made).findings == ()


def test_rows_that_landed_after_the_default_table_was_read_are_not_reported_as_surplus(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"main": 1, "shop.raw_a": 1})
    before = made.tables.main.refresh()
    made.run({"main": 1, "shop.raw_a": 3})
    monkeypatch.setattr(type(made.tables.main), "refresh", _first_of(before, type(made.tables.main).refresh))
    assert audited(made).findings == ()


def _first_of(table: Any, real: Any) -> Any:
    return lambda handle: table if handle.identifier == "shop.other" else real(handle)


def test_the_audit_reports_a_dropped_table_and_a_missing_staged_file_of_a_table(made: MadeRoute) -> None:
    made.run({"main": 1, "shop.raw_a": 2, "shop.orders": 1})
    waiting = made.batch({"shop.raw_b": 2})
    (file,) = waiting.staged_for("shop.raw_b")
    made.tables.store_of("shop.raw_b").delete([file.path])
    load_catalog(None).drop_table("shop.raw_a")
    found = audited(made)
    sentences = [f"{f.where}: {f.sentence}" for f in found.errors]
    assert any(sentence.startswith("shop.raw_a: the table is not in the catalog 'default'") for sentence in sentences)
    assert "shop.raw_a: the table has 0 rows, but commit records count 2" in sentences
    assert any(s.startswith("shop.raw_b: a file whose rows wait for the table is missing") for s in sentences)


def test_rows_that_wait_for_a_table_that_was_dropped_are_not_missing(made: MadeRoute) -> None:
    made.run({"main": 1, "shop.orders": 1})
    made.batch({"shop.orders": 3})
    load_catalog(None).drop_table("shop.orders")
    found = audited(made)
    assert any(f.where == "shop.orders" and "is not in the catalog 'default'" in f.sentence for f in found.errors)
    counted_rows = (
        "the table has 0 rows, and 3 rows wait for it, but commit records count 4. By partition: shop-0: the route is "
        "missing 1 row that the commit records count, at offset 1"
    )
    assert counted_rows in [f.sentence for f in found.errors]
    assert any("3 rows are not yet committed to the table" in f.sentence for f in found.findings)


def test_a_period_is_audited_by_the_batches_of_its_time(made: MadeRoute) -> None:
    begin = made.now_ms
    for hour in range(3):
        made.now_ms = begin + hour * HOUR_MS
        made.run({"main": 1, "shop.raw_a": 2})
    load_catalog(None).load_table("shop.raw_a").delete("kafka_offset = 5")
    clean = [audited(made, Period(begin + h * HOUR_MS, begin + (h + 1) * HOUR_MS)) for h in range(3)]
    assert [(result.clean, result.batches) for result in clean] == [(True, 1), (False, 1), (True, 1)]
    assert "shop.raw_a" in error_findings(clean[1])


def test_a_table_that_the_route_no_longer_has_is_audited_too(made: MadeRoute) -> None:
    made.run({"main": 1, "shop.orders": 2})
    load_catalog(None).load_table("shop.orders").delete("kafka_offset = 2")
    made.spec = shop(route=None)
    assert "shop.orders" in error_findings(audited(made))


@pytest.mark.parametrize(("table", "value"), [("shop.orders", "order"), ("shop.raw_a", "a")])
def test_a_renamed_table_declared_by_its_new_name_is_audited_as_one_table(
    made: MadeRoute, table: str, value: str
) -> None:
    made.run({"main": 1, table: 2})
    begin, catalog = made.now_ms, load_catalog(None)
    for old, new in ((table, "shop.between"), ("shop.between", "shop.moved")):
        catalog.rename_table(old, new)
        assert "declare its new name in route.tables" in str(audited(made).errors)
        text = made.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)["route"]
        made.spec = shop(route={**text, "tables": {**text["tables"], value: new}})
        assert audit_declared_stream(made.spec, window=None, with_source=False).findings == (), "before any start"
        made.__dict__.pop("tables", None)
        made.begin_route()
        assert audited(made).findings == ()
    made.now_ms += HOUR_MS
    made.run({"shop.moved": 3})
    assert audited(made).findings == ()
    assert audited(made, Period(begin - 1000, begin + 1000)).clean
    catalog.load_table("shop.moved").delete("kafka_offset = 2")
    assert error_findings(audited(made)) == {
        "shop.moved": "the table has 4 rows, but commit records count 5. By partition: shop-0: the route is missing 1 "
        "row that the commit records count, at offset 2"
    }


def test_without_coordinates_the_default_table_alone_is_counted_and_that_is_reported(made: MadeRoute) -> None:
    made.run({"main": 2, "shop.orders": 3})
    found = audit_stream(made.tables, coordinates=False)
    assert (found.errors, found.complete, found.clean) == ((), False, False)
    assert "1 routed table was not counted" in found.findings[0].sentence


def test_without_coordinates_rows_may_be_those_of_a_stream_that_was_forgotten(made: MadeRoute) -> None:
    made.run({"main": 2})
    table = made.tables.main.refresh()
    table.append(table.scan().to_arrow())
    assert [f.kind for f in audit_stream(made.tables, coordinates=False).errors] == [FindingKind.MISCOUNTED]
    with table.transaction() as change:
        change.set_properties({"frazil.forgotten.others": "{}"})
    found = audit_stream(made.tables, coordinates=False)
    assert (found.errors, found.complete) == ((), False)
    assert any("1 other stream wrote to the table" in f.sentence for f in found.findings)


@pytest.mark.parametrize("follows", [True, False])
def test_an_audit_of_routed_tables_is_clean_after_any_batches_committed_to_all_tables_or_not(
    made: MadeRoute, *, follows: bool
) -> None:
    chance = Random(follows)
    for _ in range(12):
        targets = chance.sample(["main", "shop.orders", "shop.raw_a", "shop.raw_b"], chance.randint(0, 4))
        made.batch({target: chance.randint(1, 4) for target in targets}, rejected=chance.randint(0, 1))
        if follows and chance.random() < 0.5:
            made.follow()
    found = audited(made)
    assert found.clean, found.findings
    assert sum(p.rows + p.dead_letters for p in found.partitions) == made.at


SHOP = ("shop", 0)


def counted(
    claimed: Claims, routed: list[RoutedRows], replays: PublishedReplays, home_rows: int
) -> list[tuple[Any, ...]]:
    """Return the findings for a default table with this many rows, from offset 0 on, and routed tables."""
    found = compare_table_counts(("shop.other", {SHOP: OffsetTally(range(home_rows))}), routed, claimed, replays)
    return [(finding.kind, finding.where, finding.count) for finding in found]


def test_rows_of_replays_count_for_the_tables_that_have_them() -> None:
    claimed = Claims({SHOP: (CommittedRange(0, 6, 6, 2, "id-1"),)}, records=4, rejected=2, routed={"shop.orders": 1})
    orders = RoutedRows("shop.orders", {SHOP: OffsetTally([3, 5])})
    replays = PublishedReplays({SHOP: BitMap64([4, 5, 99])}, {"shop.orders": {SHOP: BitMap64([5])}})
    assert counted(claimed, [orders], replays, home_rows=4) == []
    assert counted(claimed, [orders], replays, home_rows=3) == [(FindingKind.MISCOUNTED, "shop.other", 1)]


def test_a_renamed_routed_table_without_rows_is_not_a_finding() -> None:
    claimed = Claims({SHOP: (CommittedRange(0, 3, 3, 0, "id-1"),)}, records=3)
    renamed = RoutedRows("shop.orders", {}, renamed="shop.moved")
    assert counted(claimed, [renamed], PublishedReplays(), home_rows=3) == []


def test_rows_in_the_wrong_routed_table_are_named_by_their_coordinates() -> None:
    """Rows of a former topic of the same name may have the same offsets."""
    home, orders = {SHOP: OffsetTally(range(3))}, {SHOP: OffsetTally([3, 4])}
    placed = {"main": {SHOP: OffsetTally([0, 1])}, "shop.orders": {SHOP: OffsetTally([2, 3, 4])}}
    current, former = CommittedRange(0, 5, 5, 0, "id-1"), CommittedRange(2, 3, 1, 0, "id-0")
    found = []
    for ranges in ((current,), (current, former)):
        rows = merge_tallies([home, orders])[SHOP]
        evidence = Evidence("shop", 0, 5, "id-1", ranges, rows, OffsetTally(), RemainingOffsets(0, offset_bitmap(0, 5)))
        routed = [RoutedRows("shop.orders", orders)]
        counts = {"shop.other": (3, 2), "shop.orders": (2, 3)}
        found.append([*find_misplaced_rows([evidence], ("shop.other", home), routed, placed, counts)])
    assert [(f.kind, f.where, f.count, f.sentence) for of in found for f in of] == [
        (
            FindingKind.MISCOUNTED,
            "shop.other",
            1,
            "the table has 1 row that the route, as declared now, sends to table shop.orders: shop-0 at offset 2",
        )
    ]


def test_a_moved_row_is_not_compared_if_commit_records_count_as_many_rows_as_the_table() -> None:
    """They do after a backfill landed a deleted row of the table again: its record is counted twice."""
    orders, default = {SHOP: OffsetTally([0, 1, 2])}, {SHOP: OffsetTally([3])}
    placed = {"main": {SHOP: OffsetTally([2, 3])}, "shop.orders": {SHOP: OffsetTally([0, 1])}}
    ranges = (CommittedRange(0, 4, 4, 0, "id-1"), CommittedRange(1, 2, 1, 0, "id-1"))
    rows = merge_tallies([default, orders])[SHOP]
    evidence = Evidence("shop", 0, 4, "id-1", ranges, rows, OffsetTally(), RemainingOffsets(0, offset_bitmap(0, 4)))
    routed, counts = [RoutedRows("shop.orders", orders)], {"shop.other": (1, 2), "shop.orders": (3, 3)}
    (found,) = find_misplaced_rows([evidence], ("shop.other", default), routed, placed, counts)
    assert (found.kind, found.where, found.count) == (FindingKind.NOT_COMPARED, "shop.orders", 1)
    assert "shop-0 at offset 2. An earlier declaration of the route may have written them" in found.sentence


def test_rows_of_a_recreated_topic_are_counted_in_addition_to_those_of_the_former_topic(made: MadeRoute) -> None:
    """Rows of the former topic are in tables, and at offsets, that the new topic has not reached."""
    begin = made.now_ms
    made.run({"main": 20, "shop.orders": 30, "shop.raw_a": 50}, rejected=4)
    made.run({"main": 10, "shop.raw_b": 40})
    made.now_ms += HOUR_MS
    made.topic_id, made.at = "topic-2", 0
    made.reset({0: 0})
    assert audited(made).errors == (), "before a commit"
    made.run({"shop.orders": 12, "main": 18})
    found = audited(made)
    assert found.errors == ()
    (numbers,) = found.partitions
    assert (numbers.rows, numbers.distinct, numbers.of_former_topics) == (180, 180, 150)

    before, after = Period(begin - 1, begin + HOUR_MS), Period(begin + HOUR_MS, begin + 2 * HOUR_MS)
    counted = []
    for period in (before, after):
        of_period = audited(made, period)
        assert of_period.errors == ()
        assert any("the topic was recreated" in f.sentence for f in of_period.findings)
        counted += [(p.rows, p.distinct, p.dead_letters, p.of_former_topics) for p in of_period.partitions]
    assert counted == [(150, 150, 4, 150), (30, 30, 0, 0)]

    load_catalog(None).load_table("shop.other").delete("kafka_offset < 12")  # where the new topic has other tables
    assert audited(made, after).errors == ()
    assert any("may be of a former topic" in f.sentence for f in audited(made, after).findings)
    assert audited(made).errors, "all commits are counted together"

    load_catalog(None).load_table("shop.raw_b").delete("kafka_offset >= 150")
    assert error_findings(audited(made)) == {
        "shop-0": "the route is missing 16 rows that the commit records count, first between offsets 0 and 103; "
        "`--source` names them"
    }
    assert audited(made, before).errors
    assert not audited(made, after).errors


def test_rows_that_land_during_the_audit_at_offsets_of_a_former_topic_are_not_surplus(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"main": 10, "shop.raw_a": 50})
    made.topic_id, made.at = "topic-2", 0
    made.reset({0: 0})
    made.run({"shop.raw_a": 20})
    before = [made.tables.main.refresh()]
    made.run({"shop.raw_a": 20})
    real = type(made.tables.main).refresh

    def refresh(handle: Any) -> Any:
        return before.pop() if before and handle.identifier == "shop.other" else real(handle)

    monkeypatch.setattr(type(made.tables.main), "refresh", refresh)
    assert audited(made).errors == ()


def test_all_offsets_that_kafka_still_has_are_located_if_some_were_committed_twice(made: MadeRoute) -> None:
    made.run({"main": 2, "shop.orders": 3})
    made.at = 0
    made.reset({0: 0})
    made.run({"main": 2, "shop.orders": 3})
    placed: list[Any] = []

    def place(_: object, __: object, spans: Any) -> dict[str, Any]:
        placed.append(dict(spans))
        return {}

    def ask(*_: object, **__: object) -> Any:
        return {("shop", 0): RemainingOffsets(1, BitMap64(range(1, 5)))}, ()

    audit_stream(made.tables, find_remaining_offsets=ask, assign=place)
    assert placed == [{("shop", 0): (1, 5)}]


def test_a_period_is_audited_without_the_records_after_the_position(
    made: MadeRoute, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[bool] = []

    def ask(*_: object, report_uncommitted: bool) -> tuple[dict[Any, Any], tuple[()]]:
        requested.append(report_uncommitted)
        return {}, ()

    monkeypatch.setattr(declared_stream, "find_remaining_offsets", ask)
    made.run({"main": 2})
    for window in (None, Period(0, made.now_ms + 1)):
        audit_declared_stream(made.spec, window=window, with_source=True)
    assert requested == [True, False]


def test_records_are_staged_for_the_tables_of_each_value(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"main": 2})
    main, key, folder = made.tables.main.refresh(), BatchKey(9, 1), str(tmp_path)
    files = made.write(main, key, "main", {0: [0, 1]}, folder=folder)
    files += made.write(made.tables.dead_letters.refresh(), key, "dead-letters", {0: [2]}, folder=folder)
    staged = StageResult(files=files, progress=())
    monkeypatch.setattr(SourceRecords, "stage", lambda *_: (staged, None))
    assert ComparedTables.load(made.spec, made.tables, main, made.home()).by_value == {
        "order": "shop.orders",
        "a": "shop.raw_a",
        "b": "shop.raw_b",
    }
    context = build_stage_context(made.spec, made.tables, key, kafka_properties={}, topic_ids={})
    sinks = ComparedTables.load(made.spec, made.tables, main, made.home())
    sinks = dataclasses.replace(sinks, by_value={**sinks.by_value, "gone": "shop.raw_gone"})
    targets = sinks.add_route(made.spec, context).targets
    assert (targets["shop.raw_a"].folder, targets["shop.raw_gone"]) == ("", context.main)
    found = records_by_table(made.spec, made.tables, main, made.home(), {("shop", 0): (0, 3)})
    assert {target: sorted(tallies["shop", 0].seen) for target, tallies in found.items()} == {"main": [0, 1]}


def test_each_table_that_kafkas_records_are_not_compared_with_is_one_finding(made: MadeRoute) -> None:
    made.run({"main": 1, "shop.orders": 2})
    made.batch({"shop.raw_b": 3})
    load_catalog(None).drop_table("shop.orders")
    found = ComparedTables.load(made.spec, made.tables, made.tables.main.refresh(), made.home())
    assert found.tables.keys() == {"main", "shop.raw_a"}
    assert [(f.kind, f.where, f.count) for f in found.findings] == [
        (FindingKind.NOT_COMPARED, name, 1) for name in ("shop.orders", "shop.raw_b")
    ]


def test_the_audit_stages_a_dead_letter_again_as_a_dead_letter(
    made: MadeRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.run({"main": 2}, rejected=1)
    staged: list[Any] = []
    monkeypatch.setattr(source_records, "stage", lambda *given, **_: staged.append(given))
    sinks = ComparedTables.load(made.spec, made.tables, made.tables.main.refresh(), made.home())
    spans = {("shop", 0): [(0, 1), (2, 3)]}
    SourceRecords(made.spec, made.tables, sinks, made.source.topic_ids, spans).stage(tmp_path)
    ((context, task),) = staged
    assert [(r.start, r.end) for r in task.ranges] == [(0, 1), (2, 3)]
    letters = {tp: sorted(BitMap64.deserialize(data)) for tp, data in context.existing_dead_letters.items()}
    assert letters == {("shop", 0): [2]}
