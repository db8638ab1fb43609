"""The sensor for a complete partition: when it fires, with which event, and when it never does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from frazil.airflow.partitions import sensor, tasks
from frazil.airflow.partitions.sensor import PartitionCompleteSensor, PartitionTrigger
from frazil.airflow.shown_state import MIN_DEFERRAL_S
from frazil.errors import CommitUnavailable, MarkerUnreadable, TableLost
from frazil.signals.completion import GateOutcome, assess_table, load_window_status, signal_windows
from frazil.signals.signal_table import Signal, TableSignals
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

STREAM = """
name: made
source: {topics: [made], bootstrap-servers: "127.0.0.1:1"}
table: demo.made
schema: {at: timestamptz}
event-time: at
complete: hour
complete-from: 2013-12-30T00:00:00Z
lateness: 30m
"""
DAY = 1_388_361_600_000_000
HOUR = 3_600_000_000


def test_a_dag_file_with_a_sensor_imports_no_declaration_or_table_code() -> None:
    unwanted = ["frazil.spec.model", "frazil.airflow.declared_streams", "pyiceberg", "pyarrow"]
    program = f"import sys, frazil.airflow.partitions.sensor; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


class Said:
    """A trigger's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, *arguments: object) -> None:
        self.lines.append(line % arguments)


class Flow:
    """A stream with one record in each hour of 30 December."""

    def __init__(self, folder: Path, file: str = "made.yaml") -> None:
        self.folder = folder
        self.made = MadeStream(load_stream(folder / file), 2_000_000_000_000, partitions=1)
        self.hours = self.sent = 0

    def land(self, hours: int) -> None:
        first, self.hours = self.hours, self.hours + hours
        self._land([DAY + n * HOUR for n in range(first, self.hours)])

    def land_late(self, hour: int) -> None:
        self._land([DAY + hour * HOUR], late={DAY + hour * HOUR: 1})

    def _land(self, times: list[int], late: dict[int, int] | None = None) -> None:
        self.made.columns = lambda _: {self.made.spec.event_time.column: pa.array(times)}
        first, self.sent = self.sent, self.sent + len(times)
        newest = DAY + (self.hours - 1) * HOUR
        self.made.land({0: (first, self.sent)}, times=EventTimes({0: newest}, late or {}))

    def newest(self) -> dict[str, Signal]:
        """The newest signal of each window."""
        found = TableSignals.load(load_catalog(None), self.made.spec.table.identifier).newest(
            from_us=DAY, to_us=2 * DAY
        )
        return {one.partition: one for one in found.values()}

    def signal(self, *, passed: bool = True) -> None:
        seen = assess_table(load_catalog(None), [self.made.spec])
        assert seen is not None
        gate_results = dict.fromkeys(seen.decision.windows, GateOutcome(passed, "a rule is broken"))
        signal_windows(load_catalog(None), seen, clock_ms=2_000_000_000_000, gates=lambda *_: gate_results)

    def trigger(self, partition: str) -> PartitionTrigger:
        return PartitionTrigger(table="demo.made", partition=partition, streams=str(self.folder), poll_seconds=0.01)

    def answer(self, partition: str) -> dict[str, Any]:
        """Return the event that the trigger fires."""
        trigger = self.trigger(partition)

        async def first() -> Any:
            return (await anext(trigger.run())).payload

        return dict(asyncio.run(asyncio.wait_for(first(), 20)))


@pytest.fixture
def flow(frazil_home: Path, tmp_path: Path, settled: None) -> Flow:  # noqa: ARG001
    (tmp_path / "made.yaml").write_text(STREAM)
    return Flow(tmp_path)


