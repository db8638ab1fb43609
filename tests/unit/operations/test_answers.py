"""Answers within a deadline from many services, which may hang or fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from frazil import outdated_code
from frazil.operations.read_cache import FAILURE_KEEP_S, STALE_AFTER_S, UNRESPONSIVE_AFTER_S, Answer, AnswerCache
from tests.polling import eventually


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return int(self.s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def answers(clock: Clock) -> AnswerCache:
    return AnswerCache(threads=2, monotonic=clock.monotonic, now_ms=clock.now_ms)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A step that hangs until a test releases it."""
    event = threading.Event()
    yield event
    event.set()


def hangs(gate: threading.Event) -> str:
    gate.wait(60)
    return "late"


def test_a_cached_answer_is_kept_for_a_while_and_then_refreshed(answers: AnswerCache, clock: Clock):
    seen = iter(range(9))

    def ask() -> Answer[int]:
        return answers.fetch_one("g", "k", lambda: next(seen), keep_s=10, timeout_s=60)

    assert [ask().value, ask().value] == [0, 0]
    clock.s += 11
    ask()  # it shows the old one at once, and looks again
    assert eventually(lambda: ask().value == 1)


def test_a_failed_read_is_repeated_before_its_answer_would_be_old(answers: AnswerCache, clock: Clock):
    def read() -> int:
        reads.append(clock.s)
        if len(reads) == 1:
            raise OSError("no space")
        return 7

    reads: list[float] = []

    def ask() -> Answer[int]:
        return answers.fetch_one("g", "k", read, keep_s=30, timeout_s=60)

    assert ask().problem == "OSError: no space"
    clock.s += FAILURE_KEEP_S
    assert eventually(lambda: ask() == Answer(7, clock.now_ms()))
    clock.s += FAILURE_KEEP_S
    ask()
    assert len(reads) == 2


def test_a_failed_check_is_reported_next_to_the_last_known_answer(answers: AnswerCache, clock: Clock):
    known = answers.fetch_one("g", "k", lambda: 7, keep_s=0, timeout_s=60)
    assert known.value == 7

    def fails() -> int:
        raise OSError("no\n space")

    clock.s += 10
    found = eventually(
        lambda: next((a for a in [answers.fetch_one("g", "k", fails, keep_s=1, timeout_s=0)] if a.problem), None)
    )
    assert (found.value, found.at_ms, found.problem) == (7, known.at_ms, "OSError: no space")


