"""What a page shows about dead letters after replays and discards."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Snapshot, Summary

from frazil.commit import dead_letter_counts
from frazil.commit.dead_letter_counts import (
    BUCKET_HOURS,
    HOUR_MS,
    MAX_REASONS,
    Counts,
    Reason,
    count_recent,
    dead_letter_summary,
    parse_dead_letter_summary,
    parse_reasons,
    reasons_summary,
    span_start,
)
from frazil.history.points import EventKind, HistoryEvent
from frazil.operations.dead_letters import (
    USUAL_COMMIT_DELAY_MS,
    RejectedRecords,
    count_rejected,
    find_treatments,
    merge_treatments,
)
from frazil.status.recent_commits import DAY_MS

NOW_MS = 1_700_000_000_000
BEGIN_MS = NOW_MS - DAY_MS


def snapshots(*reported: tuple[int, dict[str, str]]) -> Any:
    """Return table metadata with these snapshots, oldest first, each with its time."""
    made = [
        Snapshot(
            **{"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "sequence-number": n, "timestamp-ms": at_ms},
            manifest_list="m",
            summary=Summary("append", **summary),
        )
        for n, (at_ms, summary) in enumerate(reported, start=1)
    ]
    refs = {"main": SimpleNamespace(snapshot_id=len(made))}
    return SimpleNamespace(snapshots=made, snapshot_by_id=lambda n: made[n - 1], refs=refs)


def batch(at_ms: int, **found: Reason) -> tuple[int, dict[str, str]]:
    return at_ms, {"frazil.stream": "orders", "frazil.commit-record": "r", **reasons_summary(found)}


def published_summaries(at_ms: int) -> tuple[int, dict[str, str]]:
    counts = {"frazil.records": "9", "frazil.rejected": "3"}
    return at_ms, {"frazil.operation": "backfill", "frazil.backfill": "l", "frazil.backfill-stream": "orders", **counts}


def replayed(
    at_ms: int, stream: str = "orders", *, rejected_ms: int = NOW_MS - 900, **more: int
) -> tuple[int, dict[str, str]]:
    reported = {"frazil.operation": "replay", "frazil.backfill": "l", "frazil.backfill-stream": stream}
    return at_ms, {**reported, **dead_letter_summary(by_hour(rejected_ms, **more))}


def by_hour(rejected_ms: int, **more: int) -> Counts:
    return {(name, rejected_ms // HOUR_MS): change for name, change in more.items()}


MAIN = snapshots(
    batch(NOW_MS - 900, TypeMismatch=Reason(12, ("orders[0]@0", "orders[0]@1")), NotJson=Reason(3, ("orders[0]@7",))),
    published_summaries(NOW_MS - 800),
    batch(NOW_MS - 600, TypeMismatch=Reason(1, ("orders[0]@99",))),
)


def test_replayed_dead_letters_are_no_longer_counted_and_have_no_location():
    dead_letters = snapshots(
        replayed(NOW_MS - DAY_MS - 1, TypeMismatch=-100),
        replayed(NOW_MS - 790, TypeMismatch=-12, MissingField=3),
        replayed(NOW_MS - 700, stream="others", NotJson=-3),
    )
    treatments = find_treatments(dead_letters, MAIN, "orders", since_ms=BEGIN_MS)
    assert count_rejected(MAIN, "orders", treatments, now_ms=NOW_MS) == [
        RejectedRecords("TypeMismatch", 13, ("orders[0]@99",), 1),
        RejectedRecords("NotJson", 3, ("orders[0]@7",), 3),
        RejectedRecords("MissingField", 0, (), 3),
    ]
    assert [one.sentence for one in treatments] == ["dead letters were replayed: 9 records landed, 3 failed again"]


def test_dead_letters_that_repeated_a_row_are_not_reported_as_landed():
    at_ms, summary = published_summaries(NOW_MS - 800)
    main = snapshots((at_ms, {**summary, "frazil.repeated": "2"}))
    (treatment,) = find_treatments(snapshots(replayed(NOW_MS - 790)), main, "orders", since_ms=BEGIN_MS)
    assert treatment.sentence == (
        "dead letters were replayed: 7 records landed, 2 repeated a row and were dropped, 3 failed again"
    )


def test_a_discard_is_reported_with_user_and_reason_and_remaining_counts_are_never_negative():
    reported = {"frazil.dead-letters-of": "orders", "frazil.discarded-by": "ada", "frazil.reason": "a test"}
    dead_letters = snapshots((NOW_MS - 500, {**reported, **dead_letter_summary(by_hour(NOW_MS - 900, NotJson=-5))}))
    treatments = find_treatments(dead_letters, MAIN, "orders", since_ms=BEGIN_MS)
    found = {one.reason: one for one in count_rejected(MAIN, "orders", treatments, now_ms=NOW_MS)}
    assert (found["NotJson"].count, found["NotJson"].remaining, found["NotJson"].coordinates) == (3, 0, ())
    later = HistoryEvent(NOW_MS, EventKind.STALL, "stalled")
    discarded = HistoryEvent(NOW_MS - 500, EventKind.DEAD_LETTERS, "dead letters were discarded by ada: a test")
    assert merge_treatments([later], treatments) == (discarded, later)


def left(main: Any, *dead_letters: tuple[int, dict[str, str]]) -> tuple[int, int]:
    """Return the number of records rejected for one reason, and how many of them are still dead letters."""
    treatments = find_treatments(snapshots(*dead_letters), main, "orders", since_ms=BEGIN_MS)
    (found,) = count_rejected(main, "orders", treatments, now_ms=NOW_MS)
    return found.count, found.remaining


TEN = Reason(10, ("orders[0]@1",))


def test_replays_of_older_dead_letters_are_not_counted_against_those_rejected_in_the_last_day():
    before_ms = BEGIN_MS - HOUR_MS
    taken = replayed(NOW_MS - HOUR_MS, rejected_ms=before_ms, NotJson=-10)
    later = batch(NOW_MS - HOUR_MS // 2, NotJson=TEN)
    assert left(snapshots(batch(before_ms, NotJson=TEN), later), taken) == (10, 10)
    sooner = batch(NOW_MS - 2 * HOUR_MS, NotJson=TEN)
    assert left(snapshots(batch(before_ms, NotJson=TEN), sooner), taken) == (10, 10), "rejected before the treatment"
    assert left(snapshots(sooner), taken) == (10, 10), "the snapshot of those that were treated has expired"


def test_a_replay_in_the_first_hour_of_the_day_counts_at_most_that_hours_rejected_records():
    taken = replayed(NOW_MS - HOUR_MS, rejected_ms=BEGIN_MS, NotJson=-30)
    before, rest = batch(BEGIN_MS - 1_000, NotJson=TEN), batch(BEGIN_MS + 1_000, NotJson=TEN)
    late = batch((BEGIN_MS // HOUR_MS + 1) * HOUR_MS + 1_000, NotJson=TEN)  # it was rejected before the full hour
    others = batch(NOW_MS - 2 * HOUR_MS, NotJson=TEN)
    assert left(snapshots(before, rest, others), taken) == (20, 10)
    assert left(snapshots(before, rest, late, others), taken) == (30, 10)


@pytest.mark.parametrize(
    ("classes", "span", "spans"), [(1, 1, 36), (8, 4, 9), (MAX_REASONS, 12, 3), (2 * MAX_REASONS, 1, 0)]
)
def test_a_dead_letter_summary_that_would_be_too_long_combines_hours_and_then_omits_them(
    classes: int, span: int, spans: int
) -> None:
    changed = {(f"ErrorClass{one:02}", 480_000 + hour): -8_000 for one in range(classes) for hour in range(36)}
    reported = parse_dead_letter_summary(dead_letter_summary(changed))
    assert (reported.span, len(reported.by)) == (span, classes * spans)
    assert not reported.by or sum(reported.by.values()) == sum(changed.values())


class World:
    """A stream's dead letters by time of rejection and error class, and the snapshots that count them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.dead_letters = draw, list[tuple[int, str]]()
        self.main, self.treatments = list[tuple[int, dict[str, str]]](), list[tuple[int, dict[str, str]]]()

    def reject(self, now_ms: int) -> None:
        """Reject the records of a batch that took a while to commit."""
        found = [
            (now_ms - self.draw.randrange(USUAL_COMMIT_DELAY_MS), self.draw.choice("AB"))
            for _ in range(self.draw.randint(1, 4))
        ]
        self.dead_letters += found
        counts = Counter(name for _, name in found)
        self.main.append(batch(now_ms, **{name: Reason(count) for name, count in counts.items()}))

    def treat(self, now_ms: int, max_summary: int) -> None:
        """Remove some dead letters, and change the class of others, as a replay does."""
        share = self.draw.choice((0.2, 1))
        chosen = [one for one in self.dead_letters if self.draw.random() < share]
        come = [(at_ms, self.draw.choice("AB")) for at_ms, _ in chosen if self.draw.random() < 0.3 and share < 1]
        stay = Counter(self.dead_letters)
        stay.subtract(chosen)
        self.dead_letters = [*stay.elements(), *come]
        change = Counter(reported(come, now_ms))
        change.subtract(reported(chosen, now_ms))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dead_letter_counts, "MAX_SUMMARY_CHARACTERS", max_summary)
            summary = dead_letter_summary(change)
        if any(change.values()):
            self.treatments.append((now_ms, {"frazil.dead-letters-of": "orders", **summary}))

    def left(self, name: str, since_ms: int) -> int:
        return sum(1 for at_ms, of in self.dead_letters if of == name and at_ms >= since_ms)


