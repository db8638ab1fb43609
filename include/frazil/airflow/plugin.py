"""Registers the operations page, the quality gates' pages (Data Docs) and task buttons in Airflow's UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from frazil.airflow.dag_ids import TaskSubject, is_shared, task_subject
from frazil.airflow.page.address import DOCS_PREFIX, PREFIX, VIEW, base_url, docs_folder
from frazil.airflow.page.app import operations_page
from frazil.spec.routed_stream import partitions_dag_id

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class TaskLink(BaseOperatorLink):
    """A button on tasks. Airflow hides the button if its link is empty, as on tasks to which it does not apply.

    The plugin computes the link when someone opens the task. An operator's own link would be an XCom that the task
    writes only at its end.
    """

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]
        """The operators whose tasks have this button. Imported late, because imports would slow each process."""
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
        return f"{base_url()}{DOCS_PREFIX}/index.html" if _is_partitions_dag(ti_key.dag_id) else ""


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
    return f"{base_url()}{PREFIX}/index.html#{path}"


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


DOCS_VIEW = {
    "name": "Data Docs",
    "href": f"{DOCS_PREFIX}/index.html",
    "destination": "nav",
    "category": "browse",
    "url_route": "frazil-data-docs",
}
# Values from the data are escaped; the policy blocks scripts if one is not.
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"}
EMPTY_PAGE = """<!doctype html>
<title>Data Docs</title>
<h1>No quality gate has run yet</h1>
<p>A gate evaluates a window when it is complete, if include/expectations/ has a suite for its table. This page
then lists the results.</p>
<p>If workers and the API server are different hosts, FRAZIL_HOME must be a folder that both can access.</p>
"""


def data_docs() -> FastAPI:
    app = FastAPI(title="frazil: Data Docs of the quality gates", openapi_url=None)

    @app.get("/{page:path}")
    def show(page: str, user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
        folder = docs_folder().resolve()
        if page == "index.html" and not (folder / page).exists():
            return HTMLResponse(EMPTY_PAGE, headers=HEADERS)
        file = (folder / page).resolve()
        if file.suffix != ".html" or not file.is_relative_to(folder) or not file.is_file():
            raise HTTPException(404, f"no gate has written the page {page!r}")
        return FileResponse(file, headers=HEADERS)

    return app


class FrazilPlugin(AirflowPlugin):
    name = "frazil"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow's own shape
        {"app": operations_page(), "url_prefix": PREFIX, "name": "frazil operations"},
        {"app": data_docs(), "url_prefix": DOCS_PREFIX, "name": "frazil data docs"},
    ]
    external_views: list[Any] = [VIEW, DOCS_VIEW]  # noqa: RUF012 - as above
    operator_extra_links: list[Any] = [*LINKS]  # noqa: RUF012 - as above
