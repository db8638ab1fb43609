"""Reads active alerts, and the streams' DAGs and runs, from Airflow's database."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.jobs.job import Job
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import func, select, update

from frazil.airflow.dag_ids import partition_asset, reopened_asset
from frazil.airflow.dag_profile import RESULT_KEY
from frazil.airflow.health.dag import DAG_ID as HEALTH_DAG
from frazil.clock import epoch_ms
from frazil.home import dev_airflow_home
from frazil.maintenance.alerts import runbook_link
from frazil.operations.overview import ActiveAlert
from frazil.operations.page_actions import (
    ComponentHeartbeat,
    MissingComponent,
    RunResult,
    TaskResult,
    UnfinishedRun,
    describe_run,
    find_missing,
)
from frazil.operations.table_view import WindowRun

MAX_WINDOW_RUNS = 5_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """The last measurement of `frazil_health`. `at_ms` is None before the first."""

    alerts: tuple[ActiveAlert, ...] = ()
    at_ms: int | None = None
    begun_ms: int | None = None
    """When the DAG's unfinished run began; None without one, or if a run has failed since the last measurement."""
    is_paused: bool = False
    """Whether the DAG is paused."""
    due: Mapping[str, Sequence[str]] | None = None
    audited: Mapping[str, str] | None = None


def read_last_measurement() -> Measurement:
    newest = (
        select(XComModel)
        .where(XComModel.dag_id == HEALTH_DAG, XComModel.task_id == "measure", XComModel.key == "return_value")
        .order_by(XComModel.timestamp.desc())
        .limit(1)
    )
    begun = func.coalesce(DagRun.start_date, DagRun.queued_at)
    runs = select(begun).where(DagRun.dag_id == HEALTH_DAG).limit(1)
    unfinished = runs.where(DagRun.state.in_((DagRunState.QUEUED, DagRunState.RUNNING))).order_by(begun)
    failed = runs.where(DagRun.state == DagRunState.FAILED).order_by(begun.desc())
    is_paused = read_pauses([HEALTH_DAG]).get(HEALTH_DAG, False)
    with create_session() as session:
        begun_ms, failed_ms = (_to_ms(session.scalar(runs)) for runs in (unfinished, failed))
        measurement = session.scalars(newest).first()
        if failed_ms and (measurement is None or failed_ms > (_to_ms(measurement.timestamp) or 0)):
            begun_ms = None
        if measurement is None:
            return Measurement(begun_ms=begun_ms, is_paused=is_paused)
        value, at_ms = XComModel.deserialize_value(measurement), _to_ms(measurement.timestamp)
    due, audited = parse_due_actions(value), _parse_audited(value)
    return Measurement(parse_alerts(value), at_ms, begun_ms, is_paused, due, audited)


def _to_ms(moment: datetime | None) -> int | None:
    return None if moment is None else epoch_ms(moment)


def parse_alerts(value: Any) -> tuple[ActiveAlert, ...]:
    """Return the active alerts in an XCom. Malformed entries are ignored."""
    active = value.get("active") if isinstance(value, Mapping) else None
    return tuple(
        ActiveAlert(
            *(alert["table"], alert["rule"], alert["since_ms"], alert["sentence"]),
            alert["runbook"] if isinstance(alert.get("runbook"), str) else runbook_link(alert["rule"]),
        )
        for alert in (active if isinstance(active, list) else ())
        if isinstance(alert, Mapping)
        and all(isinstance(alert.get(key), str) for key in ("table", "rule", "sentence"))
        and isinstance(alert.get("since_ms"), int)
    )


def parse_due_actions(value: Any) -> dict[str, list[str]] | None:
    due = value.get("due") if isinstance(value, Mapping) else None
    if not isinstance(due, Mapping):
        return None
    return {
        table: [action for action in actions if isinstance(action, str)]
        for table, actions in due.items()
        if isinstance(table, str) and isinstance(actions, list)
    }


def _parse_audited(value: Any) -> dict[str, str] | None:
    audited = value.get("audited") if isinstance(value, Mapping) else None
    if not isinstance(audited, Mapping):
        return None
    return {name: text for name, text in audited.items() if isinstance(text, str)}


def read_pauses(dag_ids: Collection[str]) -> dict[str, bool]:
    with create_session() as session:
        present = DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale
        rows = session.execute(select(DagModel.dag_id, DagModel.is_paused).where(*present))
        return {dag_id: bool(is_paused) for dag_id, is_paused in rows}


def unpause(dag_id: str) -> None:
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=False))


