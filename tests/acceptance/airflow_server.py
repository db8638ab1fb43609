"""Airflow for the acceptance tests: a metadata database and the checkout's DAG files, but no scheduler. Tests run the
DAGs.

One process serves one cell after another, because importing Airflow takes seconds. Each cell begins with an empty
database. Run as a program, this module is the server: it reads requests from standard input, one line of JSON each, and
prints the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.no_sync import write_without_sync

CHECKOUT = Path(__file__).resolve().parents[2]
ANSWER = "ANSWER "

Published = tuple[str, int]
"""A window's key, and the number of its signal."""


@dataclass(frozen=True, slots=True)
class DagRun:
    """How a run ended. `state` is `waiting` if a task deferred, and its trigger would still be waiting."""

    state: str
    tasks: Mapping[str, str]
    xcom: Mapping[str, Any]
    """What the tasks returned, by task id."""


class AirflowServer:
    """Starts the server process, and sends it requests. `environment` has what the streams' catalog needs."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._log = home / "server.log"
        airflow = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local"}),
            "FRAZIL_AGGREGATIONS": str(home / "aggregations"),
        }
        (home / "aggregations").mkdir()
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(home)],
                cwd=CHECKOUT, env={**os.environ, **environment, **airflow},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def begin(self, *, streams: Path, home: Path) -> None:
        """Begin again with a newly installed Airflow, for these declarations and this host's FRAZIL_HOME."""
        self._ask("begin", streams=str(streams), home=str(home))

    def run(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, hours_ahead: int = 0) -> DagRun:
        """Run a DAG with a logical date that many hours from now. Its tasks are not retried."""
        return DagRun(**self._ask("run", dag_id=dag_id, conf=conf, hours_ahead=hours_ahead))

    def create_event(self, asset: str, *, extra: Mapping[str, Any], key: str | None) -> None:
        """Send the request of the button *Create event* on an asset's page."""
        self._ask("create_event", asset=asset, extra=extra, key=key)

    def published(self, asset: str) -> list[Published]:
        """Return the events that frazil published for an asset, without those that users created."""
        return [(key, number) for key, number in self._ask("published", asset=asset)]

    def alert_states(self) -> Mapping[str, Any]:
        """Return the states that `frazil_health` stores of alerts, active or not yet, by subject."""
        found: Mapping[str, Any] = self._ask("alert_states")
        return found

    def parsed(self) -> tuple[set[str], str]:
        """Return the ids of the DAGs in the DAG files, and the import errors."""
        found = self._ask("parsed")
        return set(found["dags"]), found["errors"]

    def stop(self) -> None:
        self._server.terminate()
        self._server.communicate()

    def _ask(self, do: str, **arguments: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([do, arguments]) + "\n")
        self._server.stdin.flush()
        for line in self._server.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError(self._log.read_text()[-5000:])


class StillWaitingError(BaseException):
    """A task deferred, and its trigger would still be waiting."""


def _serve(home: Path) -> None:
    write_without_sync()
    server = _Server(home)
    for line in sys.stdin:
        do, arguments = json.loads(line)
        print(ANSWER + json.dumps(getattr(server, do)(**arguments)), flush=True)


