"""Registers the operations page, the quality gates' pages (Data Docs) and task buttons in Airflow's UI."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.plugins_manager import AirflowPlugin
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, Response

from frazil.airflow.page.address import DOCS_PREFIX, PREFIX, VIEW, docs_folder
from frazil.airflow.page.app import operations_page
from frazil.airflow.task_links import LINKS

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
        found = (folder / page).resolve()
        if found.suffix != ".html" or not found.is_relative_to(folder) or not found.is_file():
            raise HTTPException(404, f"no gate has written the page {page!r}")
        return FileResponse(found, headers=HEADERS)

    return app


class FrazilPlugin(AirflowPlugin):
    name = "frazil"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - Airflow's own shape
        {"app": operations_page(), "url_prefix": PREFIX, "name": "frazil operations"},
        {"app": data_docs(), "url_prefix": DOCS_PREFIX, "name": "frazil data docs"},
    ]
    external_views: list[Any] = [VIEW, DOCS_VIEW]  # noqa: RUF012 - as above
    operator_extra_links: list[Any] = [*LINKS]  # noqa: RUF012 - as above
