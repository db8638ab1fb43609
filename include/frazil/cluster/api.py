"""HTTP calls to a cluster's API, with timeouts and a one-sentence error for each kind of failure."""

from __future__ import annotations

from typing import Any

import requests
from urllib3.exceptions import NewConnectionError

TIMEOUT_S = (2.0, 5.0)
"""Timeouts in seconds: to connect, and between two parts of an answer."""


class Silent(Exception):
    """The API gave no usable answer, so the driver's state is unknown. The message names the reason."""


class Unreached(Silent):
    """The connection was never established, so the API did not receive the request."""


def call(session: requests.Session, method: str, url: str, *, who: str, **how: Any) -> requests.Response:
    """Send a request and return the API's answer, also if its status is a client error (4xx).

    `who` is the API's name in messages.

    Raises Unreached without a connection. Raises Silent after a timeout, a redirect loop or a server error (5xx, 429).
    """
    try:
        answer = session.request(method, url, timeout=TIMEOUT_S, **how)
    except requests.exceptions.SSLError as error:
        raise Unreached(f"the certificate of {who} is not trusted: {_cause(error)}") from error
    except requests.ConnectTimeout as error:
        raise Unreached(f"{who} cannot be reached: no connection within {TIMEOUT_S[0]:.0f} s") from error
    except requests.Timeout as error:
        raise Silent(f"{who} did not answer in time") from error
    except (requests.RequestException, OSError) as error:
        kind = Unreached if _never_connected(error) else Silent
        raise kind(f"{who} cannot be reached: {_cause(error)}") from error
    if answer.status_code >= 500 or answer.status_code == 429:
        raise Silent(f"{who} answered {answer.status_code} {answer.reason}")
    return answer


def body(answer: requests.Response, *, who: str) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises Silent if the body is anything else, such as a proxy's login page."""
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        kind = answer.headers.get("Content-Type", "nothing").partition(";")[0]
        raise Silent(f"{who} answered {answer.status_code} with {kind} instead of JSON: is a proxy in front of it?")
    return found


def _never_connected(error: BaseException) -> bool:
    """Return whether the connection was never established: it was refused, or the host name is unknown."""
    wrapped = error.args[0] if error.args else None
    return isinstance(getattr(wrapped, "reason", wrapped), NewConnectionError)


def _cause(error: BaseException) -> str:
    while (inner := error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__
