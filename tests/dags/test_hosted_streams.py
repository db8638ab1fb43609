"""The task of a stream in a shared application: what it shows, and how users control the stream with it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.home import run_folder
from frazil.host import local
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, Launch, LaunchKind, append_exit
from frazil.host.supervising_run import announce_given_up, confirm_given_up
from frazil.json_files import replace_json
from frazil.supervise.desired_state import DesiredStore

STREAM = """
name: s
application: {application}
source: {{topics: [s], bootstrap-servers: "127.0.0.1:1"}}
table: demo.s
schema: {{ts: timestamptz not null}}
event-time: ts
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.import_module("frazil.airflow.writers.hosted_trigger")
    monkeypatch.setattr(found, "MIN_DEFERRAL_S", -1.0)
    monkeypatch.setattr(found, "POLL_INTERVAL_S", 0.01)
    return found


@pytest.fixture
def trigger(module: Any, tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001
    run_folder("s").mkdir(parents=True)
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "s.yaml").write_text(STREAM.format(application="small"))

    running, of_stream = Observation(ProcessState.RUNNING, None, None, ()), local.LocalLauncher
    application = SimpleNamespace(observe=lambda: running)
    monkeypatch.setattr(local, "LocalLauncher", lambda name: application if name == "small" else of_stream(name))

    def make(*, resume: bool = False) -> Any:
        one = module.HostedStreamTrigger(
            stream="s", application="small", streams=str(tmp_path / "streams"), resume=resume
        )
        one.task_instance = SimpleNamespace(run_id="run", try_number=1 + resume, dag_id="d", task_id="stream.s")
        monkeypatch.setattr(one, "_open_desired", lambda: DesiredStore("s", None))
        return one

    return make


def first_event(trigger: Any) -> Any:
    async def first() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 20)

    return asyncio.run(first())


def give_up() -> None:
    confirm_given_up("s", "", reason="exit code 11", table_fingerprint=None)


def desired() -> tuple[str, str]:
    found = DesiredStore("s", None).read()
    return str(found.mode), found.by


def test_a_trigger_can_be_recreated_from_its_serialized_form(trigger: Any) -> None:
    path, arguments = trigger(resume=True).serialize()
    assert path == "frazil.airflow.writers.hosted_trigger.HostedStreamTrigger"
    assert type(trigger())(**arguments).serialize() == (path, arguments)


def test_a_task_fails_once_its_application_gave_up_and_an_automatic_retry_resumes_nothing(trigger: Any) -> None:
    give_up()
    assert first_event(trigger(resume=True)).payload == {"reason": "exit code 11"}
    assert desired() == ("running", "")


def test_a_host_without_the_running_application_is_reported_and_fails_no_task(
    trigger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up()
    never = SimpleNamespace(observe=lambda: Observation(ProcessState.NEVER_LAUNCHED, None, None, ()))
    monkeypatch.setattr(local, "LocalLauncher", lambda _: never)
    seen = trigger()._observe()
    assert (seen.state, seen.given_up) == ("the application small does not run on this host", None)


def test_a_stream_whose_application_was_killed_is_reported_as_ended_with_it(trigger: Any) -> None:
    replace_json(run_folder("s") / "lock", dataclasses.asdict(Launch("one", LaunchKind.HOSTED, 0, application="small")))
    append_exit(run_folder("s"), ExitRecord("one", None, 0, 1, "f", 0, committed=False))
    assert trigger()._observe().state == "ended: killed with its application, or its host went down"


def test_clearing_a_task_that_failed_because_the_stream_was_given_up_resumes_the_stream(trigger: Any) -> None:
    give_up()
    announce_given_up("s", "", run_id="run", reason="exit code 11", table_fingerprint=None)
    trigger(resume=True)._begin()
    assert desired() == ("running", "Airflow")


@pytest.mark.parametrize(("state", "mode"), [("failed", "paused"), ("success", "paused"), ("running", "running")])
def test_marking_a_task_pauses_only_its_stream_and_clearing_restarts_it(
    trigger: Any, state: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_actions = importlib.import_module("frazil.airflow.writers.trigger")
    one = trigger()

    async def fetch_task() -> Any:
        return task_actions.DeferredTask(1, state, exists_now=True, try_number_now=1)

    monkeypatch.setattr(one, "_fetch_task", fetch_task)
    asyncio.run(one.on_kill())
    assert desired() == (mode, "Airflow")
    assert (DesiredStore("s", None).read().restart_generation > 0) == (mode == "running")


def test_a_cleared_task_undoes_its_own_pause_but_no_pause_by_a_user(trigger: Any) -> None:
    trigger()._pause()
    assert desired() == ("paused", "Airflow")
    trigger(resume=True)._begin()
    assert desired() == ("running", "Airflow")
    DesiredStore("s", None).pause(by="ana", reason="Kafka upgrade")
    trigger(resume=True)._begin()
    trigger()._restart()
    assert desired() == ("paused", "ana")


def test_the_trigger_names_the_user_who_paused_a_stream_that_does_not_run(trigger: Any, module: Any) -> None:
    DesiredStore("s", None).pause(by="ana", reason="Kafka upgrade")
    assert (
        trigger()._describe_pause(module.HostedObservation("ended"))
        == "; paused by ana: Kafka upgrade; start it with `frazil resume s`"
    )
    assert not trigger()._describe_pause(module.HostedObservation("running", is_alive=True))


def test_a_failed_check_keeps_the_task_running_and_leaving_the_application_ends_it(
    trigger: Any, module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, checks = trigger(), iter([OSError("no space"), module.HostedObservation("running", is_alive=True)])
    real = one._observe

    def watch() -> Any:
        found = next(checks, None)
        if isinstance(found, OSError):
            raise found
        if found is None:
            (tmp_path / "streams" / "s.yaml").write_text(STREAM.format(application="other"))
        return found or real()

    monkeypatch.setattr(one, "_observe", watch)
    assert type(first_event(one)).__name__ == "TaskSuccessEvent"


def test_a_stream_that_runs_again_is_no_longer_given_up(trigger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up()
    seen = Observation(ProcessState.HOSTED, None, None, ())
    monkeypatch.setattr(local, "LocalLauncher", lambda _: SimpleNamespace(observe=lambda: seen))
    assert trigger()._observe().given_up is None
