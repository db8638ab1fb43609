"""Serves the operations page in Airflow's UI: static files, and JSON below `api/`. Airflow has no CSRF token. The
header X-Frazil replaces it: another site cannot set it without a preflight request, which this server never grants.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models import Log
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException as StarletteHTTPException

from frazil import outdated_code
from frazil.clock import epoch_ms
from frazil.safe_text import MAX_REASON_CHARACTERS, escape_unsafe

# Scripts and styles come only from this server, and all content of records is text.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
log = logging.getLogger(__name__)
MAX_FORM_BYTES = 64 * 2**10
Moment = Annotated[datetime | None, Query()]
OUTCOMES = {422: "refused", 504: "not known"}
"""An action's outcome in the audit log, by the response's status; any other error status is "failed"."""


def operations_page() -> FastAPI:
    """Build the application that Airflow's API server mounts at `frazil.airflow.page.address.PREFIX`."""
    app = FastAPI(title="frazil: streams", openapi_url=None, lifespan=_lifespan)
    app.add_exception_handler(Exception, _handle_unexpected)
    app.add_exception_handler(StarletteHTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    app.include_router(routes)
    return app


def _to_ms(moment: datetime | None) -> int | None:
    utc = moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)
    return None if utc is None else epoch_ms(utc)


@dataclass(frozen=True, slots=True)
class AllowedAction:
    action: Any
    subject: Any
    user: Any


def authorize_action(request: Request, name: str, action: str, user: GetUserDep) -> AllowedAction:
    from frazil.operations.page_actions import PageAction

    page_action = PageAction(action) if action in set(PageAction) else None
    try:
        return _check_request(request, name, page_action, user)
    except HTTPException as error:
        if page_action is not None:
            _log_refusal(request, user, page_action, name, error)
        raise


def _check_request(request: Request, name: str, action: Any, user: Any) -> AllowedAction:
    from frazil.airflow.page import actions

    if text := origin_problem(request.headers, base_url=conf.get("api", "base_url", fallback="")):
        raise HTTPException(403, f"refused: {text}")
    subject = None if action is None else actions.find_action_subject(action, name, partial(visible_streams, user))
    if subject is None:
        raise HTTPException(404, f"{name} is not declared, you may not see it, or the action does not exist")
    if not is_permitted(user, subject.method, subject.dag):
        raise HTTPException(
            403, f"Airflow does not permit this action: you need {subject.method} for runs of {subject.dag}"
        )
    return AllowedAction(action, subject, user)


async def read_form(request: Request, requested: Annotated[Any, Depends(authorize_action)]) -> dict[str, Any]:
    try:
        return await _read_body(request)
    except HTTPException as error:
        await run_in_threadpool(_log_refusal, request, requested.user, requested.action, requested.subject.name, error)
        raise


routes = APIRouter()


