"""What a page tells of dead letters after replays and discards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyiceberg.table.snapshots import Snapshot, Summary

from frazil.commit.letter_counts import HOUR_MS, Changes, letters_in, letters_summary
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


def replayed(
    at_ms: int, stream: str = "orders", *, rejected_ms: int = NOW_MS - 900, **more: int
) -> tuple[int, dict[str, str]]:
    told = {"frazil.operation": "replay", "frazil.backfill": "l", "frazil.backfill-stream": stream}
    return at_ms, {**told, **letters_summary(by_hour(rejected_ms, **more))}


def by_hour(rejected_ms: int, **more: int) -> Changes:
    return {(name, rejected_ms // HOUR_MS): change for name, change in more.items()}


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
    letters = snapshots((NOW_MS - 500, {**told, **letters_summary(by_hour(NOW_MS - 900, NotJson=-5))}))
    treatments = treated(letters, MAIN, "orders", since_ms=BEGIN_MS)
    found = {one.reason: one for one in rejected_of(MAIN, "orders", treatments, now_ms=NOW_MS)}
    assert (found["NotJson"].count, found["NotJson"].there, found["NotJson"].places) == (3, 0, ())
    later = Happened(NOW_MS, Kind.STALL, "stalled")
    discarded = Happened(NOW_MS - 500, Kind.LETTERS, "dead letters were discarded by ada: a test")
    assert with_treatments([later], treatments) == (discarded, later)


def left(main: Any, *letters: tuple[int, dict[str, str]]) -> tuple[int, int]:
    """How many records were rejected for one reason, and how many of them are dead letters."""
    treatments = treated(snapshots(*letters), main, "orders", since_ms=BEGIN_MS)
    (found,) = rejected_of(main, "orders", treatments, now_ms=NOW_MS)
    return found.count, found.there


TEN = Reason(10, ("orders[0]@1",))


def test_a_treatment_of_letters_that_the_day_left_behind_takes_none_that_were_rejected_in_it():
    before_ms = BEGIN_MS - HOUR_MS
    taken = replayed(NOW_MS - HOUR_MS, rejected_ms=before_ms, NotJson=-10)
    later = batch(NOW_MS - HOUR_MS // 2, NotJson=TEN)
    assert left(snapshots(batch(before_ms, NotJson=TEN), later), taken) == (10, 10)
    sooner = batch(NOW_MS - 2 * HOUR_MS, NotJson=TEN)
    assert left(snapshots(batch(before_ms, NotJson=TEN), sooner), taken) == (10, 10), "rejected before the treatment"
    assert left(snapshots(sooner), taken) == (10, 10), "the snapshot of those that were treated has expired"


def test_of_the_hour_in_which_the_day_begins_no_more_is_taken_than_was_rejected_in_its_rest():
    taken = replayed(NOW_MS - HOUR_MS, rejected_ms=BEGIN_MS, NotJson=-30)
    before, rest = batch(BEGIN_MS - 1_000, NotJson=TEN), batch(BEGIN_MS + 1_000, NotJson=TEN)
    late = batch((BEGIN_MS // HOUR_MS + 1) * HOUR_MS + 1_000, NotJson=TEN)  # it was rejected before the full hour
    others = batch(NOW_MS - 2 * HOUR_MS, NotJson=TEN)
    assert left(snapshots(before, rest, others), taken) == (20, 10)
    assert left(snapshots(before, rest, late, others), taken) == (30, 10)


def test_a_summary_that_would_be_too_long_tells_hours_together_and_at_last_nothing():
    for classes, hours in ((1, 24), (8, 6), (20, 3), (60, 0)):
        changed = {(f"Class{one:02}", 480_000 + hour): -100_000 for one in range(classes) for hour in range(24)}
        told = letters_in(letters_summary(changed))
        assert len(told) == classes * hours
        assert not told or sum(told.values()) == sum(changed.values())


def test_without_a_table_of_dead_letters_or_with_one_that_others_changed_all_are_there():
    told = ({"frazil.letters-by": said, "frazil.dead-letters-of": "orders"} for said in ("[1]", '{"NotJson":-3}'))
    for letters in (None, *(snapshots((NOW_MS - 500, one)) for one in told)):
        treatments = treated(letters, MAIN, "orders", since_ms=BEGIN_MS)
        assert [one.there for one in rejected_of(MAIN, "orders", treatments, now_ms=NOW_MS)] == [13, 3]
