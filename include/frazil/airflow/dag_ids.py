"""The ids of DAGs and tasks that others go by, and what a task is about, by its ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.operations.message import page_path

AUDITS_DAG = "frazil_audits"
MAINTENANCE_DAG = "frazil_maintenance"
STREAM_TASK = "stream."
"""Before a stream's name: its task in the DAG of an application that streams share."""
ROUTE = "route of "
"""Before a stream's name: all tables of its route, in the DAG that maintains tables."""


def writer_dag_id(stream: str) -> str:
    """The id of a stream's writer DAG; of streams that share an application, of that application's."""
    return f"frazil_writer_{stream}"


def partitions_dag_id(table: str) -> str:
    return f"frazil_partitions_{table}"


def is_shared(task_ids: Iterable[str]) -> bool:
    """Whether these are the tasks of an application that streams share."""
    return any(one.startswith(STREAM_TASK) for one in task_ids)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a task is about; neither is named where it is about all streams, or about a shared application."""

    stream: str | None = None
    table: str | None = None

    @property
    def path(self) -> str:
        """The path on the operations page, after its #."""
        return page_path(self.stream, self.table)


def subject_of(dag_id: str, task_id: str, *, label: str | None, form: Mapping[str, Any], shared: bool) -> Subject:
    """What a task instance is about. Pure.

    :param label: the name of a mapped instance, as Airflow's UI shows it; None before it starts.
    :param form: what the run was triggered with, by anybody.
    :param shared: its DAG is of an application that streams share.
    """
    writer, partitions = writer_dag_id(""), partitions_dag_id("")
    if dag_id.startswith(writer):
        if shared:
            return Subject(task_id.removeprefix(STREAM_TASK) if task_id.startswith(STREAM_TASK) else None)
        return Subject(dag_id.removeprefix(writer))
    if dag_id.startswith(partitions):
        return Subject(table=dag_id.removeprefix(partitions))
    if dag_id == AUDITS_DAG:
        return Subject(label)
    if dag_id == MAINTENANCE_DAG:
        return Subject(label.removeprefix(ROUTE)) if label and label.startswith(ROUTE) else Subject(table=label)
    stream, table = (_text(form.get(key)) for key in ("stream", "table"))
    return Subject(stream, table)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
