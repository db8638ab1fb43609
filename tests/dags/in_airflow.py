"""Functions that run inside Airflow without a scheduler, in processes forked from one that has imported Airflow.

Importing Airflow takes four seconds of CPU, and so does creating its database; this spares each test both. Each process
has its own environment, database and parsed DAG folder, and runs one function at a time.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import multiprocessing
import os
import sqlite3
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.no_sync import write_without_sync

CHECKOUT = Path(__file__).resolve().parents[2]
CALL_S = 250
PRELOADED = ["tests.dags.preloaded"]


class AirflowProcess:
    """A forked process. `home` gets its log, and its database as a copy of `database`."""

    def __init__(self, home: Path, *, database: Path | None = None, **variables: str) -> None:
        home.mkdir(exist_ok=True)
        if database is not None:
            # It may be in the write-ahead log yet, which a copy of the file does not have.
            with closing(sqlite3.connect(database)) as made, closing(sqlite3.connect(home / "airflow.db")) as copy:
                made.backup(copy)
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
            **variables,
        }
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._connection, theirs = context.Pipe()
        self._log = home / "process.log"
        self._process = context.Process(target=_serve, args=(theirs, environment, str(self._log)), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a function of this module in the process, and return its result."""
        self._connection.send((function, arguments, named))
        assert self._connection.poll(CALL_S), f"{function.__name__} does not end: {self._log.read_text()[-3000:]}"
        try:
            answer, error = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise AssertionError(self._log.read_text()[-3000:]) from None
        assert error is None, error + self._log.read_text()[-3000:]
        return answer

    def end(self) -> None:
        self._connection.close()
        self._process.join(30)


def _serve(connection: Connection, environment: Mapping[str, str], log: str) -> None:
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(said, descriptor)
    os.environ.clear()
    os.environ.update(environment)
    gc.freeze()  # what was imported before the fork
    write_without_sync()
    settings = importlib.import_module("airflow.settings")
    settings.configure_vars()
    settings.configure_orm()
    while True:
        try:
            function, arguments, named = connection.recv()
        except EOFError:
            return
        try:
            connection.send((function(*arguments, **named), None))
        except Exception:
            connection.send((None, traceback.format_exc()))


def make_database() -> None:
    from airflow.utils import db  # Airflow is imported in these processes alone

    db.initdb()


def exported_names() -> tuple[list[str], set[str]]:
    """Import each name of `frazil.airflow`. Return the names, and the packages that are loaded afterwards."""
    room = importlib.import_module("frazil.airflow")
    names = [name for name in sorted(room.MODULES) if getattr(room, name).__name__ == name]
    return names, {name.split(".")[0] for name in sys.modules}


def parse(folder: str) -> dict[str, Any]:
    """Return facts about a folder's DAGs, parsed as Airflow's DAG processor does."""
    from airflow.dag_processing.dagbag import DagBag

    cpu = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bag = DagBag(folder)
    captured = [str(w) for found in bag.captured_warnings.values() for w in found]
    return {
        "cpu_s": time.process_time() - cpu,
        "errors": bag.import_errors,
        "warnings": [str(w.message) for w in caught] + captured,
        "loaded": sorted({name.split(".")[0] for name in sys.modules}),
        "dags": {dag.dag_id: _facts(dag) for dag in bag.dags.values()},
    }


def _facts(dag: Any) -> dict[str, Any]:
    return {
        "tasks": {t.task_id: type(t).__name__ for t in dag.tasks},
        "weights": {t.task_id: [t.priority_weight, str(t.weight_rule)] for t in dag.tasks},
        "tags": sorted(dag.tags),
        "display_name": dag.dag_display_name,
        "description": dag.description,
        "owner": dag.owner,
        "retries": {t.task_id: t.retries for t in dag.tasks},
        "reported": {t.task_id: [_named(call) for call in t.on_failure_callback] for t in dag.tasks},
        "doc": dag.doc_md,
        "max_active_runs": dag.max_active_runs,
        "timetable": type(dag.timetable).__name__,
        "timeout": str(dag.dagrun_timeout),
        "catchup": dag.catchup,
        "schedule": getattr(dag.timetable, "expression", None),
        "every": str(dag.schedule) if isinstance(dag.schedule, timedelta) else None,
        "queues": {t.task_id: t.queue for t in dag.tasks},
        "params": dag.params.dump(),
        "outlets": {t.task_id: [asset.name for asset in t.outlets] for t in dag.tasks if t.outlets},
    }


