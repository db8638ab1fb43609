"""Checks Airflow for `frazil doctor`, in a separate process: `python -m frazil.airflow.doctor STREAMS_FOLDER COMMAND`.
COMMAND is the user's command for this Airflow. Changes nothing, and prints its findings as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from airflow import __version__ as airflow_version
from airflow.configuration import conf
from airflow.models import Connection, Pool
from airflow.models.errors import ParseImportError
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from frazil import clock
from frazil.airflow.dag_ids import SHARED_DAGS
from frazil.airflow.health.dag import DAG_ID as HEALTH_DAG
from frazil.airflow.page.airflow_database import COMPONENTS, last_heartbeats, read_pauses, silent_components
from frazil.airflow.spark import POOL_VARIABLE, SPARK_CONNECTION
from frazil.doctor import CheckState, Finding
from frazil.spec.load import list_stream_files
from frazil.spec.units import format_count

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

TESTED_VERSION = "3.3"
NEEDED_DAGS = {HEALTH_DAG: "no alert fires", **SHARED_DAGS}
QUEUE_VARIABLE = "FRAZIL_WRITER_QUEUE"
"""The variable that dags/writers.py passes as the queue to `writer_dags`."""


def check_airflow(streams: Path, command: str) -> Iterator[Finding]:
    ok = airflow_version.startswith(f"{TESTED_VERSION}.")
    yield Finding(
        "airflow", CheckState.OK if ok else CheckState.WARNING,
        f"Airflow {airflow_version}, {conf.get('core', 'executor')}",
        "" if ok else f"use Airflow {TESTED_VERSION}, the version that frazil is tested with",
    )  # fmt: skip
    yield from _check_settings(streams)
    try:
        with create_session() as session:
            yield from _check_components()
            yield from _check_pool(session, command)
            yield from _check_spark_connection(session)
            yield from _check_import_errors(session)
        yield from _check_shared_dags(command)
    except SQLAlchemyError as error:
        problem = " ".join(str(error).split())[:300]
        yield Finding("airflow's database", CheckState.WRONG, problem, f"{command} db migrate; {command} db check")


def _check_settings(streams: Path) -> Iterator[Finding]:
    writers = len(list(list_stream_files(streams))) if streams.is_dir() else 0
    capacity = conf.getint("triggerer", "capacity")
    if writers > capacity:
        yield Finding(
            "triggerer", CheckState.WARNING,
            f"{format_count(writers, 'stream')} are declared, but a triggerer supervises only {capacity} writers",
            f"raise AIRFLOW__TRIGGERER__CAPACITY above {writers}, or start more triggerers",
        )  # fmt: skip
    queue, enabled = os.environ.get(QUEUE_VARIABLE), conf.getboolean("triggerer", "queues_enabled", fallback=False)
    if queue and not enabled:
        yield Finding(
            "triggerer", CheckState.WRONG,
            f"{QUEUE_VARIABLE} is {queue!r}, but Airflow ignores the queues of deferred tasks",
            "set AIRFLOW__TRIGGERER__QUEUES_ENABLED=True on all components",
        )  # fmt: skip


def _check_components() -> Iterator[Finding]:
    silent = {
        heartbeat.component: heartbeat for heartbeat in silent_components(last_heartbeats(), at_ms=clock.now_ms())
    }
    for component in COMPONENTS.values():
        if component in silent:
            heartbeat = silent[component]
            yield Finding(component, CheckState.WRONG, heartbeat.words, f"start it: {heartbeat.start}")
        else:
            yield Finding(component, CheckState.OK, "running")


def _check_pool(session: Session, command: str) -> Iterator[Finding]:
    pool_name = os.environ.get(POOL_VARIABLE)
    if not pool_name:
        yield Finding(
            "pool", CheckState.WARNING, "Spark applications run in default_pool, limited only by its slots",
            f'{command} pools set frazil_spark 1 "Spark applications", and set {POOL_VARIABLE}=frazil_spark on all '
            'components',
        )  # fmt: skip
    elif session.scalar(select(Pool).where(Pool.pool == pool_name)) is None:
        yield Finding(
            "pool", CheckState.WRONG,
            f"{POOL_VARIABLE} names the pool {pool_name!r}, which Airflow does not have: Spark tasks never start",
            f'{command} pools set {pool_name} 1 "Spark applications"',
        )  # fmt: skip
    else:
        yield Finding("pool", CheckState.OK, f"Spark applications run in the pool {pool_name!r}")


def _check_spark_connection(session: Session) -> Iterator[Finding]:
    from airflow.sdk.exceptions import AirflowNotFoundException  # with what raises it

    del session  # the connection may be in the environment or a secrets backend
    fix = "see `A project in Airflow` in docs/how-to/install.md"
    try:
        connection = Connection.get_connection_from_secrets(SPARK_CONNECTION)
    except (AirflowNotFoundException, KeyError):
        yield Finding("connection", CheckState.WRONG, f"Airflow has no connection {SPARK_CONNECTION!r}", fix)
        return
    properties = connection.extra_dejson.get("properties-file")
    if not properties:
        yield Finding(
            "connection", CheckState.WARNING,
            f"{SPARK_CONNECTION} has no properties-file, so Spark finds Iceberg's runtime only through its own "
            "spark-defaults.conf", fix,
        )  # fmt: skip
    elif not Path(properties).is_file():
        problem = f"the properties-file of {SPARK_CONNECTION}, {properties}, is not on this host"
        yield Finding("connection", CheckState.WRONG, problem, fix)
    else:
        yield Finding("connection", CheckState.OK, f"{SPARK_CONNECTION} submits to {connection.host}")


def _check_import_errors(session: Session) -> Iterator[Finding]:
    errors = session.scalars(select(ParseImportError)).all()
    for error in errors:
        last = (error.stacktrace or "").strip().splitlines()[-1:] or ["no reason given"]
        yield Finding("dags", CheckState.WRONG, f"{error.filename} cannot be imported: {last[0]}", "fix the file")
    if not errors:
        yield Finding("dags", CheckState.OK, "all DAG files can be imported")


def _check_shared_dags(command: str) -> Iterator[Finding]:
    paused = read_pauses(NEEDED_DAGS)
    for dag_id, undone in NEEDED_DAGS.items():
        if dag_id not in paused:
            fix = "add its file to the DAG folder, as docs/reference/dags.md says"
            yield Finding("dags", CheckState.WARNING, f"Airflow has no DAG {dag_id}: {undone}", fix)
        elif paused[dag_id]:
            fix = f"{command} dags unpause {dag_id}"
            yield Finding("dags", CheckState.WARNING, f"{dag_id} is paused: {undone}", fix)


def main() -> None:
    findings = [dataclasses.asdict(finding) for finding in check_airflow(Path(sys.argv[1]), sys.argv[2])]
    print(json.dumps(findings))


if __name__ == "__main__":
    main()
