"""A small client of Airflow's REST API, with only the calls that this package and the demo need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from frazil.errors import EnvironmentUnusable

Json = dict[str, Any]


class AirflowClient:
    """Calls the API of an Airflow as one user, and returns JSON. Raises EnvironmentUnusable if it refuses a call."""

    def __init__(self, url: str, *, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._user, self._password = user, password
        self._token: str | None = None
        self._signing_in = threading.Lock()

    def token(self) -> str:
        with self._signing_in:
            if self._token is None:
                body = {"username": self._user, "password": self._password}
                answer = self._send("POST", "/auth/token", json=body)
                self._token = str(_read_response(answer, "POST", "/auth/token")["access_token"])
            return self._token

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str | int | bool] | None = None,
    ) -> Json:
        """Call a path of the API, such as `/api/v2/dags`, and return the JSON response."""
        answer = self._send_with_token(method, path, json, params)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self._token = None
            answer = self._send_with_token(method, path, json, params)
        return _read_response(answer, method, path)

    def health(self) -> Json:
        """Return the status and last heartbeat of each component. Needs no sign-in."""
        return _read_response(self._send("GET", "/api/v2/monitor/health"), "GET", "/api/v2/monitor/health")

    def dags(self, **params: str | int | bool) -> list[Json]:
        """Return the first 100 DAGs. `params` are query parameters."""
        return self._list("/api/v2/dags", "dags", params)

    def import_errors(self) -> list[Json]:
        return self._list("/api/v2/importErrors", "import_errors", {})

    def wait_for_dag(self, dag_id: str, *, within_s: float = 60) -> Json:
        """Wait until a DAG is parsed. At the timeout, raises EnvironmentUnusable with the import errors."""

        def find_dag() -> Json | None:
            return next((dag for dag in self.dags(limit=1000, exclude_stale=True) if dag["dag_id"] == dag_id), None)

        try:
            return wait_for(find_dag, what=f"the DAG {dag_id}", within_s=within_s)
        except EnvironmentUnusable as error:
            reasons = "; ".join(f"{e['filename']}: {e['stack_trace'].splitlines()[-1]}" for e in self.import_errors())
            raise EnvironmentUnusable(f"{error} {reasons or 'Airflow has no import errors'}") from None

    def set_paused(self, dag_id: str, paused: bool) -> Json:
        return self.call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": paused})

    def _list(self, path: str, key: str, params: Mapping[str, str | int | bool]) -> list[Json]:
        """Return the list at `key` in the response, at most 100 items by default."""
        found: list[Json] = self.call("GET", path, params={"limit": 100, **params})[key]
        return found

    def _send_with_token(
        self, method: str, path: str, json: Mapping[str, Any] | None, params: Mapping[str, Any] | None
    ) -> httpx.Response:
        return self._send(method, path, json=json, params=params, headers={"Authorization": f"Bearer {self.token()}"})

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request over a new connection, because tests kill the API server."""
        try:
            return httpx.request(method, f"{self.url}{path}", timeout=30, trust_env=False, **request)
        except httpx.HTTPError as error:
            raise EnvironmentUnusable(f"Airflow at {self.url} does not answer {method} {path}: {error!r}") from error


def wait_for(find: Callable[[], Json | None], *, what: str, within_s: float) -> Json:
    """Call `find` twice a second until it returns a value. Raises EnvironmentUnusable after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise EnvironmentUnusable(f"{what} did not appear within {within_s:.0f} s.")
        time.sleep(0.5)
    return found


def _read_response(answer: httpx.Response, method: str, path: str) -> Json:
    """Return the JSON of a response. Raises EnvironmentUnusable if it is an error."""
    if answer.is_error:
        raise EnvironmentUnusable(f"Airflow refused {method} {path} with {answer.status_code}: {answer.text[:500]}")
    body: Json = answer.json() if answer.content else {}
    return body