def _named(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def serialized(folder: str) -> dict[str, Any]:
    """Return each DAG of a folder as Airflow's database stores it. A change makes Airflow create a new DAG version."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import DagSerialization

    found = {dag_id: DagSerialization.to_dict(dag) for dag_id, dag in DagBag(folder).dags.items()}
    for data in found.values():
        del data["dag"]["_processor_dags_folder"]  # a setting of the deployment, in which all DAG processors agree
    return {dag_id: [SerializedDagModel.hash(data), json.loads(json.dumps(data))] for dag_id, data in found.items()}


@functools.cache
def dags(path: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    found = DagBag(path).dags
    for dag in found.values():
        dag.deadline = None  # `dag.test()` cannot read what it has made of one
    return found


def run(
    dag_id: str, conf: dict[str, Any] | None, moment: datetime | None, *, later: timedelta = timedelta(0)
) -> dict[str, Any]:
    """Run a DAG to its end. Return its state, its tasks' states by id, and all asset events so far, oldest first.

    frazil's clock shows `later` than now; then Kafka reports no lag. A mapped task's id ends with its instance's name
    in brackets, as in Airflow's UI.
    """
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from frazil import clock

    now_ms = clock.now_ms() + later // timedelta(milliseconds=1)
    with ExitStack() as then:
        if later:
            then.enter_context(patch.object(clock, "now_ms", lambda: now_ms))
            then.enter_context(patch("frazil.maintenance.measure.kafka_lag", lambda *_: None))
        done = dags(str(CHECKOUT / "dags"))[dag_id].test(run_conf=conf, **({"logical_date": moment} if moment else {}))
    with create_session() as session:
        found = session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        events = [[e.asset.name, e.partition_key, e.extra] for e in found]
        tasks = {_shown(ti): str(ti.state) for ti in done.get_task_instances(session=session)}
    return {"state": str(done.state), "tasks": tasks, "events": events}


def _shown(ti: Any) -> str:
    return ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.rendered_map_index or ti.map_index}]"


def put(name: str, *, events: Sequence[Any] = (), store: Mapping[str, Any] | None = None, queued: bool = False) -> None:
    """Store what other users may store in Airflow: an asset's events and values, and a queued run that they started."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        asset = session.scalars(select(AssetModel).where(AssetModel.name == name)).one()
        for extra, key in events:
            session.add(AssetEvent(asset_id=asset.id, extra=extra, partition_key=key))
        for key, value in (store or {}).items():
            session.merge(AssetStateStoreModel(asset_id=asset.id, key=key, value=json.dumps(value)))
        if queued:
            waits = DagRun(dag_id="reader", run_id="waits", run_type="asset_triggered", state="queued")
            session.add(waits)
            found = session.scalars(select(AssetEvent).where(AssetEvent.asset_id == asset.id))
            waits.consumed_asset_events.extend(found)


@functools.cache
def _api_server() -> Any:
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    return TestClient(create_app(apps="core"), base_url="http://airflow.example")


def ask(  # noqa: PLR0913 - who asks, and what
    role: str | None,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: Any = None,
    teams: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the API server's response to a user with this role, who is signed in by cookie like a browser."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    server = _api_server()
    server._transport.raise_server_exceptions = False  # as a person meets what no one expected
    user = SimpleAuthManagerUser(username=(role or "").lower(), role=role, teams=list(teams))
    cookies = {"Cookie": f"_token={get_auth_manager().generate_jwt(user)}"} if role else {}
    began = time.monotonic()
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = server.request(method, path, headers={**cookies, **headers}, **sent)
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return {
        "status": answer.status_code,
        "headers": dict(answer.headers),
        "body": answer.json() if is_json else answer.text,
        "seconds": time.monotonic() - began,
    }


def meet_other_files(change: bool) -> None:
    """Make frazil's files look replaced under the running API server, so actions fail to load; or undo this."""
    from frazil import outdated_code
    from frazil.airflow.page import actions  # needs AIRFLOW_HOME

    def cannot_be_loaded(*_: Any) -> Any:
        raise ImportError("cannot import name 'PageAction'")

    if change:
        outdated_code._starts[:] = [outdated_code.ProcessStart("API server", frozenset())]
        actions.__dict__["action_subject_before"] = actions.find_action_subject
        actions.find_action_subject = cannot_be_loaded
    else:
        outdated_code._starts.clear()
        actions.find_action_subject = actions.__dict__.pop("action_subject_before")


def silence_database(silent: bool) -> None:
    """Make Airflow's database hang when `actions` reads which DAGs are paused; or undo this."""
    import threading

    from frazil.airflow.page import actions, airflow_database, views  # needs AIRFLOW_HOME

    views.answer_cache.cache_clear()
    if silent:
        released = threading.Event()
        actions.read_pauses = lambda _: released.wait(60)
        actions.__dict__["database_is_back"] = released.set
    else:
        actions.__dict__.pop("database_is_back")()
        actions.read_pauses = airflow_database.read_pauses


def store_dags() -> list[str]:
    """Store the DAG folder in Airflow's database. Return the ids of its DAGs."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = (one for one in manager.get_all_dag_bundles() if one.name == "dags-folder")
    bundle.initialize()
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, bundle.version)
    return sorted(bag.dags)


def unpause(*but: str) -> None:
    """Unpause every DAG except for some."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.not_in(but)).values(is_paused=False))


def put_heartbeats(**seconds_ago: float) -> None:
    """Store the last heartbeats of Airflow's processes, by job type and age in seconds."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    now = datetime.now(UTC)
    with create_session() as session:
        session.execute(delete(Job))
        for kind, ago in seconds_ago.items():
            session.add(Job(job_type=kind, state="running", latest_heartbeat=now - timedelta(seconds=ago)))


ALIVE = {"SchedulerJob": -86_400.0, "TriggererJob": -86_400.0, "DagProcessorJob": -86_400.0}
"""Heartbeats from a day in the future, so that they stay recent during all tests."""


def begin_run(dag_id: str, values: Mapping[str, Any]) -> str:
    """Create a running DAG run whose tasks have returned these values. Return its id."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import select

    run = trigger_dag(dag_id=dag_id, triggered_by=DagRunTriggeredByType.TEST)
    with create_session() as session:
        found = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run.run_id)).one()
        found.state = "running"
        for task_id, value in values.items():
            of = {"dag_id": dag_id, "task_id": task_id, "run_id": run.run_id}
            XComModel.set(key="return_value", value=value, **of, session=session)
    return str(run.run_id)


