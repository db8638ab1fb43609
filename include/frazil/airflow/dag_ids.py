"""Defines the ids of DAGs and tasks, and finds from them which stream or table a task is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Asset

from frazil.operations.message import page_path
from frazil.spec.routed_stream import partitions_dag_id

AUDITS_DAG = "frazil_audits"
MAINTENANCE_DAG = "frazil_maintenance"
SHARED_DAGS = {AUDITS_DAG: "no stream is audited", MAINTENANCE_DAG: "no table is maintained"}
"""DAGs for all streams, and what does not happen while they are paused."""
STREAM_TASK_PREFIX = "stream."
ROUTE_PREFIX = "route of "
"""Prefix of a name in the maintenance DAG that stands for all tables of a stream's route."""


def writer_dag_id(stream: str) -> str:
    return f"frazil_writer_{stream}"


def is_shared(task_ids: Iterable[str]) -> bool:
    return any(task_id.startswith(STREAM_TASK_PREFIX) for task_id in task_ids)


@dataclass(frozen=True, slots=True)
class TaskSubject:
    """The stream or table that a task is about. Both are None for a task about all streams or a shared application."""

    stream: str | None = None
    table: str | None = None

    @property
    def path(self) -> str:
        """The fragment (after the #) of the operations page's URL."""
        return page_path(self.stream, self.table)


def task_subject(dag_id: str, task_id: str, *, label: str | None, form: Mapping[str, Any], shared: bool) -> TaskSubject:
    """Return what a task is about. `label` names a mapped instance; `form` has the parameters of the run."""
    writer, partitions = writer_dag_id(""), partitions_dag_id("")
    if dag_id.startswith(writer):
        if not shared:
            return TaskSubject(dag_id.removeprefix(writer))
        return TaskSubject(task_id.removeprefix(STREAM_TASK_PREFIX) if task_id.startswith(STREAM_TASK_PREFIX) else None)
    if dag_id.startswith(partitions):
        name = dag_id.removeprefix(partitions)
        return TaskSubject(table=name) if "." in name else TaskSubject(name)
    if dag_id == AUDITS_DAG:
        return TaskSubject(label)
    if dag_id == MAINTENANCE_DAG:
        is_route = label is not None and label.startswith(ROUTE_PREFIX)
        return TaskSubject(label.removeprefix(ROUTE_PREFIX)) if label and is_route else TaskSubject(table=label)
    texts = (form[key] if isinstance(form.get(key), str) and form[key] else None for key in ("stream", "table"))
    return TaskSubject(*texts)


AGAIN_PREFIX = "frazil.again."
GROUP = "frazil"
HEALTH = Asset("frazil.health", group=GROUP)
"""Gets an event when an alert fires or resolves. Its store keeps state between measurements."""


def partition_asset(table: str) -> Asset:
    """Return the asset that gets one event for each window of the table, when it is first complete."""
    return Asset(table, group=GROUP)


def again_asset(aggregation: str) -> Asset:
    """Return the asset that gets one event, with the day as its key, for each day to aggregate again."""
    return Asset(f"{AGAIN_PREFIX}{aggregation}", group=GROUP)


def reopened_asset(table: str) -> Asset:
    """Return the asset that gets one event for each new revision of a window that late rows reopened."""
    return Asset(f"{table}.reopened", group=GROUP)
