"""Responses at the uri of a REST catalog, and how users and supervisors see them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from frazil.errors import CommitUnavailable, FrazilError
from frazil.table import rest_catalog
from frazil.table.catalog_errors import retry_after_s
from frazil.table.catalogs import CatalogConfig, _open, translate_catalog_errors
from frazil.table.rest_catalog import nest_properties
from tests.troubled_proxy import (
    Answer,
    Call,
    Forward,
    Trouble,
    TroubledProxy,
    first,
    instead,
    page,
    proxy,
    refusal,
    slow,
)

pytestmark = pytest.mark.processes

CONFIG = Answer(200, json.dumps({"defaults": {}, "overrides": {}}).encode(), {"Content-Type": "application/json"})


@pytest.fixture
def server() -> Iterator[TroubledProxy]:
    """A server without a catalog: a trouble creates each response."""
    with proxy("http://127.0.0.1:1", instead(CONFIG)) as server:
        yield server


def opened(server: TroubledProxy, **properties: str) -> str:
    with pytest.raises(FrazilError) as raised, translate_catalog_errors("lake"):
        _open(CatalogConfig("lake", {"type": "rest", "uri": server.uri, **properties})).list_namespaces()
    text = f"{type(raised.value).__name__}: {raised.value}"
    assert "\n" not in text
    assert len(text) < 500, "one sentence, not a page"
    return text


FOREIGN = "CommitUnavailable: the uri of the catalog 'lake' does not respond like an Iceberg REST catalog: status"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page(200), f"{FOREIGN} 200 with text/html instead of JSON: '<html><body>Welcome!</body></html>'"),
        (page(200, "<p>" * 10_000), f"{FOREIGN} 200 with text/html"),
        (page(404), f"{FOREIGN} 404 with text/html"),
        (Answer(404), f"{FOREIGN} 404 without an Iceberg error. Correct its uri and warehouse"),
        (Answer(408), f"{FOREIGN} 408 without an Iceberg error"),
        (Answer(425), f"{FOREIGN} 425 without an Iceberg error"),
        (page(425), f"{FOREIGN} 425 without an Iceberg error"),
        (refusal(404, "no such warehouse"), "SpecError: the warehouse of the catalog 'lake' does not exist"),
        (Answer(200, b"[1, 2]"), "CommitUnavailable: .* the JSON is not a valid ConfigResponse"),
        (Answer(200, b'{"defaults": "?"}'), "CommitUnavailable: .* the JSON is not a valid ConfigResponse"),
        (Answer(200, b"{}"), "CommitUnavailable: .* the JSON is not a valid ListNamespaceResponse"),
        (Answer(502, b"Bad Gateway"), "CommitUnavailable: the catalog 'lake' cannot be reached"),
        (page(503, "<p>" * 10_000), "CommitUnavailable: the catalog 'lake' cannot be reached"),
        (Answer(401), "AccessDenied: the catalog 'lake' or its storage refuses frazil's credentials"),
        (Answer(400), "CommitRefused: the catalog 'lake' refuses the request"),
    ],
)
def test_an_answer_of_a_server_that_is_not_a_catalog_gives_one_sentence(
    server: TroubledProxy, answer: Answer, said: str
) -> None:
    """Only Iceberg's own error format is permanent; a gateway without its catalog looks like other servers."""
    server.trouble = instead(answer)
    assert re.match(said, opened(server))


def test_a_404_page_of_a_gateway_is_not_taken_for_a_missing_table(server: TroubledProxy) -> None:
    catalog = _open(CatalogConfig("lake", {"type": "rest", "uri": server.uri}))
    server.trouble = instead(page(404))
    with (
        pytest.raises(CommitUnavailable, match="does not respond like an Iceberg REST catalog"),
        translate_catalog_errors("lake"),
    ):
        catalog.load_table("city.rides")


