"""What users import from `frazil.airflow`, and how it reads values from Airflow."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import logging
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demo.run import DAY_DAGS, STREAM, WRITER_DAG
from frazil.airflow.shown_state import HOUR_S, MAX_OTHERS_PER_HOUR, MAX_WARNINGS_PER_HOUR, LineSelector
from frazil.home import run_folder
from frazil.host.heartbeat import Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import read_notes
from frazil.host.supervising_run import SupervisingRun, read_supervising_run, write_supervising_run
from frazil.supervise.decision import Cause, Decision, DecisionInput, DesiredState, ValidDeclaration, WriterAction
from frazil.supervise.supervisor import SupervisionStep
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess


def test_the_exported_names_are_complete_and_can_be_imported(tmp_path: Path) -> None:
    process = AirflowProcess(tmp_path)
    exported, loaded = process.call(in_airflow.exported_names)
    process.end()
    assert exported == [
        "PartitionCompleteSensor",
        "WriterOperator",
        "WriterTrigger",
        "audit_asset",
        "audit_dag",
        "backfill_dag",
        "check_declarations",
        "daily_dag_id",
        "daily_dags",
        "dead_letters_dag",
        "each_alert",
        "health_dag",
        "maintenance_dag",
        "partition_asset",
        "partition_dags",
        "partitions_dag_id",
        "reopened_asset",
        "reopened_dag_id",
        "writer_dag_id",
        "writer_dags",
    ]
    assert not {"pyspark", "pyarrow", "pyiceberg", "confluent_kafka", "pandas", "openlineage"} & loaded


def test_a_name_that_is_not_exported_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("frazil.airflow").no_such_name  # noqa: B018


def test_the_demo_unpauses_the_dags_that_the_factories_make() -> None:
    room = importlib.import_module("frazil.airflow")
    assert room.writer_dag_id(STREAM) == WRITER_DAG
    by_partition, by_day = room.partitions_dag_id("demo.flights"), room.daily_dag_id("flights_per_day")
    assert (by_partition, by_day, room.reopened_dag_id("flights_per_day")) == DAY_DAGS


@pytest.mark.parametrize(
    ("state", "try_number_now", "action"),
    [
        ("failed", None, "MARKED"),
        ("success", None, "MARKED"),
        ("skipped", None, "MARKED"),
        (None, None, "CLEARED"),
        ("scheduled", None, "CLEARED"),
        ("running", None, "CLEARED"),
        ("deferred", 2, "CLEARED"),
        ("deferred", 1, "TAKEN_OVER"),
        ("deferred", None, "TAKEN_OVER"),
    ],
)
def test_the_user_action_is_derived_from_the_state_of_the_task(
    state: str | None, try_number_now: int | None, action: str
) -> None:
    task_actions = importlib.import_module("frazil.airflow.writers.trigger")
    task = task_actions.DeferredTask(1, state, exists_now=True, try_number_now=try_number_now)
    assert task_actions.find_task_action(task) is task_actions.TaskAction[action]


def test_a_task_that_is_gone_was_deleted_with_its_run() -> None:
    task_actions = importlib.import_module("frazil.airflow.writers.trigger")
    assert (
        task_actions.find_task_action(task_actions.DeferredTask(1, None, exists_now=False, try_number_now=None))
        is task_actions.TaskAction.DELETED
    )


def test_a_trigger_is_restored_from_its_serialized_form_which_contains_no_secret() -> None:
    triggers = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = triggers.WriterTrigger(stream="s", streams="/streams", application="/w.py", poll_seconds=2.0)
    path, arguments = trigger.serialize()
    assert path == "frazil.airflow.writers.trigger.WriterTrigger"
    given = {"stream": "s", "streams": "/streams", "application": "/w.py", "poll_seconds": 2.0}
    assert arguments == {**given, "shared": False, "parent": None}
    assert triggers.WriterTrigger(**arguments).serialize() == (path, arguments)


def test_a_writer_with_endless_warnings_does_not_fill_the_log_of_its_task() -> None:
    lines, reported = LineSelector(), []
    for second in range(3_600):
        words = "".join(chr(ord("a") + int(digit)) for digit in f"{second:04}")
        reported += lines.lines_to_copy([(logging.WARNING, words), (logging.INFO, f"said {words}")], now_s=second)
    assert len(reported) == MAX_WARNINGS_PER_HOUR + MAX_OTHERS_PER_HOUR
    (_, first), (_, second) = lines.lines_to_copy([(logging.ERROR, "the last")], now_s=3 * HOUR_S)
    assert first == f"{3_600 - MAX_WARNINGS_PER_HOUR} warnings of the writer are omitted; writer.log has them"
    assert second == "the last"


def test_log_lines_that_differ_only_in_numbers_are_reported_hourly_with_their_count() -> None:
    lines, reported = LineSelector(), []
    for minute in range(24 * 60):
        batch = [(logging.INFO, f"batch {minute}: {minute * 10:,} records"), (logging.WARNING, f"took {minute} s")]
        reported += [(minute, line) for _, line in lines.lines_to_copy(batch, now_s=minute * 60.0)]
    assert reported[0] == (0, "batch 0: 0 records")
    of_batches = [one for one in reported if one[1].startswith("batch")]
    assert of_batches[1] == (60, "batch 59: 590 records (the last of 59 such lines; writer.log has all)")
    assert len(of_batches) == 24
    assert len(reported) - 24 == 10 + 23
    # A writer that starts again is heard.
    assert list(lines.lines_to_copy([(logging.INFO, "batch 1439: 1 records")], now_s=86_399.0)) == []
    lines.begin()
    assert len(list(lines.lines_to_copy([(logging.INFO, "batch 1439: 1 records")], now_s=86_399.0))) == 1


def test_repeated_log_lines_that_stopped_are_still_counted_and_then_forgotten() -> None:
    lines = LineSelector()
    for minute in range(24 * 60):
        batch = [(logging.INFO, f"batch {minute}: {minute * 10:,} records"), (logging.WARNING, f"took {minute} s")]
        list(lines.lines_to_copy(batch, now_s=minute * 60.0))
    last = [line for hour in (25, 26, 27) for _, line in lines.lines_to_copy([], now_s=hour * HOUR_S)]
    assert [line[:10] for line in last] == ["batch 1439", "took 1439 "]
    assert lines._shape_counts == {}


def test_an_unchanged_decision_is_reported_again_hourly_with_its_start_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    triggers = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = triggers.WriterTrigger(stream="s", streams="/streams", application="/w.py", poll_seconds=2.0)
    for second in range(0, 7_300, 2):
        monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda now=second: 1e6 + now))
        monkeypatch.setattr(triggers, "clock", SimpleNamespace(now_ms=lambda now=second: now * 1000))
        decision = Decision(WriterAction.START, Cause.FIRST_START, f"up {second} s")
        trigger._log_step(_step(decision, problem=f"TimeoutError: after {second}.5 s"))
    said = [line for line in capsys.readouterr().out.splitlines() if "start (first start)" in line]
    assert [" unchanged since 1970-01-01 00:00:00Z: up 3600 s" in line for line in said] == [False, True, False]
    assert "unchanged since 1970-01-01 00:00:00Z: up 7200 s" in said[2]


def test_a_trigger_gives_up_only_when_airflow_knows_that_its_task_has_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    triggers = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = triggers.WriterTrigger(stream="s", streams="/streams", application="/w.py", poll_seconds=2.0)
    step = _step(Decision(WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION, "exit code 11"))
    slept: list[float] = []

    async def supervisor() -> SimpleNamespace:
        return SimpleNamespace(step=lambda: step)

    async def nothing(seconds: float = 0) -> None:
        slept.append(seconds)

    async def first_event() -> Any:
        return await anext(trigger.run())

    monkeypatch.setattr(trigger, "_make_supervisor", supervisor)
    monkeypatch.setattr(trigger, "_preload", nothing)
    monkeypatch.setattr(triggers.asyncio, "sleep", nothing)
    assert asyncio.run(first_event()).payload["reason"] == "exit code 11"
    assert triggers.MIN_DEFERRAL_S - 5 < max(slept) <= triggers.MIN_DEFERRAL_S


def _step(decision: Decision, *, problem: str | None = None, stall: Stall | None = None) -> SupervisionStep:
    heartbeat: Any = SimpleNamespace(stall=stall)
    writer = Observation(ProcessState.RUNNING, None, heartbeat, ())
    if decision.action is WriterAction.GIVE_UP:
        writer = Observation(ProcessState.ENDED, None, None, ())
    observed = DecisionInput(writer, ValidDeclaration("f1"), DesiredState(), table_fingerprint="t1")
    return SupervisionStep(decision, observed, problem, ())


def _trigger_of(run_id: str, try_number: int) -> Any:
    triggers = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = triggers.WriterTrigger(stream="s", streams="/streams", application="/w.py", poll_seconds=2.0)
    instance = SimpleNamespace(run_id=run_id, try_number=try_number, dag_id="d", task_id="write")
    trigger.task_instance = instance
    return trigger


@pytest.mark.usefixtures("frazil_home")
def test_a_trigger_records_on_its_own_host_which_run_supervises_and_what_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker that deferred the task, and the one that fails it, may be other hosts."""
    step = _step(Decision(WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION, "exit code 11", subject="l1"))

    async def supervisor() -> SimpleNamespace:
        return SimpleNamespace(step=lambda: step)

    async def nothing(_seconds: float = 0) -> None: ...

    async def first_event(trigger: Any) -> Any:
        return await anext(trigger.run())

    for run_id, known in (("one", None), ("two", "l1")):
        trigger = _trigger_of(run_id, 3)
        monkeypatch.setattr(trigger, "_make_supervisor", supervisor)
        monkeypatch.setattr(trigger, "_preload", nothing)
        monkeypatch.setattr(importlib.import_module("frazil.airflow.writers.trigger").asyncio, "sleep", nothing)
        assert asyncio.run(first_event(trigger)).payload["subject"] == "l1"
        assert read_supervising_run("s") == SupervisingRun(run_id, 3)
        given_up = read_notes(run_folder("s")).given_up
        assert (given_up and given_up.subject) == known


