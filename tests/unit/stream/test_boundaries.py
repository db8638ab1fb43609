"""The offsets between whole transactions of a captured database, even if its connector resends events."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.commit.marker import LastTransaction
from frazil.errors import SpecError
from frazil.ingest.source_log import is_after
from frazil.stream import boundaries
from frazil.stream.boundaries import MAX_REMEMBERED_TRANSACTIONS, Boundaries

Event = tuple[str, int]


UNREADABLE = ("", -1)
HOURS = 7200


def place(position: int, second: int = 0) -> str:
    return f"{position:020}@{1_767_225_600_000 + 1000 * second}"


def after(
    events: list[Event], counts: dict[str, int], *, whole: bool = True, places: dict[str, str] | None = None
) -> tuple[int, str]:
    log = Boundaries(0)
    for offset, event in enumerate(events):
        transaction, order = event
        position = (places or {}).get(transaction, place(ord(transaction)) if transaction else None)
        log.add(transaction, order, position, offset + 1, unreadable=event == UNREADABLE)
    for transaction, count in counts.items():
        log.add_end(transaction, count)
    log.skip_to(len(events))
    open_one = log.advance(at_end=whole)
    return log.boundary, open_one


def test_a_transaction_is_complete_at_the_event_count_of_its_end_record() -> None:
    events = [("a", 1), ("a", 2), ("b", 1)]
    assert after(events[:2], {}) == (0, "a")
    assert after(events[:1], {"a": 2}) == (0, "a")
    assert after(events, {"a": 2}) == (2, "b")
    assert after(events, {"a": 2, "b": 2}) == (2, "b")
    assert after(events, {"a": 2, "b": 1}) == (3, "")


def test_a_transaction_followed_by_a_later_one_is_complete() -> None:
    for counts in ({}, {"a": 3}):  # its end cannot be read, or an event of it
        assert after([("a", 1), ("b", 1)], counts) == (1, "b")
        assert after([("a", 1), ("b", 1)], {**counts, "b": 1}) == (2, "")
        assert after([("a", 1), ("b", 1)], {**counts, "b": 1}, places={"a": place(5), "b": place(5)})[0] == 0
    assert after([("a", 1), UNREADABLE, ("b", 1)], {"a": 2, "b": 1}) == (3, "")


def test_positions_that_only_decrease_end_the_stream_quickly_with_one_sentence() -> None:
    """Each transaction would stay open, and every poll would compare it with all others."""
    log, count = Boundaries(0), 100_000
    for offset in range(count):
        log.add(f"t{offset}", 1, place(count - offset, offset), offset + 1)
    before = time.process_time()
    with pytest.raises(SpecError, match="not in the order of one log"):
        log.advance(at_end=True)
    assert time.process_time() - before < 10


def test_a_repeated_transaction_without_a_known_end_is_not_a_boundary_before_the_newest() -> None:
    log = Boundaries(0, LastTransaction("c", place(9)))
    for offset, (transaction, position) in enumerate([("a", 1), ("b", 2)]):
        log.add(transaction, 1, place(position), offset + 1)
    assert (log.advance(at_end=True), log.boundary) == ("b", 0)
    log.add_end("b", 1)
    assert (log.advance(at_end=True), log.boundary, log.is_behind) == ("c", 0, True)


def test_a_record_that_cannot_be_read_may_be_the_last_of_its_transaction() -> None:
    assert after([("a", 1), UNREADABLE], {}) == (0, "a")
    assert after([("a", 1), UNREADABLE], {"a": 2}) == (2, "")
    assert after([("a", 1), UNREADABLE], {"a": 3}) == (0, "a")
    assert after([("a", 1), UNREADABLE, ("a", 2)], {"a": 3}) == (0, "a")
    assert after([UNREADABLE, UNREADABLE], {}) == (2, "")


def test_a_restarted_source_log_waits_for_no_transaction_of_the_former_log() -> None:
    places = {"a": place(900, 1), "b": place(950, 2), "c": place(4, HOURS), "d": place(9, HOURS)}
    log = [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert after(log, dict.fromkeys("abcd", 1), places=places) == (4, "")
    assert after(log, {**dict.fromkeys("acd", 1), "b": 2}, places=places) == (4, "")
    again = [*log, ("c", 1)]
    assert after(again, dict.fromkeys("abcd", 1), places=places) == (4, "d")


def test_a_statement_that_began_before_the_transaction_ahead_of_it_changes_no_order() -> None:
    places = {"a": place(100, 5), "b": place(200, 3)}
    cut = [("a", 1), ("b", 1), ("a", 1)]
    assert after(cut, {"a": 1, "b": 3}, places=places) == (1, "b")
    assert after(cut, {"a": 1, "b": 1}, places=places) == (2, "b")
    log = Boundaries(10, LastTransaction("b", places["b"]))
    log.add("a", 1, places["a"], 11)
    log.add_end("a", 1)
    assert (log.advance(at_end=True), log.boundary, log.is_behind) == ("b", 10, True)


@pytest.mark.parametrize("position", [None, place(7)], ids=["no position", "one position"])
def test_the_work_is_linear_in_the_number_of_transactions_whose_ends_arrive_late(
    position: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []
    monkeypatch.setattr(boundaries, "is_after", lambda *both: requested.append(both) or is_after(*both))
    log = Boundaries(0)
    for number in range(1000):
        log.add(f"t{number}", 1, position, number + 1)
    assert log.advance(at_end=True) == "t0"
    for number in range(1000):
        log.add_end(f"t{number}", 1)
    assert (log.advance(at_end=True), log.boundary) == ("", 1000)
    assert len(requested) <= 2000


def test_records_without_a_transaction_end_no_transaction() -> None:
    assert after([("", 0), ("", 0)], {}) == (2, "")
    assert after([("a", 1), ("", 0)], {"a": 2}) == (0, "a")
    assert after([("a", 1), ("", 0)], {"a": 1}) == (2, "")


def test_an_interrupted_transaction_stays_open_while_an_older_one_is_repeated() -> None:
    cut = [("a", 1), ("b", 1), ("a", 1)]
    assert after(cut, {"a": 1, "b": 2}) == (1, "b")
    assert after([*cut, ("b", 1), ("b", 2)], {"a": 1, "b": 2}) == (5, "")
    assert after([*cut, ("b", 2)], {"a": 1, "b": 2}) == (4, "")


def test_a_transaction_that_is_sent_again_opens_again() -> None:
    assert after([("a", 1), ("a", 2), ("b", 1), ("a", 2)], {"a": 2, "b": 1}) == (3, "b")
    assert after([("a", 1), ("a", 2), ("b", 1), ("a", 2), ("b", 1)], {"a": 2, "b": 1}) == (5, "")
    assert after([("a", 1), ("a", 2), ("a", 1)], {"a": 2}) == (0, "a")


def test_the_last_transaction_waits_while_more_follows() -> None:
    assert after([("a", 1), ("b", 1)], {"a": 1, "b": 1}, whole=False) == (1, "")


def test_transactions_that_were_read_before_are_recognised_by_their_position() -> None:
    log = Boundaries(7, LastTransaction("c", place(5)))
    log.add("b", 1, place(4), 8)
    log.add_end("b", 1)
    assert (log.advance(at_end=True), log.boundary, log.is_behind) == ("c", 7, True)
    log.add("c", 1, place(3), 9)  # the connector may know less of what came before it
    log.add_end("c", 1)
    assert (log.advance(at_end=True), log.boundary) == ("", 9)


def test_gaps_behind_the_last_record_belong_to_it() -> None:
    log = Boundaries(7)
    log.skip_to(9)
    assert log.boundary == 9
    log.add("a", 1, None, 11)
    log.skip_to(15)
    log.add_end("a", 1)
    assert (log.advance(at_end=True), log.boundary) == ("", 15)


def test_transaction_ends_are_forgotten_beyond_a_maximum() -> None:
    log = Boundaries(0)
    for number in range(MAX_REMEMBERED_TRANSACTIONS + 2):
        log.add_end(str(number), 1)
    log.add("0", 1, None, 1)
    assert log.advance(at_end=True) == "0"
    log.add(str(MAX_REMEMBERED_TRANSACTIONS), 1, None, 2)
    assert log.advance(at_end=True) == "0"


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    crashes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=4),
    polls=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=4),
)
def test_events_before_a_boundary_form_whole_transactions_and_at_the_end_all_events_do(
    sizes: list[int], crashes: list[tuple[int, int]], polls: list[tuple[int, int, bool]]
) -> None:
    """Each look is at that many events, with the ends of the last ones unheard of, and perhaps by a new writer."""
    source = [(f"t{t}", order) for t, size in enumerate(sizes) for order in range(1, size + 1)]
    counts = {f"t{t}": size for t, size in enumerate(sizes)}
    sent: list[Event] = []
    at = 0
    for upto, back in crashes:  # it sends up to somewhere, dies, and begins some events earlier
        sent += source[at : max(at, upto)]
        at = max(0, min(max(at, upto), len(source)) - back)
    sent += source[at:]
    log = Boundaries(0)
    seen = 0
    for end, unheard, is_new in [*sorted(poll for poll in polls if poll[0] < len(sent)), (len(sent), 0, False)]:
        if is_new:
            log, seen = Boundaries(log.boundary, log.newest), log.boundary
        for offset in range(seen, end):
            transaction, order = sent[offset]
            log.add(transaction, order, place(int(transaction[1:])), offset + 1)
        for transaction, count in counts.items():
            # Its end comes behind its events: what is known about the log has them all.
            if (transaction, count) in sent[: max(0, end - unheard)]:
                log.add_end(transaction, count)
        log.advance(at_end=end == len(sent) or unheard % 2 == 1)
        seen = end
        places = [source.index(event) for event in sent[: log.boundary]]
        newest = max(places, default=-1)
        assert newest == -1 or (places[-1] == newest and source[newest][1] == counts[source[newest][0]])
    assert log.boundary == len(sent)
