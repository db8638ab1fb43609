"""The loop of an epoch: the batches that it runs, and what it does not wait for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.errors import OffsetGap
from frazil.events import PhaseBegan, StreamEvent
from frazil.host.heartbeat import Phase
from frazil.stream import batch_loop
from frazil.stream.batch_loop import BatchLoop, next_position, planning_interval_s, poll_during_batch
from frazil.stream.plan import Position

TP = ("t", 0)
START, LATER = Position({TP: 5}), Position({TP: 9})
IDLE = Position({TP: 9}, frozenset({TP}))


class Answers:
    """A planner that gives the answers, one per call."""

    def __init__(self, *answers: Position | Exception) -> None:
        self.answers, self.position = list(answers), START
        self.settings = SimpleNamespace(policy=SimpleNamespace(interval_s=60.0))

    def next_position(self) -> Position:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def position_without_poll(self) -> None:
        """Each answer needs a poll."""

    def record_queue_time(self, seconds: float) -> None:
        assert seconds >= 0

    def plans(self, start: Position, end: Position) -> list[str]:
        return [json.dumps([start.offsets[TP], end.offsets[TP]])]


class Runner:
    """A runner that commits every batch."""

    def __init__(self) -> None:
        self.emitted: list[StreamEvent] = []
        self.emit = self.emitted.append
        self.ran: list[Any] = []
        self.ends: list[Position] = []

    def run(self, stage: Callable[[Any], Any], end: Position, *, tasks: int) -> None:
        answers = stage("work")
        assert tasks == len(answers) - 1
        self.ran.append(answers)
        self.ends.append(end)

    def follow(self) -> None:
        """Do nothing: the stream has no route."""


class Engine:
    def __init__(self) -> None:
        self.failure: Exception | None = None

    def check(self) -> None:
        if self.failure:
            raise self.failure

    def run(self, plans: list[str], work: str) -> tuple[Any, ...]:
        return (work, *map(json.loads, plans))


class Looping:
    """A loop over a planner's answers, with an engine that answers with the plans."""

    def __init__(self, planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.planner, self.runner, self.engine = planner, Runner(), Engine()
        self.waits: list[float] = []
        monkeypatch.setattr(BatchLoop, "_create_planner", lambda _: planner)

    def run(self, until: Callable[[], bool] | None = None) -> BatchLoop:
        loop = BatchLoop(self.engine, self.runner, drain=False, set_planner_report=lambda _: None)  # type: ignore[arg-type]
        loop.run(until=until or (lambda: not self.planner.answers), wait=self.waits.append)
        return loop


def test_a_poll_that_hangs_keeps_no_process_alive() -> None:
    polls, over = threading.Event(), threading.Event()

    def hang() -> None:
        polls.set()
        over.wait(60)

    planner: Any = SimpleNamespace(observe=hang)
    with poll_during_batch(planner):
        assert polls.wait(30)
    (thread,) = [t for t in threading.enumerate() if t.name == "observer"]
    over.set()
    thread.join(30)
    assert thread.daemon


def test_each_batch_starts_where_the_last_ended_and_ends_at_a_later_position(
    monkeypatch: pytest.MonkeyPatch,
):
    looping = Looping(Answers(START, LATER, LATER, IDLE, IDLE), monkeypatch)
    assert looping.run().commits == 2
    assert looping.runner.ran == [("work", [5, 9]), ("work", [9, 9])]
    assert looping.runner.ends == [LATER, IDLE]
    assert [e.phase for e in looping.runner.emitted if isinstance(e, PhaseBegan)] == [Phase.WAITING, Phase.STOPPING]


def test_the_brokers_are_checked_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_loop, "POLL_INTERVAL_S", 0.001)
    looping, checked = Looping(Answers(LATER), monkeypatch), threading.Event()
    looping.planner.observe = checked.set
    looping.engine.run = lambda _, work: (work, checked.wait(60))  # type: ignore[method-assign]
    looping.run(until=lambda: bool(looping.runner.ran))
    assert looping.runner.ran == [("work", True)]


def test_the_loop_polls_the_planner_no_more_often_than_the_commit_interval_needs(monkeypatch: pytest.MonkeyPatch):
    looping = Looping(Answers(START, START, START), monkeypatch)
    looping.run()
    assert len(looping.waits) == 2
    assert all(0 < wait <= planning_interval_s(60) for wait in looping.waits)


