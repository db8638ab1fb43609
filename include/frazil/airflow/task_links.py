"""Defines the buttons on frazil's tasks in Airflow's UI. The links come from a plugin, which computes them when someone
opens the task. An operator's own links would be XComs that the task writes only at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from frazil.airflow.dag_ids import TaskSubject, is_shared, task_subject
from frazil.airflow.page import address as page
from frazil.spec.routed_stream import partitions_dag_id

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class TaskLink(BaseOperatorLink):
    """One button. Airflow hides the button if its link is empty, as on tasks to which it does not apply."""

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]
        """The operators that have the button, imported late because imports would slow each process."""
        from frazil.airflow.backfills import StageOperator
        from frazil.airflow.dag_profile import FrazilShortCircuit, FrazilTask
        from frazil.airflow.maintenance.dag import RewriteOperator
        from frazil.airflow.partitions.sensor import CompletionOperator
        from frazil.airflow.spark import SubmitOperator
        from frazil.airflow.writers.operator import HostedStreamOperator, WriterOperator

        return [
            CompletionOperator,
            FrazilShortCircuit,
            FrazilTask,
            HostedStreamOperator,
            RewriteOperator,
            StageOperator,
            SubmitOperator,
            WriterOperator,
        ]


class OperationsLink(TaskLink):
    name = "Operations page"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return _page_link(_task_subject(operator, ti_key).path)


class DataDocsLink(TaskLink):
    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        return f"{page.base_url()}{page.DOCS_PREFIX}/index.html" if _is_partitions_dag(ti_key.dag_id) else ""


class ReleaseLink(TaskLink):
    name = "Release a held window"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        if not _is_partitions_dag(ti_key.dag_id):
            return ""
        return _page_link(f"{_task_subject(operator, ti_key).path}?action=release")


LINKS = (OperationsLink(), DataDocsLink(), ReleaseLink())


def _is_partitions_dag(dag_id: str) -> bool:
    return dag_id.startswith(partitions_dag_id(""))


def _page_link(path: str) -> str:
    return f"{page.base_url()}{page.PREFIX}/index.html#{path}"


def _task_subject(operator: BaseOperator, ti_key: TaskInstanceKey) -> TaskSubject:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    # Before an instance starts, Airflow shows its number as the label.
    label: Any = select(TaskInstance.rendered_map_index).where(  # type: ignore[call-overload]
        TaskInstance.dag_id == ti_key.dag_id,
        TaskInstance.run_id == ti_key.run_id,
        TaskInstance.task_id == ti_key.task_id,
        TaskInstance.map_index == ti_key.map_index,
    )
    form = select(DagRun.conf).where(DagRun.dag_id == ti_key.dag_id, DagRun.run_id == ti_key.run_id)
    with create_session() as session:
        shown_label, conf = session.scalar(label), session.scalar(form)
    return task_subject(
        ti_key.dag_id,
        ti_key.task_id,
        label=shown_label if shown_label != str(ti_key.map_index) else None,
        form=conf if isinstance(conf, Mapping) else {},
        shared=is_shared(operator.dag.task_ids),
    )