def reported(dead_letters: list[tuple[int, str]], now_ms: int) -> Counter[tuple[str, int]]:
    at = pa.array([at_ms for at_ms, _ in dead_letters], pa.timestamp("ms", tz="UTC"))
    names = pa.array([name for _, name in dead_letters], pa.string())
    return count_recent(pa.table({"rejected_at": at, "error_class": names}), now_ms=now_ms)


@given(st.integers().map(random.Random), st.sampled_from((2_000, 120, 60)), st.integers(4, 60))
def test_remaining_dead_letters_never_exceed_those_that_exist_except_within_hour_rounding(
    draw: random.Random, max_summary: int, steps: int
) -> None:
    world, now_ms = World(draw), NOW_MS - NOW_MS % HOUR_MS + USUAL_COMMIT_DELAY_MS // 2
    world.reject(now_ms)
    for _ in range(steps):
        now_ms += draw.choice((1_000, USUAL_COMMIT_DELAY_MS // 2, HOUR_MS, 11 * HOUR_MS))
        world.treat(now_ms, max_summary) if draw.random() < 0.3 else world.reject(now_ms)
    now_ms = draw.choice([at_ms for at_ms, _ in world.main]) + DAY_MS - draw.choice((0, 1_000, HOUR_MS))
    now_ms = max(now_ms, *(at_ms for at_ms, _ in [*world.main, *world.treatments]))
    begin_ms = now_ms - DAY_MS
    main, dead_letters = snapshots(*world.main), snapshots(*world.treatments)
    treatments = find_treatments(dead_letters if world.treatments else None, main, "orders", since_ms=begin_ms)
    if any(not one.changes.by for one in treatments):
        return  # it was too long
    span = max((one.changes.span for one in treatments), default=1)
    since_ms = span_start((begin_ms - USUAL_COMMIT_DELAY_MS) // HOUR_MS, span) * HOUR_MS
    for found in count_rejected(main, "orders", treatments, now_ms=now_ms):
        assert 0 <= found.remaining <= world.left(found.reason, since_ms)


@pytest.mark.parametrize("span", BUCKET_HOURS)
@given(later_h=st.integers(0, 23))
def test_a_replay_of_all_dead_letters_leaves_none_whatever_hours_its_summary_combines(span: int, later_h: int) -> None:
    rejected = [NOW_MS - hour * HOUR_MS for hour in range(24)]
    main = snapshots(*(batch(at_ms, NotJson=TEN) for at_ms in reversed(rejected)))
    changed = {("NotJson", span_start(at_ms // HOUR_MS, span)): 0 for at_ms in rejected}
    for at_ms in rejected:
        changed["NotJson", span_start(at_ms // HOUR_MS, span)] -= 10
    summary = {**dead_letter_summary(changed), dead_letter_counts.SPAN_KEY: str(span)}
    treatments = find_treatments(
        snapshots((NOW_MS, {"frazil.dead-letters-of": "orders", **summary})), main, "orders", since_ms=0
    )
    (found,) = count_rejected(main, "orders", treatments, now_ms=NOW_MS + later_h * HOUR_MS)
    assert found.remaining == 0


def test_without_valid_replay_counts_all_dead_letters_count_as_remaining():
    reported = ({"frazil.letters-by": said, "frazil.dead-letters-of": "orders"} for said in ("[1]", '{"NotJson":-3}'))
    for dead_letters in (None, *(snapshots((NOW_MS - 500, one)) for one in reported)):
        treatments = find_treatments(dead_letters, MAIN, "orders", since_ms=BEGIN_MS)
        assert [one.remaining for one in count_rejected(MAIN, "orders", treatments, now_ms=NOW_MS)] == [13, 3]


def test_a_non_finite_number_in_a_summary_is_ignored() -> None:
    assert (
        parse_dead_letter_summary({dead_letter_counts.COUNTS_KEY: '{"NotJson": {"0": Infinity}}'})
        == dead_letter_counts.UNCHANGED_COUNTS
    )
    assert parse_reasons({dead_letter_counts.REASONS_KEY: '{"NotJson": [Infinity]}'}) == {}