@pytest.mark.parametrize("status", [429, 503])
def test_reads_from_an_overloaded_catalog_are_retried_a_few_times(server: TroubledProxy, status: int) -> None:
    server.trouble = first(2, instead(refusal(status, "busy", Retry_After="0")))
    server.trouble = _then(server.trouble, CONFIG)
    _open(CatalogConfig("lake", {"type": "rest", "uri": server.uri}))
    assert server.calls["GET"] == 3
    server.calls.clear()
    server.trouble = instead(refusal(status, "busy", Retry_After="0"))
    assert "busy" in opened(server)
    assert server.calls["GET"] == 1 + rest_catalog.MAX_READ_RETRIES


def _then(trouble: Trouble, answer: Answer) -> Trouble:
    return lambda call, _: trouble(call, lambda __: answer)


def test_a_catalog_that_does_not_answer_is_not_awaited_for_ever(
    server: TroubledProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_catalog, "OPEN_TIMEOUT_S", (1.0, 0.1))
    server.trouble = slow(2, instead(CONFIG))
    assert re.search(r"cannot be reached at http://127.0.0.1:\d+: no answer in time", opened(server))
    assert server.calls["GET"] == 1, "a retry would take as long again"


def test_properties_that_pyiceberg_expects_as_mappings_are_nested() -> None:
    flat = {"uri": "u", "auth.type": "oauth2", "auth.oauth2.client_id": "me", "ssl.cabundle": "ca.pem", "a.b": "c"}
    assert nest_properties(flat) == {
        "uri": "u",
        "auth": {"type": "oauth2", "oauth2": {"client_id": "me"}},
        "ssl": {"cabundle": "ca.pem"},
        "a.b": "c",
    }


class Tokens:
    """An OAuth2 server and a REST catalog in one. Its tokens expire when a test says so."""

    def __init__(self) -> None:
        self.given = 0
        self.valid = ""

    def __call__(self, call: Call, _: Forward) -> Answer:
        if "/token" in call.path:
            self.given += 1
            self.valid = f"token-{self.given}"
            given = {"access_token": self.valid, "token_type": "bearer", "expires_in": 3600}
            return Answer(200, json.dumps(given).encode(), {"Content-Type": "application/json"})
        if call.header("Authorization") != f"Bearer {self.valid}":
            return refusal(401, "the token has expired")
        return CONFIG if "/config" in call.path else Answer(200, b'{"namespaces": [["city"]]}')


def test_a_token_that_expired_is_replaced_at_its_next_use(server: TroubledProxy) -> None:
    server.trouble = tokens = Tokens()
    oauth = {"credential": "me:secret", "oauth2-server-uri": f"{server.uri}/token"}
    catalog = _open(CatalogConfig("lake", {"type": "rest", "uri": server.uri, **oauth}))
    for _ in range(3):
        assert catalog.list_namespaces() == [("city",)]
        before, tokens.valid = tokens.given, "another one"
        assert catalog.list_namespaces() == [("city",)]
        assert tokens.given == before + 1


def test_a_token_of_auth_type_oauth2_is_requested_with_the_configured_credentials(server: TroubledProxy) -> None:
    server.trouble = tokens = Tokens()
    oauth = {"type": "oauth2", "oauth2.client_id": "me", "oauth2.client_secret": "s"}
    given = {f"auth.{key}": value for key, value in oauth.items()} | {"auth.oauth2.token_url": f"{server.uri}/token"}
    catalog = _open(CatalogConfig("lake", {"type": "rest", "uri": server.uri, **given}))
    assert catalog.list_namespaces() == [("city",)]
    assert tokens.given


def test_a_retry_after_header_with_a_non_ascii_digit_causes_no_wait() -> None:
    error, cause = Exception(), Exception()
    cause.response = SimpleNamespace(headers={"Retry-After": "²"})  # type: ignore[attr-defined]
    error.__cause__ = cause
    assert retry_after_s(error) is None
