"""What a page tells of dead letters after replays and discards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyiceberg.table.snapshots import Snapshot, Summary

from frazil.commit.letter_counts import letters_summary
from frazil.commit.reasons import Reason, reasons_summary
from frazil.history.points import Happened, Kind
from frazil.operations.letters import Rejected, rejected_of, treated, with_treatments
from frazil.status.flow import DAY_MS

NOW_MS = 1_700_000_000_000
BEGIN_MS = NOW_MS - DAY_MS


def snapshots(*told: tuple[int, dict[str, str]]) -> Any:
    """The metadata of a table with these, oldest first, each with its time."""
    made = [
        Snapshot(
            **{"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "sequence-number": n, "timestamp-ms": at_ms},
            manifest_list="m",
            summary=Summary("append", **summary),
        )
        for n, (at_ms, summary) in enumerate(told, start=1)
    ]
    refs = {"main": SimpleNamespace(snapshot_id=len(made))}
    return SimpleNamespace(snapshots=made, snapshot_by_id=lambda n: made[n - 1], refs=refs)


def batch(at_ms: int, **found: Reason) -> tuple[int, dict[str, str]]:
    return at_ms, {"frazil.stream": "orders", "frazil.commit-record": "r", **reasons_summary(found)}


def published(at_ms: int) -> tuple[int, dict[str, str]]:
    counts = {"frazil.records": "9", "frazil.rejected": "3"}
    return at_ms, {"frazil.operation": "backfill", "frazil.backfill": "l", "frazil.backfill-stream": "orders", **counts}


def replayed(at_ms: int, stream: str = "orders", **more: int) -> tuple[int, dict[str, str]]:
    told = {"frazil.operation": "replay", "frazil.backfill": "l", "frazil.backfill-stream": stream}
    return at_ms, {**told, **letters_summary(more)}


MAIN = snapshots(
    batch(NOW_MS - 900, TypeMismatch=Reason(12, ("orders[0]@0", "orders[0]@1")), NotJson=Reason(3, ("orders[0]@7",))),
    published(NOW_MS - 800),
    batch(NOW_MS - 600, TypeMismatch=Reason(1, ("orders[0]@99",))),
)


def test_what_a_replay_took_out_is_there_no_more_and_names_no_place():
    letters = snapshots(
        replayed(NOW_MS - DAY_MS - 1, TypeMismatch=-100),
        replayed(NOW_MS - 790, TypeMismatch=-12, MissingField=3),
        replayed(NOW_MS - 700, stream="others", NotJson=-3),
    )
    treatments = treated(letters, MAIN, "orders", since_ms=BEGIN_MS)
    assert rejected_of(MAIN, "orders", treatments, now_ms=NOW_MS) == [
        Rejected("TypeMismatch", 13, ("orders[0]@99",), 1),
        Rejected("NotJson", 3, ("orders[0]@7",), 3),
        Rejected("MissingField", 0, (), 3),
    ]
    assert [one.sentence for one in treatments] == ["dead letters were replayed: 9 records landed, 3 failed again"]


def test_a_discard_is_told_with_who_and_why_and_no_less_than_none_are_there():
    told = {"frazil.dead-letters-of": "orders", "frazil.discarded-by": "ada", "frazil.reason": "a test"}
    letters = snapshots((NOW_MS - 500, {**told, **letters_summary({"NotJson": -5})}))
    treatments = treated(letters, MAIN, "orders", since_ms=BEGIN_MS)
    found = {one.reason: one for one in rejected_of(MAIN, "orders", treatments, now_ms=NOW_MS)}
    assert (found["NotJson"].count, found["NotJson"].there, found["NotJson"].places) == (3, 0, ())
    later = Happened(NOW_MS, Kind.STALL, "stalled")
    discarded = Happened(NOW_MS - 500, Kind.LETTERS, "dead letters were discarded by ada: a test")
    assert with_treatments([later], treatments) == (discarded, later)


def test_a_treatment_of_letters_that_the_day_left_behind_takes_none_that_were_rejected_since():
    main = snapshots(
        batch(BEGIN_MS - 100, NotJson=Reason(10, ("orders[0]@1",))),
        batch(NOW_MS - 50, NotJson=Reason(10, ("orders[0]@99",))),
        batch(NOW_MS - 10, NotJson=Reason(1, ("orders[0]@100",))),
    )
    letters = snapshots(replayed(NOW_MS - 60, NotJson=-10), replayed(NOW_MS - 20, NotJson=-4))
    treatments = treated(letters, main, "orders", since_ms=BEGIN_MS)
    (found,) = rejected_of(main, "orders", treatments, now_ms=NOW_MS)
    assert found == Rejected("NotJson", 11, ("orders[0]@100",), 7)


def test_without_a_table_of_dead_letters_or_with_one_that_others_changed_all_are_there():
    for letters in (None, snapshots((NOW_MS - 500, {"frazil.letters-by": "[1]", "frazil.dead-letters-of": "orders"}))):
        treatments = treated(letters, MAIN, "orders", since_ms=BEGIN_MS)
        assert [one.there for one in rejected_of(MAIN, "orders", treatments, now_ms=NOW_MS)] == [13, 3]