def test_a_check_that_fails_after_an_upgrade_reports_the_outdated_process_until_one_succeeds(
    answers: AnswerCache, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(outdated_code, "_starts", [outdated_code.ProcessStart("API server", frozenset())])

    checks = []

    def fails() -> int:
        checks.append(1)
        raise ImportError("cannot import name 'x'")

    found = answers.fetch_one("g", "k", fails, keep_s=0, timeout_s=60)
    assert (found.outdated, found.problem) == (
        True,
        outdated_code.explain_outdated(ImportError("cannot import name 'x'")),
    )
    clock.s += 61
    assert eventually(lambda: answers.fetch_one("g", "k", fails, keep_s=60, timeout_s=0) and len(checks) == 2)
    assert eventually(lambda: answers.fetch_one("g", "k", lambda: 7, keep_s=0, timeout_s=0).value == 7)
    assert not answers.fetch_one("g", "k", fails, keep_s=60, timeout_s=0).outdated
    (logged,) = caplog.records
    assert logged.exc_info, "the log has the whole error, and has it once"


def test_a_stale_answer_is_refreshed_until_the_deadline_and_then_returned_as_pending(
    answers: AnswerCache, clock: Clock, gate: threading.Event
):
    assert answers.fetch_one("g", "k", lambda: "old", keep_s=1, timeout_s=60).value == "old"
    clock.s += STALE_AFTER_S
    assert answers.fetch_one("g", "k", lambda: "old", keep_s=1e9, timeout_s=60).pending is False, "not opened"
    found = answers.fetch_one("g", "k", lambda: hangs(gate), keep_s=1, timeout_s=0)
    assert (found.value, found.pending) == ("old", True)
    gate.set()
    found = answers.fetch_one("g", "k", lambda: hangs(gate), keep_s=60, timeout_s=60)
    assert (found.value, found.pending) == ("late", False)


def test_an_answer_of_another_process_is_shown_and_refreshed_and_replaces_no_newer_answer(
    answers: AnswerCache, clock: Clock, gate: threading.Event
):
    at_ms = clock.now_ms() - 600_000
    answers.remember("g", "k", "before", at_ms=at_ms)
    found = answers.fetch_one("g", "k", lambda: hangs(gate), keep_s=60, timeout_s=0)
    assert (found.value, found.at_ms, found.pending, found.remembered) == ("before", at_ms, True, True)
    answers.remember("g", "k", "another", at_ms=at_ms)
    assert answers.fetch_one("g", "k", lambda: hangs(gate), keep_s=60, timeout_s=0).value == "before"


def test_a_check_that_a_user_waits_for_runs_before_queued_background_checks(gate: threading.Event):
    answers = AnswerCache(threads=1)
    answers.request("g", "busy", lambda: hangs(gate), keep_s=1)
    seen: list[str] = []
    one, other = (partial(seen.append, name) for name in ("one", "other"))
    requested = [answers.request("g", f.args[0], f, keep_s=1e9) for f in (one, other)]
    new = answers.request("g", "new", partial(seen.append, "new"), keep_s=1e9, first=True)
    answers.request("g", "other", other, keep_s=1e9, first=True)
    gate.set()
    answers.gather([*requested, new], timeout_s=60)
    assert seen == ["other", "new", "one"]


def test_a_hanging_check_counts_as_silent_since_it_began_and_delays_no_other_group(
    answers: AnswerCache, clock: Clock, gate: threading.Event
):
    stuck = [answers.request("silent", n, lambda: hangs(gate), keep_s=1) for n in range(5)]
    assert [a.pending for a in answers.gather(stuck, timeout_s=0)] == [True] * 5
    began_ms = clock.now_ms()
    clock.s += UNRESPONSIVE_AFTER_S
    # Two hang, and the three that wait for their threads are as silent.
    assert [a.silent_since_ms for a in answers.gather(stuck, timeout_s=60)] == [began_ms] * 5
    assert answers.fetch_one("other", "k", lambda: "well", keep_s=1, timeout_s=60).value == "well"
    gate.set()
    assert eventually(lambda: all(a.value == "late" for a in answers.gather(stuck, timeout_s=0)))


def test_a_check_that_only_waits_for_a_thread_is_pending_and_not_silent(
    answers: AnswerCache, clock: Clock, gate: threading.Event
):
    first = answers.request("g", 1, lambda: hangs(gate), keep_s=1)
    clock.s += UNRESPONSIVE_AFTER_S
    others = [answers.request("g", n, lambda: hangs(gate), keep_s=1) for n in (2, 3)]
    one, *rest = answers.gather([first, *others], timeout_s=0)
    assert one.silent_since_ms is not None
    assert [a.pending for a in rest] == [True, True]


def test_concurrent_requests_for_a_key_share_one_check(answers: AnswerCache, gate: threading.Event):
    checks: list[int] = []

    def check() -> str:
        checks.append(1)
        return hangs(gate)

    requested = [answers.request("g", "k", check, keep_s=1) for _ in range(20)]
    gate.set()
    assert {a.value for a in answers.gather(requested, timeout_s=60)} == {"late"}
    assert len(checks) == 1


def test_a_forgotten_answer_is_checked_again(answers: AnswerCache):
    assert answers.fetch_one("g", "k", lambda: 1, keep_s=1e9, timeout_s=60).value == 1
    answers.forget("k")
    assert answers.fetch_one("g", "k", lambda: 2, keep_s=1e9, timeout_s=60).value == 2


def test_forgetting_a_key_part_removes_only_the_cached_answers_whose_keys_contain_it(answers: AnswerCache):
    keys = ("a", ("status", "a"), ("windows", ("b", "a")), ("status", "b"))
    for value in (1, 2):
        found = [answers.fetch_one("g", key, lambda value=value: value, keep_s=1e9, timeout_s=60).value for key in keys]
        answers.forget_all("a")
    assert found == [2, 2, 2, 1]
    answers.remember("g", "a", 0, at_ms=0)
    found = answers.fetch_one("g", "a", lambda: 3, keep_s=1e9, timeout_s=60)
    assert (found.value, found.remembered) == (3, False)


def test_two_threads_run_hundreds_of_checks(answers: AnswerCache):
    now = limit = 0
    counting = threading.Lock()

    def check() -> bool:
        nonlocal now, limit
        with counting:
            now += 1
            limit = max(limit, now)
        with counting:
            now -= 1
        return True

    requested = [answers.request("g", n, check, keep_s=1e9) for n in range(300)]
    assert len([a for a in answers.gather(requested, timeout_s=60) if a.value]) == 300
    assert limit <= 2


def test_gathering_no_checks_returns_an_empty_list(answers: AnswerCache):
    assert answers.gather([], timeout_s=60) == []


def test_a_result_of_none_is_an_answer_and_not_a_pending_check(answers: AnswerCache):
    found = answers.fetch_one("g", "k", lambda: None, keep_s=1e9, timeout_s=60)
    assert not found.pending
    assert found.at_ms is not None


def test_each_thread_runs_its_checks_inside_the_shared_context_manager(clock: Clock):
    entered, inside = [], threading.local()

    @contextmanager
    def around() -> Iterator[None]:
        entered.append(1)
        inside.yes = True
        yield

    answers = AnswerCache(threads=1, around=around, monotonic=clock.monotonic, now_ms=clock.now_ms)
    requested = [answers.request("g", n, lambda: inside.yes, keep_s=9) for n in range(5)]
    assert [answer.value for answer in answers.gather(requested, timeout_s=60)] == [True] * 5
    assert 1 <= len(entered) <= 5