def measure_health(streams: str, *, without: str) -> list[str]:
    """Return the rules that `frazil_health` reports after 20 minutes without change, for all streams but one."""
    import tempfile

    from frazil import clock
    from frazil.airflow.health.tasks import measure_all

    kept: dict[str, Any] = {}

    class Store:
        get, set = kept.get, kept.__setitem__

    now_ms, found = clock.now_ms(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as name:
        for file in Path(streams).glob("*.yaml"):
            if file.stem != without:
                (Path(name) / file.name).symlink_to(file)
        for minutes in (20, 10, 0):
            with patch.object(clock, "now_ms", lambda at=minutes: now_ms - at * 60_000):
                found = measure_all(Path(name), Store, failed=lambda *_: 0)  # type: ignore[arg-type]
    begin_run("frazil_health", {"measure": found})
    return sorted(alert["rule"] for alert in found["active"])


def runs_of(dag_id: str) -> list[dict[str, Any]]:
    """The parameters of each run of a DAG, oldest first."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id))
        return [dict(run.conf or {}) for run in found]


def set_run(dag_id: str, run_id: str, state: str) -> None:
    """Set the state of a DAG run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id).values(state=state))


def end_task(dag_id: str, run_id: str, task_id: str, state: str, said: str) -> None:
    """Set the state of a run's task that has reported a result, and of the run."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from frazil.airflow.dag_profile import RESULT_KEY  # needs AIRFLOW_HOME

    set_run(dag_id, run_id, state)
    of = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
    with create_session() as session:
        session.scalars(select(TaskInstance).filter_by(**of)).one().state = state
        XComModel.set(key=RESULT_KEY, value=said, **of, session=session)


def dag_is_paused(dag_id: str) -> bool:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        return bool(session.get(DagModel, dag_id).is_paused)


def delete_runs(dag_id: str) -> None:
    """Delete all runs of a DAG."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_id))