class _Server:
    """The server's requests, one method each. Only this process imports Airflow."""

    def __init__(self, home: Path) -> None:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.sdk.definitions import dag as sdk_dag
        from airflow.utils import db

        db.initdb()
        DagBundlesManager().sync_bundles_to_db()
        self._database, self._empty = home / "airflow.db", home / "empty.db"
        _copy(self._database, self._empty)
        self._dags: dict[str, Any] = {}
        self._errors = ""
        self._streams = Path()
        self._parsed: object = None
        DagBundlesManager.get_all_dag_bundles = lambda _: iter(())  # type: ignore[method-assign]

        def wait(*_: object) -> None:
            raise StillWaitingError

        sdk_dag._run_inline_trigger = wait  # type: ignore[assignment]

    def begin(self, streams: str, home: str) -> None:
        os.environ["FRAZIL_STREAMS"], os.environ["FRAZIL_HOME"] = streams, home
        _copy(self._empty, self._database)
        self._streams, self._parsed = Path(streams), None

    def run(self, dag_id: str, conf: dict[str, Any] | None, hours_ahead: int) -> dict[str, Any]:
        from datetime import UTC, datetime, timedelta

        from airflow.models.dagrun import DagRun as Run
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import delete, select

        self._parse()
        try:
            done = self._dags[dag_id].test(run_conf=conf, logical_date=datetime.now(UTC) + timedelta(hours=hours_ahead))
        except StillWaitingError:
            with create_session() as session:
                session.execute(delete(Run).where(Run.dag_id == dag_id, Run.state == "running"))
            return {"state": "waiting", "tasks": {}, "xcom": {}}
        with create_session() as session:
            tasks = {ti.task_id: str(ti.state) for ti in done.get_task_instances(session=session)}
            mine = select(XComModel).where(XComModel.dag_id == dag_id, XComModel.run_id == done.run_id)
            xcom = {
                found.task_id: XComModel.deserialize_value(found)
                for found in session.scalars(mine.where(XComModel.key == "return_value"))
            }
        return {"state": str(done.state), "tasks": tasks, "xcom": xcom}

    def create_event(self, asset: str, extra: dict[str, Any], key: str | None) -> None:
        from airflow.api_fastapi.core_api.datamodels.assets import CreateAssetEventsBody
        from airflow.api_fastapi.core_api.routes.public.assets import create_asset_event
        from airflow.models.asset import AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        self._parse()
        with create_session() as session:
            found = session.scalars(select(AssetModel).where(AssetModel.name == asset)).one()
            body = CreateAssetEventsBody(asset_id=found.id, partition_key=key, extra=extra)
            create_asset_event(body, session, None)  # type: ignore[arg-type]

    def published(self, asset: str) -> list[Published]:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            events = session.scalars(
                select(AssetEvent)
                .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
                .where(AssetModel.name == asset)
            )
            ours = [(str(e.partition_key), e.extra) for e in events if "from_rest_api" not in (e.extra or {})]
        return [(key, extra[key]["number"]) for key, extra in ours]

    def alert_states(self) -> dict[str, Any]:
        from airflow.models.asset import AssetModel
        from airflow.models.asset_state_store import AssetStateStoreModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        from frazil.airflow.audits.findings import LAST_AUDITS_KEY
        from frazil.airflow.health.tasks import ROUTED_TABLES_KEY
        from frazil.airflow.maintenance.due import CHECKS_KEY

        with create_session() as session:
            found = session.execute(
                select(AssetStateStoreModel.key, AssetStateStoreModel.value)
                .join(AssetModel, AssetModel.id == AssetStateStoreModel.asset_id)
                .where(AssetModel.name == "frazil.health")
            )
            states = {key: json.loads(value) for key, value in found}
        # It also remembers which tables of a route it measured last.
        routed = {name: of for name, of in states.get(ROUTED_TABLES_KEY, {}).items() if of["beyond"]}
        states |= {ROUTED_TABLES_KEY: routed}
        return {
            key: value
            for key, value in states.items()
            if isinstance(value, dict) and value and key not in (LAST_AUDITS_KEY, CHECKS_KEY)
        }

    def parsed(self) -> dict[str, Any]:
        self._parse()
        return {"dags": sorted(self._dags), "errors": self._errors}

    def _parse(self) -> None:
        """Parse the DAG files, as Airflow's DAG processor does, unless no declaration has changed."""
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        files = {path.name: path.read_bytes() for path in self._streams.glob("*.yaml")}
        if files == self._parsed:
            return
        bag = DagBag(str(CHECKOUT / "dags"))
        for dag in bag.dags.values():
            dag.deadline = None  # `dag.test()` cannot read what it has made of one
            for task in dag.tasks:
                task.retries = 0
        sync_bag_to_db(bag, "dags-folder", None)
        self._dags, self._errors, self._parsed = bag.dags, "\n".join(bag.import_errors.values()), files


def _copy(source: Path, target: Path) -> None:
    import sqlite3  # the server's alone

    with closing(sqlite3.connect(source)) as before, closing(sqlite3.connect(target, timeout=30)) as after:
        before.backup(after)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
