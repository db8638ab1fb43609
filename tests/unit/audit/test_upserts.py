"""What the audit of an upsert says about keys that a merge of all records would change."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.audit import upserts
from frazil.audit.changed_keys import ChangedKeys
from frazil.audit.claims import Claims
from frazil.audit.findings import Finding, FindingKind
from frazil.audit.ranges import CommittedRange
from frazil.audit.source_records import ComparedTables
from frazil.audit.upserts import _report_differences, _report_keys, _report_offsets_read_again
from frazil.kafka.identity import SourceIdentity
from frazil.merge.contract import MergeCounts
from frazil.offsets.spans import TopicPartition
from frazil.spec.model import StreamSpec
from tests.unit.audit.test_source import IDENTITY, T0, StandInKafka
from tests.unit.ingest.test_changes import ORDERS

U0 = ("u", 0)


@pytest.mark.parametrize("order_by", ["at", None])
def test_a_row_that_an_older_change_brought_back_is_explained_where_there_is_an_order(order_by: str | None) -> None:
    spec = StreamSpec.model_validate({**ORDERS, "order-by": order_by})
    keys = ChangedKeys(inserted=({"ref": "a"},), deleted=({"ref": "b"}, {"ref": "c"}))
    inserted, deleted = _report_keys(MergeCounts(inserted=1, deleted=3), keys, spec, "orders")
    again = "To merge Kafka's records again, run `frazil reset s --to earliest`, then start the stream"
    assert inserted.sentence == (
        f"1 key (ref a): each is not in the table, although Kafka's newest record of the key is not a delete. {again}"
    )
    assert deleted.kind is FindingKind.UNCLAIMED
    assert deleted.keys == keys.deleted
    assert deleted.sentence.startswith(
        "3 keys (ref b; ref c; …): each is in the table, although Kafka's newest record of the key is a delete"
    )
    assert ("an older change in a later batch than the delete" in deleted.sentence) == bool(order_by)


def test_offsets_that_were_committed_again_are_reported_for_their_topic_partition() -> None:
    def ranges(*spans: tuple[int, int], topic_id: str = "a") -> tuple[CommittedRange, ...]:
        return tuple(CommittedRange(start, end, end - start, 0, topic_id) for start, end in spans)

    once = ranges((0, 10), (10, 31), (31, 31))
    made_again = (*once, *ranges((0, 31), topic_id="b"))
    thrice = ranges((0, 10), (10, 31), (5, 31), (20, 31))
    (found,) = _report_offsets_read_again(Claims({("t", 0): once, ("t", 1): made_again, ("t", 2): thrice}))
    assert (found.kind, found.where, found.count, found.kind.is_wrong) == (FindingKind.READ_AGAIN, "t-2", 26, False)
    assert found.sentence == (
        "26 offsets were committed more than once, for example after a reset: "
        "their changes and dead letters are counted each time"
    )


def test_a_log_that_was_cut_below_what_was_merged_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older records in the place of newer ones change nothing by `order-by`, so a merge would not notice."""
    (found,) = compared(monkeypatch, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1))
    assert (found.kind, found.where) == (FindingKind.LOG_CUT, "t-0")
    assert "truncated at offset 40" in found.sentence


def test_what_a_former_topic_of_the_name_had_says_nothing_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the former topic is not an offset that the stream has yet to read."""
    former = CommittedRange(0, 80, 80, 0, "id-0", leader_epoch=1)
    (found,) = compared(monkeypatch, former, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=2))
    assert (found.kind, found.count) == (FindingKind.NOT_COMPARED, 80)
    assert found.sentence.startswith("80 offsets are of a former topic of this name")


def test_a_deleted_topic_hides_no_log_of_another_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SourceIdentity("c1", {"t": "id-1", "u": "id-2"})
    ranges = {T0: (CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1),), U0: (CommittedRange(5, 9, 4, 0, "id-2"),)}
    absent, cut = compared_ranges(monkeypatch, ranges, source=known, leader_epochs={T0: 1})
    assert (absent.kind, absent.where, absent.count) == (FindingKind.NOT_COMPARED, "u", 4)
    assert (cut.kind, cut.where) == (FindingKind.LOG_CUT, "t-0")


def test_the_extent_of_what_kafka_deleted_is_in_offsets_and_none_of_them_is_yet_to_be_read(
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


def test_a_topic_with_a_partition_that_nobody_leads_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer change of a key may be in that partition."""
    monkeypatch.setattr(StandInKafka, "leaderless", frozenset({T0}))
    (found,) = compared(monkeypatch, CommittedRange(0, 60, 60, 0, "id-1", leader_epoch=1))
    assert (found.kind, found.where, found.count) == (FindingKind.NOT_COMPARED, "t", 60)
    assert "no broker leads" in found.sentence


def compared(monkeypatch: pytest.MonkeyPatch, *ranges: CommittedRange) -> list[Finding]:
    return compared_ranges(monkeypatch, {T0: ranges}, source=IDENTITY, leader_epochs={T0: ranges[-1].leader_epoch})


def compared_ranges(
    monkeypatch: pytest.MonkeyPatch, ranges: dict[TopicPartition, tuple[CommittedRange, ...]], **known: Any
) -> list[Finding]:
    monkeypatch.setattr(upserts, "open_kafka", lambda _: nullcontext(StandInKafka()))
    monkeypatch.setattr(upserts, "_report_differences", lambda _: iter(()))
    monkeypatch.setattr(ComparedTables, "load", lambda *_: ComparedTables({}, {}))
    marker: Any = SimpleNamespace(
        offsets={T0: 60, U0: 9}, rewritten={}, given_up={}, given_up_epoch=0, routed=None, **known
    )
    spec: Any = SimpleNamespace(name="orders", route=None, source=SimpleNamespace(reads=("t", "u")))
    tables: Any = None
    found = [*upserts._compare_with_kafka(spec, tables, tables, marker, Claims(ranges))]
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