def ask_between(role: str, path: str, *, headers: Mapping[str, str], body: Any) -> list[dict[str, Any]]:
    """Return the responses to two equal requests. One is made while the other is between its check and its DAG run."""
    from frazil.airflow.page import actions  # needs AIRFLOW_HOME

    begin, answers = actions.trigger_dag, list[dict[str, Any]]()

    def after_another(**requested: Any) -> Any:
        with patch.object(actions, "trigger_dag", begin):
            answers.append(ask(role, "POST", path, headers=headers, body=body))
        return begin(**requested)

    with patch.object(actions, "trigger_dag", after_another):
        answers.append(ask(role, "POST", path, headers=headers, body=body))
    return answers


def request_between(
    role: str, path: str, actions_and_forms: Mapping[str, Any], *, headers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the responses to two actions on `ticks`. The second happens between the first one's read and write."""
    from frazil.airflow.page import actions  # needs AIRFLOW_HOME

    write, answers = actions._set_desired, list[dict[str, Any]]()
    (slow, slow_form), (quick, quick_form) = actions_and_forms.items()

    def after_another(*given: Any, **more: Any) -> str:
        with patch.object(actions, "_set_desired", write):
            answers.append(ask(role, "POST", f"{path}/{quick}/ticks", headers=headers, body=quick_form))
        return write(*given, **more)

    with patch.object(actions, "_set_desired", after_another):
        answers.append(ask(role, "POST", f"{path}/{slow}/ticks", headers=headers, body=slow_form))
    return answers


def ask_without_catalog(  # noqa: PLR0913 - a request, and what it meets
    role: str, path: str, *, headers: Mapping[str, str], body: Any, where: str, hangs: bool
) -> dict[str, Any]:
    """Return the response to an action if the catalog fails, or hangs, in the function `where` of `actions`."""
    from frazil.airflow.page import actions  # needs AIRFLOW_HOME
    from frazil.errors import CommitUnavailable  # next to it

    with patch.object(
        actions, where, side_effect=TimeoutError("no answer") if hangs else CommitUnavailable("no answer")
    ):
        return ask(role, "POST", path, headers=headers, body=body)


def declare_elsewhere(streams: str) -> None:
    """Let this process's API server read streams from another folder from now on."""
    from frazil.airflow.page.views import answer_cache

    os.environ["FRAZIL_STREAMS"] = streams
    answer_cache().forget("declarations")


def map_task(dag_id: str, run_id: str, task_id: str, label: str | None) -> None:
    """Give a task of a run its first mapped instance. `label` is None before the instance starts."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        of_run = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
        instance = session.scalars(select(TaskInstance).where(*of_run)).one()
        instance.map_index, instance._rendered_map_index = 0, label


def serve(port: int) -> bool:
    """Serve Airflow's whole UI and API on the loopback, until the process ends."""
    import threading

    import uvicorn
    from airflow.api_fastapi.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(apps="all"), host="127.0.0.1", port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    return True


def forget_answers() -> None:
    """Empty the operations page's cache, as in an API server that has just started."""
    from frazil.airflow.page import views  # needs AIRFLOW_HOME

    views.answer_cache.cache_clear()


def pause(dag_id: str, paused: bool | None) -> None:
    """Create a DAG in Airflow's database, paused or not; delete it if `paused` is None."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        if paused is None:
            session.execute(delete(DagModel).where(DagModel.dag_id == dag_id))
            return
        session.merge(DagBundleModel(name="of-tests"))
        session.flush()
        session.merge(DagModel(dag_id=dag_id, bundle_name="of-tests", is_stale=False, is_paused=paused))


def doctor_of_dags() -> list[str]:
    """Return what `frazil doctor` finds about the DAGs of all streams."""
    from frazil.airflow.doctor import _check_shared_dags

    return [one.message for one in _check_shared_dags("airflow")]


def give_to_team(team: str, dag_id: str) -> None:
    """Turn on Airflow's teams, and create a DAG that belongs to one."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    os.environ["AIRFLOW__CORE__MULTI_TEAM"] = "True"
    with create_session() as session:
        bundle = DagBundleModel(name=f"of-{team}")
        bundle.teams.append(Team(name=team))
        session.add(bundle)
        session.flush()
        session.add(DagModel(dag_id=dag_id, bundle_name=bundle.name, is_stale=False))


def token(role: str) -> str:
    """Return the session cookie of a user with this role."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return str(get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role.lower(), role=role)))


def put_window_runs(table: str, runs: Sequence[tuple[str, str, str]]) -> None:
    """Store DAG runs that events of a table's windows started: (partition key, DAG id, state)."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        asset = session.scalars(select(AssetModel).where(AssetModel.name == table)).first()
        if asset is None:
            asset = AssetModel(name=table, uri=table, group="frazil")
            session.add(asset)
            session.flush()
        for number, (key, dag_id, state) in enumerate(runs):
            event = AssetEvent(asset_id=asset.id, extra={}, partition_key=key)
            run = DagRun(dag_id=dag_id, run_id=f"asset__{number}", run_type="asset_triggered", state=state)
            event.created_dagruns.append(run)
            session.add(event)


def audit_log(event: str) -> list[tuple[str | None, str | None, str]]:
    """Return user, DAG and text of each entry for an event in Airflow's audit log."""
    from airflow.models import Log
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(Log).filter(Log.event == event).order_by(Log.id)
        return [(entry.owner, entry.dag_id, entry.extra or "") for entry in found]


def run_for_day(file: str, dag_id: str, key: str) -> dict[str, Any]:
    """Run a DAG for the partition `key`. Return its tasks' states, and the events that it sent.

    After an @, the key says what started the run: `events`, or `cleared` if a user cleared a run that events had
    started.
    """
    from airflow.models import dagrun
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.asset_state_store import AssetStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    made = dagrun.get_or_create_dagrun

    def with_key(*arguments: Any, **named: Any) -> Any:  # dag.test() has no argument for it
        found = made(*arguments, **named)
        found.partition_key, _, events = key.partition("@")
        if events:
            found.run_type = "asset_triggered"
            found.clear_number = int(events == "cleared")
        named["session"].commit()
        return found

    with patch.object(dagrun, "get_or_create_dagrun", with_key):
        done = dags(file)[dag_id].test()
    with create_session() as session:
        tasks = {ti.task_id: str(ti.state) for ti in done.get_task_instances(session=session)}
        for asset in session.scalars(select(AssetModel).where(AssetModel.name == "frazil.again.sales")):
            day = json.dumps("2013-12-29")  # as if it had been watched from there
            session.merge(AssetStateStoreModel(asset_id=asset.id, key="frazil.first-day", value=day))
        sent = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == done.run_id))
        return {"tasks": tasks, "events": [[event.asset.name, event.partition_key] for event in sent]}


