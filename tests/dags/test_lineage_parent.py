"""The parents of writers and submitted applications in OpenLineage, and how much a deferral sends."""

from __future__ import annotations

import importlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from openlineage.client.uuid import generate_static_uuid

from frazil.errors import SpecError
from frazil.events import EventDispatcher
from frazil.history.recorder import RecordingThreads
from frazil.lineage.facts import PARENT_VARIABLE, LineageSettings
from frazil.spec.load import load_stream
from frazil.stream.recording import record_events
from frazil.supervise.supervised import Program, SupervisedApplication, SupervisedStream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.lineage_backend import tracing
from tests.unit.lineage.test_lineage import BATCH, EPOCH

RAN = datetime(2026, 1, 2, 3, tzinfo=UTC)
LOGICAL = datetime(2026, 1, 1, tzinfo=UTC)
ON = {"OPENLINEAGE_URL": "http://127.0.0.1:1"}
STREAM = """
name: s
source: {topics: [s], bootstrap-servers: "127.0.0.1:1"}
table: demo.s
schema: {ts: timestamptz not null}
event-time: ts
"""


def context(*, try_number: int = 1, logical: datetime | None = None, map_index: int | None = -1) -> Any:
    ti = SimpleNamespace(
        dag_id="frazil_writer_s", task_id="write", run_id="run", try_number=try_number, map_index=map_index
    )
    return {"ti": ti, "dag_run": SimpleNamespace(logical_date=logical, run_after=RAN)}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    return importlib.import_module("frazil.airflow.lineage_parent")


@pytest.mark.parametrize(
    ("given", "moment", "data"),
    [
        ({}, RAN, "default.frazil_writer_s.write.1.-1"),
        ({"logical": LOGICAL}, LOGICAL, "default.frazil_writer_s.write.1.-1"),
        ({"try_number": 3, "map_index": 7}, RAN, "default.frazil_writer_s.write.3.7"),
        ({"map_index": None}, RAN, "default.frazil_writer_s.write.1.-1"),
    ],
)  # fmt: skip
def test_the_openlineage_run_id_equals_that_of_airflows_provider(
    module: Any, given: Any, moment: datetime, data: str
) -> None:
    expected = f"default/frazil_writer_s.write/{generate_static_uuid(moment, data.encode())}"
    assert module.parent_id(context(**given), ON) == expected
    assert LineageSettings.load({**ON, PARENT_VARIABLE: expected}).parent is not None


def test_the_lineage_namespace_is_that_of_airflow(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "team")
    assert module.parent_id(context(), ON).startswith("team/")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "platform")
    assert module.parent_id(context(), ON).startswith("platform/")


def test_no_lineage_parent_is_created_without_a_backend_or_if_a_user_named_one(module: Any) -> None:
    assert module.parent_id(context(), {}) is None
    assert module.parent_id(context(), {**ON, "OPENLINEAGE_DISABLED": "true"}) is None
    assert module.parent_id(context(), {**ON, PARENT_VARIABLE: "a/b/c"}) is None


def test_an_installed_openlineage_provider_is_used_and_its_failure_fails_no_task(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    macros: Any = ModuleType("airflow.providers.openlineage.plugins.macros")
    macros.lineage_parent_id = lambda ti: f"theirs/{ti.dag_id}/id"
    monkeypatch.setitem(sys.modules, macros.__name__, macros)
    for parent in ("airflow.providers.openlineage", "airflow.providers.openlineage.plugins"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    assert module.parent_id(context(), ON) == "theirs/frazil_writer_s/id"

    def broken(_: Any) -> str:
        raise RuntimeError("no configuration")

    macros.lineage_parent_id = broken
    assert module.parent_id(context(), ON) is None


def test_a_submitted_application_gets_the_lineage_parent_in_every_deploy_mode(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", ON["OPENLINEAGE_URL"])
    expected = module.parent_id(context())
    with module.submit_as_parent(context(), {"spark.x": "1"}) as properties:
        assert os.environ[PARENT_VARIABLE] == expected
        assert properties == {
            "spark.yarn.appMasterEnv.OPENLINEAGE_PARENT_ID": expected,
            "spark.kubernetes.driverEnv.OPENLINEAGE_PARENT_ID": expected,
            "spark.x": "1",
        }
    assert PARENT_VARIABLE not in os.environ
    with pytest.raises(SpecError, match="it failed"), module.submit_as_parent(context(), {}):
        raise SpecError("it failed")
    assert PARENT_VARIABLE not in os.environ
    monkeypatch.delenv("OPENLINEAGE_URL")
    with module.submit_as_parent(context(), {"spark.x": "1"}) as properties:
        assert (properties, PARENT_VARIABLE in os.environ) == ({"spark.x": "1"}, False)


@pytest.mark.usefixtures("module", "frazil_home")
def test_a_writer_launched_for_a_task_is_its_lineage_child_unless_a_user_set_another_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text(STREAM)
    (tmp_path / "t.yaml").write_text(f"{STREAM.replace(' s', ' t').replace('.s', '.t')}application: both\n")

    def launched(kind: Any, name: str, parent: str | None) -> str | None:
        supervised = kind(Program(name, tmp_path, tmp_path / "w.py", parent))
        supervised.read()
        request = supervised.build_launch_request(generation=0, connections=lambda _: {})
        return request.environment.get(PARENT_VARIABLE)  # type: ignore[no-any-return]

    programs = [(SupervisedStream, "s", "a/b/c"), (SupervisedApplication, "both", "a/b/c")]
    assert [launched(*program) for program in programs] == ["a/b/c", "a/b/c"]
    assert launched(SupervisedStream, "s", None) is None
    monkeypatch.setenv(PARENT_VARIABLE, "x/y/z")
    assert [launched(*program) for program in programs] == ["x/y/z", "x/y/z"]


@pytest.mark.usefixtures("frazil_home")
def test_repeated_deferrals_of_a_task_send_no_lineage_events_and_its_writer_sends_one_pair(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each retry, and each triggerer that takes over the task, finds the running writer."""
    operator = importlib.import_module("frazil.airflow.writers.operator").WriterOperator
    task = operator(task_id="write", stream="s", streams=tmp_path)
    (tmp_path / "s.yaml").write_text(STREAM)
    spec = load_stream(tmp_path / "s.yaml")
    table = ensure_table(load_catalog(None), spec)
    with tracing(monkeypatch) as received:
        events = EventDispatcher("s", clock_ms=lambda: 1_800_000_000_000)
        deferred = []
        with record_events(spec, events, RecordingThreads()) as recording:
            assert recording.lineage is not None
            recording.lineage.opens(lambda: table)
            recording.recording_threads.add(recording.lineage, storage="openlineage")
            events.emit(EPOCH)
            for _ in range(3):
                with pytest.raises(TaskDeferred) as found:
                    task.execute(context())
                deferred.append(found.value.trigger)
            events.emit(BATCH)
            given_up = {"reason": "r", "cause": "c", "subject": "l", "table_fingerprint": None}
            with pytest.raises(AirflowFailException):
                task.execute_complete(context(), given_up)
    assert [event["eventType"] for event in received] == ["START", "COMPLETE"]
    assert {trigger.parent for trigger in deferred} == {module.parent_id(context(), ON)}
    arguments = deferred[0].serialize()[1]
    assert type(deferred[0])(**arguments).serialize()[1] == arguments
