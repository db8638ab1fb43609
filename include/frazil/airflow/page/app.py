"""Serves the operations page in Airflow's UI to people who are signed in: static files, and JSON below `api/`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import Any

import msgspec
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse, Response

# Scripts and styles come from here alone, and whatever a record or a sentence contains is text.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def operations_page() -> FastAPI:
    """The application that Airflow's API server mounts at `frazil.airflow.page.address.PREFIX`."""
    app = FastAPI(title="frazil: streams", openapi_url=None, lifespan=_warmed)

    @app.get("/")
    def root(user: GetUserDep) -> Response:  # noqa: ARG001 - whoever is signed in
        return RedirectResponse("index.html")

    @app.get("/api/overview")
    def overview(user: GetUserDep) -> Response:
        from frazil.airflow.page import views  # noqa: PLC0415 - Airflow's other processes load plugins too

        return answered(views.overview(partial(visible, user)))

    @app.get("/api/stream/{name}")
    def stream(name: str, user: GetUserDep) -> Response:
        from frazil.airflow.page import views  # noqa: PLC0415 - as above

        found = views.stream(name, partial(visible, user), partial(may_act, user))
        if found is None:
            raise HTTPException(404, f"no file declares a stream {name}, or you may not see it")
        return answered(found)

    @app.get("/api/table/{name}")
    def table(name: str, user: GetUserDep) -> Response:
        from frazil.airflow.page import views  # noqa: PLC0415 - as above

        found = views.table(name, partial(visible, user), partial(may_act, user))
        if found is None:
            raise HTTPException(404, f"no stream feeds a table {name}, or you may not see it")
        return answered(found)

    @app.get("/{name}")
    def static(name: str, user: GetUserDep) -> Response:  # noqa: ARG001 - whoever is signed in
        kind = KINDS.get(name.rpartition(".")[2])
        file = files("frazil.airflow.page") / "static" / name
        if kind is None or not file.is_file():
            raise HTTPException(404, f"the page has no file {name!r}")
        return Response(file.read_bytes(), media_type=kind, headers=HEADERS)

    return app


@asynccontextmanager
async def _warmed(_: FastAPI) -> AsyncIterator[None]:
    """The API server loads PyIceberg beside its start; the first person would wait a second for it."""
    threading.Thread(target=import_module, args=("frazil.airflow.page.views",), daemon=True).start()
    yield


def answered(value: Any) -> Response:
    """A frozen value as JSON."""
    return Response(msgspec.json.encode(value), media_type="application/json", headers=HEADERS)


def may_act(user: Any, dag_id: str) -> bool:
    """Whether the user may change runs of a DAG, and so what it cares for."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.RUN, details=details, user=user
    )


def visible(user: Any, dags: Mapping[str, str]) -> set[str]:
    """Of these streams, each with the DAG of its writer, those whose DAG the user may read in Airflow."""
    allowed = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(dags.values()), user=user, method="GET")
    return {stream for stream, dag_id in dags.items() if dag_id in allowed}