def test_a_fatal_error_of_the_planner_is_raised_and_the_planner_is_not_polled_again(monkeypatch: pytest.MonkeyPatch):
    looping = Looping(Answers(OffsetGap("the log ends below the position"), LATER), monkeypatch)
    with pytest.raises(OffsetGap):
        looping.run()
    assert len(looping.planner.answers) == 1


def test_an_engine_that_ended_ends_the_loop_although_nothing_is_due(monkeypatch: pytest.MonkeyPatch):
    looping = Looping(Answers(START), monkeypatch)
    looping.engine.failure = RuntimeError("the JVM has ended")
    with pytest.raises(RuntimeError, match="the JVM has ended"):
        looping.run()


def test_spark_is_checked_before_each_poll_and_awaited_before_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_loop, "CHECK_INTERVAL_S", 0.0)
    looping = Looping(Answers(START, START), monkeypatch)
    seen: list[bool] = []

    def check() -> None:
        seen.append(PhaseBegan(Phase.WAITING) in looping.runner.emitted)

    looping.engine.check = check  # type: ignore[method-assign]
    looping.run()
    assert seen == [False, True]


def test_spark_is_checked_once_a_second_although_positions_are_chosen_more_often(monkeypatch: pytest.MonkeyPatch):
    looping, checks = Looping(Answers(*[START] * 9), monkeypatch), list[int]()
    monkeypatch.setattr(batch_loop, "CHECK_INTERVAL_S", 3600.0)
    looping.engine.check = lambda: checks.append(len(looping.planner.answers))  # type: ignore[method-assign]
    looping.run()
    assert checks == [9]


def test_a_position_that_needs_no_poll_starts_no_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail(f"{thread.name} was started"))
    planner: Any = SimpleNamespace(position_without_poll=lambda: LATER)
    assert next_position(planner, lambda: False) is LATER


def test_a_writer_about_to_stop_does_not_poll_kafka(monkeypatch: pytest.MonkeyPatch):
    looping = Looping(Answers(LATER), monkeypatch)
    assert looping.run(until=lambda: True).commits == 0
    assert len(looping.planner.answers) == 1


def test_no_batch_begins_once_the_writer_is_to_end(monkeypatch: pytest.MonkeyPatch):
    looping = Looping(Answers(LATER), monkeypatch)
    assert looping.run(until=lambda: not looping.planner.answers).commits == 0


def test_silent_brokers_do_not_delay_a_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_loop, "STOP_CHECK_INTERVAL_S", 0.001)
    requested, released, stopping = threading.Event(), threading.Event(), threading.Event()

    class Silent:
        def position_without_poll(self) -> None:
            """The brokers must be polled."""

        def next_position(self) -> Position:
            requested.set()
            assert released.wait(60)
            return LATER

    def until() -> bool:
        assert requested.wait(60)
        stopping.set()
        return True

    try:
        assert next_position(Silent(), until) is None  # type: ignore[arg-type]
        assert stopping.is_set()
    finally:
        released.set()


@pytest.mark.parametrize(
    ("interval_s", "seconds"), [(0.5, 0.05), (1, 0.1), (10, 0.5), (30, 0.5), (60, 1.0), (3600, 1.0)]
)
def test_the_planner_polls_often_enough_for_the_interval_and_seldom_for_a_quiet_stream(
    interval_s: float, seconds: float
):
    assert planning_interval_s(interval_s) == seconds


@pytest.mark.parametrize(("max_polling_s", "interval_s"), [(1.0, 60.0), (5.0, 55.0)])
def test_batches_start_before_the_interval_only_where_the_planner_polls_seldom(
    monkeypatch: pytest.MonkeyPatch, max_polling_s: float, interval_s: float
):
    monkeypatch.setattr(batch_loop, "target_file_bytes", lambda _: 1)
    minute = timedelta(minutes=1)
    spec = SimpleNamespace(
        name="s",
        source=SimpleNamespace(reads=("t",)),
        commit=SimpleNamespace(interval=minute, longest_interval=minute, size=None),
        watermark=SimpleNamespace(idle_timeout=minute),
        resources=SimpleNamespace(cores=1),
        max_records=1,
    )
    tables = SimpleNamespace(main=SimpleNamespace(current=lambda: None))
    loop: Any = SimpleNamespace(
        runner=SimpleNamespace(spec=spec, tables=tables, run_folder="runs"),
        hosting=SimpleNamespace(max_polling_s=max_polling_s),
        drain=False,
    )
    assert BatchLoop._planner_settings(loop).policy.interval_s == interval_s
