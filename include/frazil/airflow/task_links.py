"""Buttons on each task of frazil's in Airflow's UI: the operations page of its stream or table, Data Docs, a release.

They are a plugin's, which the API server works out when a person looks. An operator's own links are an XCom that the
task's process writes at its end: one that runs has none yet, and each try would add rows to Airflow's database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from frazil.airflow.data_docs import address as data_docs
from frazil.airflow.page import address as page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

ROUTE = "route of "
"""Before a stream's name: all tables of its route, in the DAG that maintains tables."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a task is about; neither is named where it is about all streams, or about a shared application."""

    stream: str | None = None
    table: str | None = None

    @property
    def path(self) -> str:
        """Of the operations page, after its #."""
        if self.table:
            return f"/table/{quote(self.table, safe='')}"
        return f"/stream/{quote(self.stream, safe='')}" if self.stream else "/"


def subject_of(dag_id: str, task_id: str, *, label: str | None, form: Mapping[str, Any], shared: bool) -> Subject:
    """What a task instance is about. Pure.

    :param label: the name of a mapped instance, as Airflow's UI shows it; None before it starts.
    :param form: what the run was triggered with, by anybody.
    :param shared: its DAG is of an application that streams share.
    """
    from frazil.airflow.audits.dag import DAG_ID as AUDITS  # noqa: PLC0415 - only the API server needs it
    from frazil.airflow.maintenance.dag import DAG_ID as MAINTENANCE  # noqa: PLC0415 - as above
    from frazil.airflow.partitions.dag import partitions_dag_id  # noqa: PLC0415 - as above
    from frazil.airflow.writers.dag import STREAM_TASK, writer_dag_id  # noqa: PLC0415 - as above

    writer, partitions = writer_dag_id(""), partitions_dag_id("")
    if dag_id.startswith(writer):
        if shared:
            return Subject(task_id.removeprefix(STREAM_TASK) if task_id.startswith(STREAM_TASK) else None)
        return Subject(dag_id.removeprefix(writer))
    if dag_id.startswith(partitions):
        return Subject(table=dag_id.removeprefix(partitions))
    if dag_id == AUDITS:
        return Subject(label)
    if dag_id == MAINTENANCE:
        return Subject(label.removeprefix(ROUTE)) if label and label.startswith(ROUTE) else Subject(table=label)
    stream, table = (_text(form.get(key)) for key in ("stream", "table"))
    return Subject(stream, table)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class TaskLink(BaseOperatorLink):
    """One button. It answers with an empty text, and is not shown, on a task that it does not fit."""

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]
        """Airflow asks for them where it reads a DAG for its UI; importing them earlier would slow each process."""
        from frazil.airflow.maintenance.rewrite import RewriteOperator  # noqa: PLC0415
        from frazil.airflow.partitions.wait import CompletionOperator  # noqa: PLC0415
        from frazil.airflow.submit import SubmitOperator  # noqa: PLC0415
        from frazil.airflow.task import FrazilShortCircuit, FrazilTask  # noqa: PLC0415
        from frazil.airflow.writers.hosted import HostedStreamOperator  # noqa: PLC0415
        from frazil.airflow.writers.operator import WriterOperator  # noqa: PLC0415

        return [
            CompletionOperator,
            FrazilShortCircuit,
            FrazilTask,
            HostedStreamOperator,
            RewriteOperator,
            SubmitOperator,
            WriterOperator,
        ]


class OperationsLink(TaskLink):
    """To the stream or the table, and to the overview where a task is about all of them."""

    name = "Operations page"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return _on_page(_seen(operator, ti_key).path)


class DataDocsLink(TaskLink):
    """To what the quality gates wrote, from the tasks that complete a table's windows."""

    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        return f"{_base()}{data_docs.PREFIX}/index.html" if _of_windows(ti_key.dag_id) else ""


class ReleaseLink(TaskLink):
    """To the page's form that releases a held window, filled in. Airflow's own form takes no values from an address."""

    name = "Release a held window"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return _on_page(f"{_seen(operator, ti_key).path}?act=release") if _of_windows(ti_key.dag_id) else ""


LINKS = (OperationsLink(), DataDocsLink(), ReleaseLink())


def _of_windows(dag_id: str) -> bool:
    from frazil.airflow.partitions.dag import partitions_dag_id  # noqa: PLC0415 - as above

    return dag_id.startswith(partitions_dag_id(""))


def _base() -> str:
    return conf.get("api", "base_url", fallback="").rstrip("/")


def _on_page(path: str) -> str:
    return f"{_base()}{page.PREFIX}/index.html#{path}"


def _seen(operator: BaseOperator, ti_key: TaskInstanceKey) -> Subject:
    """What Airflow's database says of a task instance."""
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - as above
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above

    from frazil.airflow.writers.dag import STREAM_TASK  # noqa: PLC0415 - as above

    # Of an instance that has not started, Airflow says the number.
    label: Any = select(TaskInstance.rendered_map_index).where(  # type: ignore[call-overload]
        TaskInstance.dag_id == ti_key.dag_id,
        TaskInstance.run_id == ti_key.run_id,
        TaskInstance.task_id == ti_key.task_id,
        TaskInstance.map_index == ti_key.map_index,
    )
    form = select(DagRun.conf).where(DagRun.dag_id == ti_key.dag_id, DagRun.run_id == ti_key.run_id)
    with create_session() as session:
        said, given = session.scalar(label), session.scalar(form)
    return subject_of(
        ti_key.dag_id,
        ti_key.task_id,
        label=said if said != str(ti_key.map_index) else None,
        form=given if isinstance(given, Mapping) else {},
        shared=any(one.startswith(STREAM_TASK) for one in operator.dag.task_ids),
    )