@pytest.mark.usefixtures("frazil_home")
def test_a_trigger_restarts_a_writer_when_its_backoff_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a backoff of one second would last until the second step after the writer's end."""
    given_up = _step(Decision(WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION, "exit code 11", subject="l1"))
    holds = [_step(Decision(WriterAction.HOLD, Cause.CRASHED, "killed", until_ms)) for until_ms in (500, 9_000, -1)]
    steps, waits = iter([*holds, _step(Decision(WriterAction.KEEP, Cause.ADVANCING, "up")), given_up]), []
    trigger = _trigger_of("run", 1)

    async def supervisor() -> SimpleNamespace:
        return SimpleNamespace(step=lambda: next(steps))

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def nothing() -> None: ...

    async def first_event() -> Any:
        return await anext(trigger.run())

    monkeypatch.setattr(trigger, "_make_supervisor", supervisor)
    monkeypatch.setattr(trigger, "_preload", nothing)
    monkeypatch.setattr(trigger, "_show", lambda _: None)
    monkeypatch.setattr(importlib.import_module("frazil.airflow.writers.trigger").asyncio, "sleep", sleep)
    assert asyncio.run(first_event()).payload["subject"] == "l1"
    assert waits[:4] == [0.5, 2.0, 2.0, 2.0]


