"""Serves the operations page in Airflow's UI to signed-in users: static files, and JSON below `api/`."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from frazil import installed
from frazil.airflow.page.guard import conclude, may, readable, record, record_refusal, refusal
from frazil.safe_text import safe

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
log = logging.getLogger(__name__)
MAX_FORM_BYTES = 64 * 2**10
OUTCOMES = {422: "refused", 504: "not known"}
"""An action's outcome in Airflow's audit log by the response's status; any other status means that it failed."""
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def operations_page() -> FastAPI:
    """Build the application that Airflow's API server mounts at `frazil.airflow.page.address.PREFIX`."""
    app = FastAPI(title="frazil: streams", openapi_url=None, lifespan=_warmed)
    app.add_exception_handler(Exception, _unexpected)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _unreadable)

    @app.get("/")
    def root(user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
        return RedirectResponse("index.html")

    @app.get("/api/overview")
    def overview(user: GetUserDep) -> Response:
        from frazil.airflow.page import alive, views  # noqa: PLC0415 - Airflow's other processes load plugins too

        return answered(views.overview(partial(visible, user), airflow=alive.sentences()))

    @app.get("/api/stream/{name}")
    def stream(name: str, user: GetUserDep, hours: int = 6, tables: str = "") -> Response:
        from frazil.airflow.page import one_stream  # noqa: PLC0415 - as above

        wish = one_stream.Wish(hours, tables)
        found = one_stream.stream(name, wish, partial(visible, user), partial(may, user, "PUT"))
        if found is None:
            raise HTTPException(404, f"no file declares a stream {name}, or you may not see it")
        return _shown(found)

    @app.get("/api/table/{name}")
    def table(name: str, user: GetUserDep) -> Response:
        from frazil.airflow.page import one_table  # noqa: PLC0415 - as above

        found = one_table.table(name, partial(visible, user), partial(may, user, "PUT"))
        if found is None:
            raise HTTPException(404, f"no stream feeds a table {name}, or you may not see it")
        return _shown(found)

    @app.post("/api/plan/{act}/{name}")
    def plan(action: Annotated[Any, Depends(allowed)], form: Annotated[Any, Depends(sent_form)]) -> Response:
        from frazil.airflow.page import acts  # noqa: PLC0415 - as above

        return answered(_said(lambda: acts.planned(action.act, action.subject, form)))

    @app.post("/api/act/{act}/{name}")
    def carry_out(action: Annotated[Any, Depends(allowed)], form: Annotated[Any, Depends(sent_form)]) -> Response:
        from frazil.airflow.page import acts  # noqa: PLC0415 - as above

        entry = record(action.user, action.act, action.subject.name, dag_id=action.subject.dag, form=form)
        person = action.user.get_name()
        try:
            done = _said(lambda: acts.carry_out(action.act, action.subject, form, person=person))
        except HTTPException as error:
            conclude(entry, f"{OUTCOMES.get(error.status_code, 'failed')}: {error.detail}")
            raise
        conclude(entry, f"done: {done.said}")
        return answered(done)

    @app.get("/{name}")
    def static(name: str, user: GetUserDep) -> Response:  # noqa: ARG001 - requires a signed-in user
        kind = KINDS.get(name.rpartition(".")[2])
        file = next((file for file in (files("frazil.airflow.page") / "static").iterdir() if file.name == name), None)
        if kind is None or file is None:
            raise HTTPException(404, "the page has no such file")
        return Response(file.read_bytes(), media_type=kind, headers=HEADERS)

    return app


@dataclass(frozen=True, slots=True)
class AllowedAction:
    """An action that the user is permitted to take."""

    act: Any
    subject: Any
    user: Any


def allowed(request: Request, name: str, act: str, user: GetUserDep) -> AllowedAction:
    """Return the requested action. Raises HTTPException if another page sent the request or the user may not act.

    Refused actions are also written to the audit log.
    """
    from frazil.operations.acts import Act  # noqa: PLC0415 - as above

    known = Act(act) if act in set(Act) else None
    try:
        return _allowed_action(request, name, known, user)
    except HTTPException as error:
        if known is not None:
            _record_refusal(request, user, known, name, error)
        raise


def _allowed_action(request: Request, name: str, act: Any, user: Any) -> AllowedAction:
    from frazil.airflow.page import acts  # noqa: PLC0415 - as above

    if said := refusal(request.headers):
        raise HTTPException(403, f"refused: {said}")
    subject = None if act is None else acts.subject_of(act, name, partial(visible, user))
    if subject is None:
        raise HTTPException(404, f"no file declares {name}, you may not see it, or there is no such act")
    if not may(user, subject.method, subject.dag):
        raise HTTPException(
            403, f"Airflow does not let you do that: you need {subject.method} for runs of {subject.dag}"
        )
    return AllowedAction(act, subject, user)


async def sent_form(request: Request, action: Annotated[Any, Depends(allowed)]) -> dict[str, Any]:
    """Read the form from the body, up to its size limit. Raises HTTPException if the body is not a form."""
    try:
        return await _form(request)
    except HTTPException as error:
        await run_in_threadpool(_record_refusal, request, action.user, action.act, action.subject.name, error)
        raise


async def _form(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"the form has more than {MAX_FORM_BYTES:,} bytes")
    try:
        # Not msgspec, which refuses half of a surrogate pair: the field that has it is named when it is read.
        form = json.loads(body)
    except (ValueError, RecursionError):
        form = None
    if not isinstance(form, dict):
        raise HTTPException(422, "the form is not a JSON object")
    return form


def _record_refusal(request: Request, user: Any, act: Any, name: str, error: HTTPException) -> None:
    if request.scope["route"].path.startswith("/api/act/"):
        record_refusal(user, act, name, f"refused: {error.detail}")


def _said(work: Callable[[], Any]) -> Any:
    """Turn the errors of an action into responses with a status, instead of a server error."""
    from frazil.airflow.page import forms  # noqa: PLC0415 - as above

    try:
        return work()
    except forms.Invalid as error:
        raise HTTPException(422, str(error)) from error
    except (TimeoutError, forms.NotKnown) as error:
        raise HTTPException(504, str(error)) from error
    except Exception as error:  # whatever a catalog, a storage, Kafka or Airflow raises
        if said := installed.outdated(error):
            log.warning("an act failed: %s", said, exc_info=error)
            raise HTTPException(500, said) from error
        raise HTTPException(409, f"{type(error).__name__}: {error}") from error


async def _unexpected(_: Request, error: Exception) -> Response:
    """Respond to an unexpected error, which the server logs, with the next step for the user."""
    said = installed.outdated(error) or (
        f"{type(error).__name__}: {error}. Look again before you repeat it: the API server's log has the whole error"
    )
    return answered({"detail": said}, 500)


async def _refused(_: Request, error: Exception) -> Response:
    """Respond with a detail that is safe to show, because it may quote the request."""
    assert isinstance(error, StarletteHTTPException)
    return answered({"detail": error.detail}, error.status_code)


async def _unreadable(_: Request, error: Exception) -> Response:
    """Respond without quoting the body, which may be of any size."""
    return answered({"detail": f"the request cannot be read: {type(error).__name__}"}, 422)


@asynccontextmanager
async def _warmed(_: FastAPI) -> AsyncIterator[None]:
    """Load PyIceberg and read the declarations in a thread while the API server starts."""
    installed.remember("API server")
    threading.Thread(target=_warm, daemon=True).start()
    yield


def _warm() -> None:
    from frazil.airflow.page import acts, one_stream, one_table, views  # noqa: F401, PLC0415 - as above
    from frazil.host import page_servers  # noqa: PLC0415 - as above

    try:
        page_servers.announce()
    except OSError as error:
        log.warning("`frazil doctor` cannot list this API server: %s", error)
    views.declared()


def _shown(view: Any) -> Response:
    """Return a view of one stream or table, with sentences about silent Airflow components."""
    from frazil.airflow.page import alive  # noqa: PLC0415 - as above

    return answered(replace(view, airflow=alive.sentences()))


def answered(value: Any, status: int = 200) -> Response:
    """Return a frozen value as JSON, with texts made safe to show."""
    shown = msgspec.json.encode(_safe(msgspec.to_builtins(value)))
    return Response(shown, status, media_type="application/json", headers=HEADERS)


def _safe(value: Any) -> Any:
    match value:
        case str():
            return safe(value)
        case dict():
            return {safe(key) if isinstance(key, str) else key: _safe(part) for key, part in value.items()}
        case list() | tuple():
            return [_safe(part) for part in value]
    return value


def visible(user: Any, dags: Mapping[str, str]) -> set[str]:
    """Return the streams whose writer's DAG the user may read in Airflow. `dags` maps streams to these DAGs."""
    allowed = readable(user, set(dags.values()))
    return {stream for stream, dag_id in dags.items() if dag_id in allowed}