@routes.get("/")
def redirect_to_index(user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
    return RedirectResponse("index.html")


@routes.get("/api/overview")
def get_overview(user: GetUserDep) -> Response:
    from frazil.airflow.page import views  # Airflow's other processes load plugins too

    missing = views.describe_missing_components()
    return json_response(views.build_overview(partial(visible_streams, user), airflow=missing))


@routes.get("/api/stream/{name}")
def get_stream(  # noqa: PLR0913 - a request's options
    name: str, user: GetUserDep, *, hours: int = 6, tables: str = "", begin: Moment = None, end: Moment = None
) -> Response:
    from frazil.airflow.page import stream_page

    view_options = stream_page.ViewOptions(hours, tables, _to_ms(begin), _to_ms(end))
    sees, may_act = partial(visible_streams, user), partial(is_permitted, user, "PUT")
    found = stream_page.build_stream_view(name, view_options, sees, may_act)
    if found is None:
        raise HTTPException(404, f"stream {name} is not declared, or you may not see it")
    return _view_response(found)


@routes.get("/api/table/{name}")
def get_table(name: str, user: GetUserDep) -> Response:
    from frazil.airflow.page import table_page

    found = table_page.build_table_view(name, partial(visible_streams, user), partial(is_permitted, user, "PUT"))
    if found is None:
        raise HTTPException(404, f"no stream writes to table {name}, or you may not see it")
    return _view_response(found)


@routes.post("/api/plan/{action}/{name}")
def plan_action(
    requested: Annotated[Any, Depends(authorize_action)], form: Annotated[Any, Depends(read_form)]
) -> Response:
    from frazil.airflow.page import actions

    may_unpause = may_edit_dag(requested.user, requested.subject.dag)
    return json_response(
        _with_http_errors(
            lambda: actions.build_action_plan(requested.action, requested.subject, form, may_unpause=may_unpause)
        )
    )


@routes.get("/api/run/{action}/{name}")
def get_run(action: str, name: str, run: str, user: GetUserDep) -> Response:
    from frazil.airflow.page import actions
    from frazil.operations.page_actions import PageAction

    known = action in set(PageAction)
    found = actions.find_run(PageAction(action), name, run, partial(visible_streams, user)) if known else None
    if found is None:
        raise HTTPException(404, f"Airflow has no run {run} for {name}, or you may not see it")
    return json_response(found)


@routes.post("/api/action/{action}/{name}")
def perform_action(
    requested: Annotated[Any, Depends(authorize_action)], form: Annotated[Any, Depends(read_form)]
) -> Response:
    from frazil.airflow.page import actions

    subject = requested.subject
    entry = log_action(requested.user, requested.action, subject.name, dag_id=subject.dag, form=form)
    by = {"user": requested.user.get_name(), "may_unpause": may_edit_dag(requested.user, requested.subject.dag)}
    try:
        done = _with_http_errors(lambda: actions.carry_out(requested.action, requested.subject, form, **by))
    except HTTPException as error:
        log_outcome(entry, f"{OUTCOMES.get(error.status_code, 'failed')}: {error.detail}")
        raise
    log_outcome(entry, f"done: {done.message}")
    return json_response(done)


@routes.get("/runbook.html")
def get_runbook(user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
    from frazil.airflow.page.runbook import render_runbook

    return Response(render_runbook(), media_type="text/html", headers=HEADERS)


@routes.get("/{name}")
def get_static_file(name: str, user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}.get(name.rpartition(".")[2])
    file = next((file for file in (files("frazil.airflow.page") / "static").iterdir() if file.name == name), None)
    if kind is None or file is None:
        raise HTTPException(404, "the page has no such file")
    return Response(file.read_bytes(), media_type=kind, headers=HEADERS)


async def _read_body(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"the form has more than {MAX_FORM_BYTES:,} bytes")
    try:
        # msgspec would reject half of a surrogate pair. Here, the error names the field when it is read.
        form = json.loads(body)
    except (ValueError, RecursionError):
        form = None
    if not isinstance(form, dict):
        raise HTTPException(422, "the form is not a JSON object")
    return form


def _log_refusal(request: Request, user: Any, action: Any, name: str, error: HTTPException) -> None:
    if request.scope["route"].path.startswith("/api/action/"):
        outcome = f"refused: {error.detail}"
        try:
            log_action(user, action, name, dag_id=None, form={}, outcome=outcome)
        except SQLAlchemyError:
            log.warning("cannot write a refused action to Airflow's audit log: %s", outcome, exc_info=True)


def _with_http_errors(work: Callable[[], Any]) -> Any:
    from frazil.airflow.page import forms

    try:
        return work()
    except forms.InvalidForm as error:
        raise HTTPException(422, str(error)) from error
    except (TimeoutError, forms.OutcomeUnknown) as error:
        raise HTTPException(504, str(error)) from error
    except Exception as error:  # whatever a catalog, storage, Kafka or Airflow raises
        if text := outdated_code.explain_outdated(error):
            log.warning("an action failed: %s", text, exc_info=error)
            raise HTTPException(500, text) from error
        raise HTTPException(409, f"{type(error).__name__}: {error}") from error


async def _handle_unexpected(_: Request, error: Exception) -> Response:
    text = outdated_code.explain_outdated(error) or (
        f"{type(error).__name__}: {error}. Check the state before you repeat it; the API server's log has details"
    )
    return json_response({"detail": text}, 500)


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return json_response({"detail": error.detail}, error.status_code)


async def _handle_invalid_request(_: Request, error: Exception) -> Response:
    """Respond without quoting the body, which may be of any size."""
    return json_response({"detail": f"invalid request: {type(error).__name__}"}, 422)


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Load PyIceberg and the declarations in a thread while the API server starts."""
    outdated_code.remember_files("API server")
    threading.Thread(target=_preload, daemon=True).start()
    yield


def _preload() -> None:
    from frazil.airflow.page import actions, stream_page, table_page, views  # noqa: F401 - as above
    from frazil.host.processes import register_page_server

    try:
        register_page_server()
    except OSError as error:
        log.warning("`frazil doctor` cannot list this API server: %s", error)
    views.cached_declarations()


def _view_response(view: Any) -> Response:
    from frazil.airflow.page import views

    return json_response(replace(view, airflow=views.describe_missing_components()))


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response with the value as JSON, in which all strings are safe to show."""
    content = msgspec.json.encode(_safe(msgspec.to_builtins(value)))
    return Response(content, status, media_type="application/json", headers=HEADERS)


def _safe(value: Any) -> Any:
    match value:
        case str():
            return escape_unsafe(value)
        case dict():
            return {escape_unsafe(key) if isinstance(key, str) else key: _safe(part) for key, part in value.items()}
        case list() | tuple():
            return [_safe(part) for part in value]
    return value


def visible_streams(user: Any, dags: Mapping[str, str]) -> set[str]:
    allowed = readable_dags(user, set(dags.values()))
    return {stream for stream, dag_id in dags.items() if dag_id in allowed}


PAGE_HEADER, PAGE_HEADER_VALUE = "x-frazil", "page"
"""The header that the page's script sends with each action, and its value."""
OUTCOME_KEY = "outcome"
LOGGED_FIELDS = ("reason", "to", "at", "from-time", "to-time", "partition", "day", "dry-run", "unpause")


def origin_problem(headers: Mapping[str, str], *, base_url: str) -> str | None:
    """Return why a request does not come from the page, or None. `headers` has lower-case names."""
    if headers.get(PAGE_HEADER) != PAGE_HEADER_VALUE:
        return f"the header X-Frazil: {PAGE_HEADER_VALUE} is missing"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "another site sent the request"
    origin = headers.get("origin")
    own_hosts = {headers.get("host", ""), urlsplit(base_url).netloc} - {""}
    try:
        is_own = origin is None or urlsplit(origin).netloc in own_hosts
    except ValueError:  # such as http://[
        is_own = False
    return None if is_own else f"the request comes from {origin}"


def is_permitted(user: Any, method: Any, dag_id: str, entity: DagAccessEntity | None = DagAccessEntity.RUN) -> bool:
    """Whether the user may start (POST) or change (PUT) runs of a DAG or, with `entity` None, change the DAG itself."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user)


def may_edit_dag(user: Any, dag_id: str) -> bool:
    return is_permitted(user, "PUT", dag_id, None)


def readable_dags(user: Any, dag_ids: Collection[str]) -> set[str]:
    """Return the DAGs that the user may read. Each DAG is checked with its own team."""
    manager = get_auth_manager()
    by_team: dict[str | None, set[str]] = {}
    teams: dict[str, str | None] = dict.fromkeys(dag_ids)
    if teams and conf.getboolean("core", "multi_team", fallback=False):
        teams |= DagModel.get_dag_id_to_team_name_mapping(list(teams))
    for dag_id, team in teams.items():
        by_team.setdefault(team, set()).add(dag_id)
    needed = (
        manager.filter_authorized_dag_ids(dag_ids=ids, user=user, method="GET", team_name=team)
        for team, ids in by_team.items()
    )
    return set().union(*needed)


def log_action(  # noqa: PLR0913 - an entry
    user: Any, action: str, subject: str, *, dag_id: str | None, form: Mapping[str, Any], outcome: str = "not known yet"
) -> int:
    """Write an action to Airflow's audit log before it is carried out. Return the entry's id, for `log_outcome`."""
    name = user.get_name()
    filled_in = {field: _log_value(form[field]) for field in LOGGED_FIELDS if field in form}
    extra = json.dumps({OUTCOME_KEY: _log_value(outcome), **filled_in, "subject": _log_value(subject)})
    entry = Log(event=f"frazil_{action}", owner=name, owner_display_name=name, extra=extra, dag_id=dag_id)
    with create_session() as session:
        session.add(entry)
        session.flush()
        return int(entry.id)


def _log_value(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    return escape_unsafe(value if isinstance(value, str) else f"({type(value).__name__})")[:MAX_REASON_CHARACTERS]


def log_outcome(entry: int, outcome: str) -> None:
    """Write an action's outcome to its entry in the audit log. If that fails, the action still counts as done."""
    try:
        with create_session() as session:
            entry_row = session.get(Log, entry)
            if entry_row is not None:
                entry_row.extra = json.dumps({**json.loads(entry_row.extra or "{}"), OUTCOME_KEY: _log_value(outcome)})
    except SQLAlchemyError:
        log.warning("cannot write the outcome of an action to Airflow's audit log: %s", outcome, exc_info=True)