@pytest.mark.usefixtures("frazil_home")
@pytest.mark.parametrize(
    ("claimed", "action"), [(("run", 2), "CLEARED"), (("run", 1), "TAKEN_OVER"), (None, "TAKEN_OVER")]
)
def test_a_killed_trigger_waits_for_the_next_try_of_its_task_to_claim_the_stream(
    claimed: tuple[str, int] | None, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cleared and deferred again at once, the task looks as if another triggerer had it."""
    task_actions = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = _trigger_of("run", 1)

    async def fetch_task() -> Any:
        run = read_supervising_run("s")
        number = run.try_number if run is not None else None
        return task_actions.DeferredTask(1, "deferred", exists_now=True, try_number_now=number)

    async def meanwhile(_seconds: float) -> None:
        if claimed is not None:
            write_supervising_run("s", *claimed)

    monkeypatch.setattr(trigger, "_fetch_task", fetch_task)
    monkeypatch.setattr(importlib.import_module("frazil.airflow.writers.trigger").asyncio, "sleep", meanwhile)
    assert asyncio.run(trigger._task_action()) is task_actions.TaskAction[action]


@pytest.mark.usefixtures("frazil_home")
def test_a_user_action_reaches_the_writer_however_often_airflow_cancels_the_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow 3.3 sends the cancellation again with each exchange between triggerer and runner, about once a second."""
    module = importlib.import_module("frazil.airflow.writers.trigger")
    trigger, followed = _trigger_of("run", 1), []
    answers = asyncio.Event()

    async def action() -> Any:
        await answers.wait()
        return module.TaskAction.DELETED

    async def supervisor() -> SimpleNamespace:
        return SimpleNamespace(stop=followed.append, preview=lambda: None)

    async def killed() -> None:
        runner = asyncio.create_task(asyncio.wait_for(trigger.on_kill(), 30))
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            runner.cancel()
        with suppress(asyncio.CancelledError):
            await runner
        assert followed == []
        answers.set()
        while module.RUNNING_ACTIONS:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(trigger, "_task_action", action)
    monkeypatch.setattr(trigger, "_make_supervisor", supervisor)
    monkeypatch.setattr(trigger, "_log_step", lambda _: None)
    asyncio.run(asyncio.wait_for(killed(), 20))
    assert followed == ["Airflow: the run run was deleted with its run"]


def test_a_trigger_warns_once_when_a_stall_begins_and_once_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    triggers = importlib.import_module("frazil.airflow.writers.trigger")
    trigger = triggers.WriterTrigger(stream="s", streams="/streams", application="/w.py", poll_seconds=2.0)
    stall = Stall(StallKind.OFFSETS, 0, "t-0", "t-0 holds the offsets back: 5 records are unread")
    decision = Decision(WriterAction.KEEP, Cause.ADVANCING, "pid 7, up 3 min")
    for found in (None, stall, dataclasses.replace(stall, reason="t-1 does"), None, None):
        trigger._log_step(_step(decision, stall=found))
    begun, ended = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert f"s: stalled (offsets): {stall.reason}" in begun
    assert "s: the stall (offsets) is over." in ended
