"""Checks that a request comes from our page and that Airflow permits its user to act, and writes the audit log.

A browser sends the session's cookie with requests from any site, and Airflow has no CSRF token. Another site cannot set
our header without a preflight request, which the server never grants. Another site cannot hide its origin either.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.configuration import conf
from airflow.models import Log
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError

from frazil.safe_text import MAX_REASON_CHARACTERS, safe

log = logging.getLogger(__name__)

HEADER, OURS = "x-frazil", "page"
OUTCOME = "outcome"
FIELDS = ("reason", "to", "at", "from-time", "to-time", "partition", "day", "dry-run")
"""The fields of all forms, except `seal`."""


def foreign(headers: Mapping[str, str], *, base_url: str) -> str | None:
    """Return why a request does not come from our page; None if it does. Pure; `headers` has names in lower case."""
    if headers.get(HEADER) != OURS:
        return f"the header X-Frazil: {OURS} is missing"
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "another site sent it"
    origin = headers.get("origin")
    ours = {headers.get("host", ""), urlsplit(base_url).netloc} - {""}
    if origin is not None and urlsplit(origin).netloc not in ours:
        return f"it comes from {origin}"
    return None


def refusal(headers: Mapping[str, str]) -> str | None:
    """Return why this API server refuses a request, by its headers; None if the request comes from our page."""
    return foreign(headers, base_url=conf.get("api", "base_url", fallback=""))


def may(user: Any, method: str, dag_id: str) -> bool:
    """Whether the user may start (POST) or change (PUT) runs of a DAG, and so act on the DAG's streams and tables."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    manager = get_auth_manager()
    return manager.is_authorized_dag(method=method, access_entity=DagAccessEntity.RUN, details=details, user=user)  # type: ignore[arg-type]


def readable(user: Any, dag_ids: Collection[str]) -> set[str]:
    """Return the DAGs that the user may read. If Airflow has several teams, each DAG is checked for its own team."""
    manager = get_auth_manager()
    by_team: dict[str | None, set[str]] = {}
    for dag_id, team in _teams(dag_ids).items():
        by_team.setdefault(team, set()).add(dag_id)
    needed = (
        manager.filter_authorized_dag_ids(dag_ids=ids, user=user, method="GET", team_name=team)
        for team, ids in by_team.items()
    )
    return set().union(*needed)


def _teams(dag_ids: Collection[str]) -> dict[str, str | None]:
    teams: dict[str, str | None] = dict.fromkeys(dag_ids)
    if teams and conf.getboolean("core", "multi_team", fallback=False):
        teams |= DagModel.get_dag_id_to_team_name_mapping(list(teams))
    return teams


def record(  # noqa: PLR0913 - an entry
    user: Any, act: str, subject: str, *, dag_id: str | None, form: Mapping[str, Any], outcome: str = "not known yet"
) -> int:
    """Write to Airflow's audit log that a user is about to act. Return the id of the log entry, for `conclude`.

    The entry has the form's known fields, with long values shortened.
    """
    name = user.get_name()
    filled_in = {field: _kept(form[field]) for field in FIELDS if field in form}
    extra = json.dumps({OUTCOME: _kept(outcome), **filled_in, "subject": _kept(subject)})
    entry = Log(event=f"frazil_{act}", owner=name, owner_display_name=name, extra=extra, dag_id=dag_id)
    with create_session() as session:
        session.add(entry)
        session.flush()
        return int(entry.id)


def record_refusal(user: Any, act: str, subject: str, outcome: str) -> None:
    """Write a refused action to the audit log. If that fails, the action is still refused."""
    try:
        record(user, act, subject, dag_id=None, form={}, outcome=outcome)
    except SQLAlchemyError:
        log.warning("Airflow's audit log does not have a refused act: %s", outcome, exc_info=True)


def _kept(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    return safe(value if isinstance(value, str) else f"({type(value).__name__})")[:MAX_REASON_CHARACTERS]


def conclude(entry: int, outcome: str) -> None:
    """Write the outcome of an action to its entry in the audit log. If that fails, the action still counts as done."""
    try:
        with create_session() as session:
            found = session.get(Log, entry)
            if found is not None:
                found.extra = json.dumps({**json.loads(found.extra or "{}"), OUTCOME: _kept(outcome)})
    except SQLAlchemyError:
        log.warning("Airflow's audit log does not have what came of an act: %s", outcome, exc_info=True)