def read_run_result(dag_id: str, run_id: str, *, subject: str) -> RunResult | None:
    """Return the state of a run, and what its tasks reported; None if the run is not for the stream or table."""
    query = select(DagRun.state, DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    tasks = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
        TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id
    )
    reports = select(XComModel).where(
        XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == RESULT_KEY
    )
    with create_session() as session:
        run = session.execute(query).first()
        if run is None or subject not in _subjects_of(run.conf):
            return None
        texts = {
            (xcom.task_id, xcom.map_index): str(XComModel.deserialize_value(xcom)) for xcom in session.scalars(reports)
        }
        ended = session.execute(tasks.order_by(TaskInstance.end_date.is_(None), TaskInstance.end_date)).all()
    results = [TaskResult(task, str(state), texts.get((task, index), ""), index) for task, index, state in ended]
    return describe_run(dag_id, run_id, str(run.state), results, is_paused=read_pauses([dag_id]).get(dag_id, False))


def _subjects_of(conf: Any) -> list[Any]:
    if not isinstance(conf, Mapping):
        return []
    tables = conf.get("tables")
    return [conf.get("stream"), conf.get("table"), *(tables if isinstance(tables, list) else [])]


def read_window_runs(signals: str, *, since: datetime) -> dict[str, list[WindowRun]]:
    """Return the DAG runs that the events of an asset started, by window. A run may have several windows."""
    started = (
        select(AssetEvent.partition_key, DagRun.dag_id, DagRun.run_id, DagRun.state)
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .join(AssetEvent.created_dagruns)
        .where(AssetModel.name.in_((partition_asset(signals).name, reopened_asset(signals).name)))
        .where(AssetEvent.timestamp >= since, AssetEvent.partition_key.is_not(None))
        .order_by(AssetEvent.id.desc(), DagRun.id.desc())
        .limit(MAX_WINDOW_RUNS)
    )
    runs: dict[str, list[WindowRun]] = {}
    with create_session() as session:
        for key, dag, run, state in reversed(session.execute(started).all()):
            if (window_run := WindowRun(dag, run, str(state))) not in runs.setdefault(key, []):
                runs[key].append(window_run)
    return runs


def newest_run_id(dag_id: str) -> str | None:
    newest = select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
    with create_session() as session:
        return session.scalar(newest)


def next_run_id(dag_id: str, stream: str) -> str:
    """Return the id of the next run for the stream. If two users start a run at the same time, one start fails."""
    stem = f"manual__{stream}."  # no stream has a dot in its name
    newest = select(func.max(DagRun.id)).where(DagRun.dag_id == dag_id, DagRun.run_id.startswith(stem, autoescape=True))
    with create_session() as session:
        return f"{stem}{session.scalar(newest) or 0}"


def find_unfinished_run(dag_id: str, stream: str) -> UnfinishedRun | None:
    """Return the oldest queued or running run, other than dry runs, that changes the stream's tables, or None."""
    unfinished = (
        select(DagRun.run_id, DagRun.state, DagRun.conf)
        .where(DagRun.dag_id == dag_id, DagRun.state.in_((DagRunState.QUEUED, DagRunState.RUNNING)))
        .order_by(DagRun.id)
    )
    with create_session() as session:
        for run_id, state, conf in session.execute(unfinished):
            if isinstance(conf, Mapping) and conf.get("stream") == stream and not conf.get("dry-run", True):
                return UnfinishedRun(run_id, waits=state == DagRunState.QUEUED)
    return None


COMPONENTS = {"SchedulerJob": "scheduler", "DagProcessorJob": "dag-processor", "TriggererJob": "triggerer"}


def silent_components(heartbeats: Mapping[str, ComponentHeartbeat], *, at_ms: int) -> tuple[MissingComponent, ...]:
    home = os.environ.get("AIRFLOW_HOME", "")
    return find_missing(heartbeats, now_ms=at_ms, in_dev=bool(home) and Path(home).absolute() == dev_airflow_home())


def last_heartbeats() -> dict[str, ComponentHeartbeat]:
    query = (
        select(Job.job_type, Job.state, func.max(Job.latest_heartbeat))
        .where(Job.job_type.in_(COMPONENTS))
        .group_by(Job.job_type, Job.state)
    )
    latest: dict[str, ComponentHeartbeat] = {}
    with create_session() as session:
        heartbeats = session.execute(query).all()
    for kind, state, heartbeat_at in heartbeats:
        if heartbeat_at is None:
            continue
        component = COMPONENTS[str(kind)]
        heartbeat = ComponentHeartbeat(epoch_ms(heartbeat_at), should_run=state == "running")
        latest[component] = max(
            latest.get(component, heartbeat), heartbeat, key=lambda candidate: (candidate.should_run, candidate.at_ms)
        )
    return latest