def test_the_trigger_fires_only_when_airflow_knows_that_its_task_has_deferred(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.land(4)
    flow.signal()
    slept: list[float] = []

    async def nothing(seconds: float = 0) -> None:
        slept.append(seconds)

    monkeypatch.setattr(sensor, "MIN_DEFERRAL_S", MIN_DEFERRAL_S)
    monkeypatch.setattr(sensor.asyncio, "sleep", nothing)
    assert flow.answer("2013-12-30T01")["problem"] is None
    assert slept == [MIN_DEFERRAL_S]


def test_the_sensor_reports_a_changed_reason_at_once_and_changed_numbers_every_hour(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger, said, checks = flow.trigger("2013-12-30"), Said(), 0
    trigger._log = said

    async def nothing(_: float) -> None: ...

    def check() -> tuple[dict[str, Any] | None, str]:
        nonlocal checks
        checks += 1
        held = " is held" if checks > 100 else ""
        return ({"problem": None} if checks > 240 else None), f"look {min(checks, 120)}{held}"

    monkeypatch.setattr(sensor, "time", SimpleNamespace(monotonic=lambda: 1e6 + 60.0 * checks))
    monkeypatch.setattr(sensor.asyncio, "sleep", nothing)
    monkeypatch.setattr(trigger, "poll", check)

    async def fired() -> Any:
        return await anext(trigger.run())

    asyncio.run(fired())
    assert said.lines == ["look 1", "look 61", "look 101 is held", "look 120 is held"]


def test_the_sensor_returns_the_known_state_of_the_window(flow: Flow) -> None:
    flow.land(4)
    flow.signal()
    answer = flow.answer("2013-12-30T01")
    assert answer["problem"] is None
    assert answer["windows"]["2013-12-30T01"]["rows"] == 1


def test_a_day_of_hours_is_complete_with_its_last_hour(flow: Flow) -> None:
    flow.land(24)
    flow.signal()
    trigger, said = flow.trigger("2013-12-30"), Said()
    trigger._log = said

    async def wait() -> Any:
        firing = asyncio.ensure_future(anext(trigger.run()))
        while not said.lines:
            await asyncio.sleep(0.01)
        assert not firing.done()
        await asyncio.to_thread(flow.land, 2)
        await asyncio.to_thread(flow.signal)
        return (await firing).payload

    answer = asyncio.run(asyncio.wait_for(wait(), 30))
    assert list(answer["windows"]) == [f"2013-12-30T{hour:02}" for hour in range(24)]
    assert said.lines[0] == (
        "demo.made 2013-12-30: 2013-12-30T22 waits: events from 2013-12-30T23:30:00Z or later must arrive; the "
        "newest event of stream made in partition made-0 is from 2013-12-30T23:00:00Z; events dated in the "
        "future do not count"
    )


def test_the_sensor_reports_that_a_gate_holds_the_window_and_keeps_waiting(flow: Flow) -> None:
    flow.land(2)
    flow.land(1)
    flow.signal(passed=False)
    trigger, said = flow.trigger("2013-12-30T00"), Said()
    trigger._log = said

    async def wait() -> None:
        firing = asyncio.ensure_future(anext(trigger.run()))
        while not said.lines:
            await asyncio.sleep(0.01)
        firing.cancel()

    asyncio.run(asyncio.wait_for(wait(), 20))
    assert said.lines == ["demo.made 2013-12-30T00: 2013-12-30T00 is held by its quality gate: a rule is broken"]


@pytest.mark.parametrize(
    ("partition", "problem"),
    [
        (
            "2013-12-29T05",
            "2013-12-29T05 of demo.made: it is never signalled, because signals begin with 2013-12-30T00",
        ),
        ("yesterday", "SpecError: partition 'yesterday' is neither an hour, such as 2013-01-01T05, nor a day"),
    ],
)
def test_a_window_that_will_never_be_signalled_fails_the_task_at_once(flow: Flow, partition: str, problem: str) -> None:
    flow.land(4)
    flow.signal()
    answer = flow.answer(partition)
    assert problem in answer["problem"]
    sensor = PartitionCompleteSensor(task_id="wait", table="demo.made", partition=partition, streams=flow.folder)
    with pytest.raises(AirflowFailException, match=r"never signalled|neither"):
        sensor.execute_complete({}, answer)


def test_a_sensor_for_a_complete_window_succeeds_at_once(flow: Flow) -> None:
    flow.land(4)
    flow.signal()
    sensor = PartitionCompleteSensor(task_id="wait", table="demo.made", partition="2013-12-30T01", streams=flow.folder)
    assert sensor.execute({})["2013-12-30T01"]["rows"] == 1


def test_the_sensor_defers_and_its_trigger_can_be_recreated(flow: Flow) -> None:
    sensor = PartitionCompleteSensor(
        task_id="wait", table="demo.made", partition="2013-12-30", streams=flow.folder, poke_interval=30
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "frazil.airflow.partitions.sensor.PartitionTrigger"
    assert arguments == {
        "table": "demo.made", "partition": "2013-12-30", "streams": str(flow.folder), "poll_seconds": 30,
    }  # fmt: skip


def test_a_failing_catalog_is_retried_until_an_error_that_a_user_must_fix(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.land(4)
    flow.signal()
    trigger, said = flow.trigger("2013-12-30T01"), Said()
    trigger._log = said
    answers = iter([ConnectionError("reset by peer"), CommitUnavailable("no answer"), MarkerUnreadable("edited")])

    def fail(*_: object) -> None:
        raise next(answers)

    monkeypatch.setattr("frazil.signals.completion.load_window_status", fail)

    async def first() -> Any:
        return (await anext(trigger.run())).payload

    payload = asyncio.run(asyncio.wait_for(first(), 20))
    assert payload == {"problem": "MarkerUnreadable: edited"}
    assert said.lines == [
        "the check failed and will be retried: ConnectionError('reset by peer')",
        "the check failed and will be retried: no answer",
    ]


def test_a_lost_catalog_is_reported_and_no_new_one_is_created(flow: Flow, frazil_home: Path) -> None:
    flow.land(4)
    flow.signal()
    for path in frazil_home.glob("catalog.db*"):
        path.rename(frazil_home / f"aside-{path.name}")
    for asks in (
        lambda: load_window_status([flow.made.spec], "2013-12-30T01"),
        lambda: tasks.check_completeness("demo.made", flow.folder, after=0),
        lambda: tasks.signal_complete_windows("demo.made", flow.folder, {}, expectations=None),
        lambda: tasks.take_held_signals("demo.made", flow.folder, {}),
    ):
        with pytest.raises(TableLost, match=r"demo\.made is not in the catalog 'default'"):
            asks()
    assert not (frazil_home / "catalog.db").exists()