def run_for_events(files: str, dag_id: str, key: str, events: Mapping[str, Sequence[Any]]) -> Any:
    """Run a DAG for the partition `key` as if these asset events started it. Return the result of its task `count`."""
    from airflow.models import dagrun
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    made = dagrun.get_or_create_dagrun

    def started(*arguments: Any, **named: Any) -> Any:
        found, session = made(*arguments, **named), named["session"]
        found.partition_key, found.run_type = key, "asset_triggered"
        for name, extras in events.items():
            asset = session.scalars(select(AssetModel).where(AssetModel.name == name)).one()
            found.consumed_asset_events.extend(AssetEvent(asset_id=asset.id, extra=extra) for extra in extras)
        session.commit()
        return found

    with patch.object(dagrun, "get_or_create_dagrun", started):
        done = dags(files)[dag_id].test()
    with create_session() as session:
        (count,) = done.get_task_instances(session=session)
        return count.xcom_pull(task_ids="count", session=session)


def schedules(file: str, requested: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return, for each DAG and asset key, the day to which the scheduler maps the key, and the keys that this day
    needs.

    Also returns the assets of each DAG. Both come from the serialized DAG.
    """
    from airflow.serialization.serialized_objects import DagSerialization

    reported: dict[str, Any] = {}
    for dag_id, asset, key in requested:
        timetable = DagSerialization.from_dict(DagSerialization.to_dict(dags(file)[dag_id])).timetable
        mapper = timetable.get_partition_mapper(name=asset)
        day = mapper.to_downstream(key)
        reported[f"{dag_id} {asset}"] = [day, sorted(mapper.to_upstream(day)) if mapper.is_rollup else None]
        reported[dag_id] = json.dumps(timetable.asset_condition.as_expression())
    return reported
