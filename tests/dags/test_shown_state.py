"""The state that a deferred task shows: when and how often it is written, and what happens if Airflow rejects it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

TASK = SimpleNamespace(dag_id="frazil_writer_s", run_id="run", task_id="write")


class Board:
    """A `ShownState`, a clock, and an Airflow that accepts, refuses or hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = importlib.import_module("frazil.airflow.shown_state")
        self.now_s, self.written, self.warned, self.tries = 1e6, [], [], 0
        self.answer: Callable[[], Any] = lambda: None
        monkeypatch.setattr(self.module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(self.module, "clock", SimpleNamespace(now_ms=lambda: int(self.now_s * 1000)))
        comms = SimpleNamespace(asend=self.asend)
        monkeypatch.setattr(self.module.task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        self.board = self.module.ShownState(lambda *said: self.warned.append(said))

    async def asend(self, message: Any) -> None:
        self.tries += 1
        if (answer := self.answer()) is not None:
            await answer
        assert (message.type, message.key) == ("SetXCom", "frazil_state")
        self.written.append(message.value)

    async def show(self, state: str, sentence: str = "words") -> None:
        self.board.show(TASK, state, sentence)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(monkeypatch)


def test_a_state_change_is_written_at_once_and_an_unchanged_state_every_15_minutes(board: Board) -> None:
    async def day() -> None:
        for second in range(0, 86_400, 2):
            board.now_s = 1e6 + second
            await board.show("running" if second < 43_200 else "paused", f"second {second}")

    asyncio.run(day())
    assert len(board.written) == 96
    states = [one["state"] for one in board.written]
    assert (states[0], states[47], states[48], states[-1]) == ("running", "running", "paused", "paused")
    assert board.written[48] == {
        "state": "paused", "since": board.written[48]["as_of"], "as_of": board.written[48]["as_of"],
        "says": "second 43200",
    }  # fmt: skip
    assert {one["since"] for one in board.written[48:]} == {board.written[48]["since"]}


def test_a_state_that_changes_each_second_is_written_sixteen_times_in_its_first_hour(board: Board) -> None:
    async def hours() -> None:
        for second in range(7_201):
            board.now_s = 1e6 + second
            await board.show(("starting", "held")[second % 2])
            if second == 3_599:
                assert len(board.written) <= 16
        # What stays is on the task six minutes later at the latest.
        for second in range(7_201, 7_201 + 360, 2):
            board.now_s = 1e6 + second
            await board.show("given up")

    asyncio.run(hours())
    assert len(board.written) <= 6 + 22
    assert board.written[-1]["state"] == "given up"


def test_an_airflow_that_refuses_is_reported_once_and_gets_the_state_when_it_answers(board: Board) -> None:
    async def outage() -> None:
        def refused() -> Any:
            raise RuntimeError("500")

        board.answer = refused
        for second in range(0, 600, 2):
            board.now_s = 1e6 + second
            await board.show("running")
        tries = board.tries
        board.answer = lambda: None
        for second in range(600, 1_000, 2):
            board.now_s = 1e6 + second
            await board.show("running")
        assert tries <= 8

    asyncio.run(outage())
    assert len(board.warned) == 1
    assert [one["state"] for one in board.written] == ["running"]


def test_an_unresponsive_airflow_delays_nothing_and_gets_one_request_at_a_time(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board.module, "WRITE_TIMEOUT_S", 0.01)

    async def hung() -> None:
        board.answer = asyncio.Event().wait
        for state in ("running", "held", "running"):
            await asyncio.wait_for(board.show(state), 1)
        assert board.tries == 1
        while not board.warned:
            await asyncio.sleep(0.001)
        board.answer, board.now_s = lambda: None, board.now_s + 60
        await board.show("held")

    asyncio.run(asyncio.wait_for(hung(), 20))
    assert [one["state"] for one in board.written] == ["held"]


def test_a_long_sentence_is_shortened_and_a_trigger_without_a_task_writes_nothing(board: Board) -> None:
    async def both() -> None:
        board.board.show(None, "running", "words")
        await board.show("running", "x" * 5_000)

    asyncio.run(both())
    assert [len(one["says"]) for one in board.written] == [1_000]


def test_a_final_state_is_written_after_one_that_is_being_written(board: Board) -> None:
    async def ends() -> None:
        taken = asyncio.Event()
        board.answer = taken.wait
        await board.show("starting")
        await board.show("given up")
        ending = asyncio.create_task(board.board.write_final_state(TASK, "given up", "why"))
        await asyncio.sleep(0)
        assert board.tries == 1
        taken.set()
        await ending
        await board.board.write_final_state(TASK, "given up", "why")

    asyncio.run(ends())
    assert [(one["state"], one["says"]) for one in board.written] == [("starting", "words"), ("given up", "why")]
