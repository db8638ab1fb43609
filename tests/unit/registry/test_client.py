"""The client of a schema registry, against a fake server."""

from __future__ import annotations

import base64
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests

from frazil.errors import RegistryUnavailable, SpecError
from frazil.registry import bounded_http, client
from frazil.registry.client import SchemaRegistry, SchemaText, UnknownSchema, shared_registry
from frazil.spec.formats import Registry
from tests.made_registry import Answer, MadeRegistry, made_registry
from tests.secured_kafka import Authority


@pytest.fixture
def server() -> Iterator[MadeRegistry]:
    with made_registry() as made:
        yield made


def opened(url: str, **more: Any) -> SchemaRegistry:
    return SchemaRegistry(Registry(url=url, timeout=timedelta(seconds=more.pop("timeout_s", 5)), **more), {"P": "pw"})


def test_a_schema_is_requested_once(server: MadeRegistry) -> None:
    server.answers["/schemas/ids/7"] = [(200, {"schema": '"string"'})]
    found = opened(server.url + "/")
    assert [found.get(7), found.get(7)] == [SchemaText("AVRO", '"string"')] * 2
    assert server.requested == ["/schemas/ids/7"]


def referring(text: str, *references: tuple[str, str, int]) -> list[Answer]:
    keys = ("name", "subject", "version")
    found = [dict(zip(keys, reference, strict=True)) for reference in references]
    return [(200, {"schema": text, "schemaType": "PROTOBUF", "references": found})]


def test_referenced_schemas_come_before_their_user_and_only_once(server: MadeRegistry) -> None:
    a, b = ("a.proto", "a/b c", 1), ("b.proto", "b", 2)
    server.answers = {
        "/schemas/ids/1": referring("top", a, b),
        "/subjects/a%2Fb%20c/versions/1?deleted=true": referring("A", b),
        "/subjects/b/versions/2?deleted=true": referring("B", b),
    }
    assert opened(server.url).get(1) == SchemaText("PROTOBUF", "top", (("b.proto", "B"), ("a.proto", "A")))
    assert len(server.requested) == 3


def test_the_first_of_two_versions_of_a_referenced_schema_is_used_as_in_confluents_clients(
    server: MadeRegistry,
) -> None:
    """See confluentinc/schema-registry#4381: by default, a registry accepts them."""
    a, old, new = ("A", "a", 1), ("B", "b", 1), ("B", "b", 2)
    server.answers = {
        "/schemas/ids/1": referring("top", a, new),
        "/subjects/a/versions/1?deleted=true": referring("A", old),
        "/subjects/b/versions/1?deleted=true": referring("old"),
        "/subjects/b/versions/2?deleted=true": referring("new"),
    }
    assert opened(server.url).get(1).references == (("B", "old"), ("A", "A"))


def test_a_schema_id_without_a_schema_is_requested_again_only_after_a_while(server: MadeRegistry) -> None:
    found = opened(server.url)
    for schema_id in (9, 9, -1, 0):
        with pytest.raises(UnknownSchema):
            found.get(schema_id)
    assert server.requested == ["/schemas/ids/9"]
    server.answers["/schemas/ids/9"] = [(200, {"schema": "{}"})]
    with mock.patch.object(client, "UNKNOWN_ID_CACHE_S", 0.0):
        assert found.get(9).text == "{}"


def test_several_ids_are_requested_together_and_each_once(server: MadeRegistry) -> None:
    server.answers = {f"/schemas/ids/{i}": [(200, {"schema": str(i)})] for i in (1, 3)}
    server.meeting = threading.Barrier(4)  # passes only requests that wait at the same time
    found = opened(server.url)
    found.prefetch([-5, 1, 2, 3, 4])
    assert [found.get(1).text, found.get(3).text] == ["1", "3"]
    for schema_id in (-5, 2, 4):
        with pytest.raises(UnknownSchema, match=str(schema_id)):
            found.get(schema_id)
    found.prefetch([1, 2, 3, 4])
    found.prefetch([])
    assert sorted(server.requested) == [f"/schemas/ids/{i}" for i in (1, 2, 3, 4)]


def test_a_failed_registry_answer_for_one_of_several_ids_is_not_cached(server: MadeRegistry) -> None:
    server.answers["/schemas/ids/2"] = [(401, {})]
    found = opened(server.url)
    with pytest.raises(RegistryUnavailable, match="refuses the credentials"):
        found.prefetch([1, 2, 3])
    server.answers["/schemas/ids/2"] = [(200, {"schema": "2"})]
    assert found.get(2).text == "2"


def test_a_reference_that_is_gone_is_an_unknown_schema(server: MadeRegistry) -> None:
    reference = {"name": "x", "subject": "x", "version": 1}
    server.answers["/schemas/ids/1"] = [(200, {"schema": "{}", "references": [reference]})]
    with pytest.raises(UnknownSchema, match="version 1 of x, which the registry does not have"):
        opened(server.url).get(1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error_code": 401}), "refuses the credentials"),
        ((403, b"no"), "refuses the credentials"),
        ((404, b"<html>"), "responds with status 404, but not like a schema registry"),
        ((404, {"error_code": 404}), "responds with status 404, but not like a schema registry"),
        ((200, b"<html>"), "responds with status 200, but not like a schema registry"),
        ((200, {"schema": 5}), "responds with status 200, but not like a schema registry"),
        ((200, b"[" * 100_000), "responds with status 200, but not like a schema registry"),
        ((200, {"schema": "{}", "references": [{}]}), r"returns invalid references \(KeyError\)"),
        ((200, {"schema": "{}", "references": 5}), r"returns invalid references \(TypeError\)"),
        (
            (200, {"schema": "{}", "references": [{"name": "x", "subject": "x", "version": "newest"}]}),
            r"returns invalid references \(ValueError\)",
        ),
        ((500, b""), "responds with status 500"),
        ((429, b""), "responds with status 429"),
    ],
)
def test_an_invalid_registry_answer_rejects_no_record(server: MadeRegistry, answer: Answer, said: str) -> None:
    server.answers["/schemas/ids/1"] = [answer]
    with pytest.raises(RegistryUnavailable, match=said):
        opened(server.url, timeout_s=0.3).get(1)


def test_an_endless_response_is_refused_at_a_size_limit(server: MadeRegistry) -> None:
    server.answers["/schemas/ids/1"] = [(200, {"schema": "{}", "padding": "x" * 200_000})]
    said = r"does not respond: .* more than 100,000 bytes"
    with mock.patch.object(bounded_http, "MAX_RESPONSE_BYTES", 100_000), pytest.raises(RegistryUnavailable, match=said):
        opened(server.url, timeout_s=0.1).get(1)
    assert opened(server.url).get(1).text == "{}"


def test_a_chain_of_schema_references_that_is_too_long_is_an_unknown_schema(server: MadeRegistry) -> None:
    for i in range(10):
        path = f"/subjects/s{i}/versions/1?deleted=true" if i else "/schemas/ids/1"
        reference = {"name": f"n{i}", "subject": f"s{i + 1}", "version": 1}
        server.answers[path] = [(200, {"schema": "{}", "references": [reference]})]
    said = "a chain of more than 8 other schemas"
    with mock.patch.object(client, "MAX_REFERENCE_DEPTH", 8), pytest.raises(UnknownSchema, match=said):
        opened(server.url).get(1)


def test_slow_schema_references_time_out_and_the_next_attempt_continues(server: MadeRegistry) -> None:
    """1,000 references, each given within the timeout, would hold the client's lock for hours."""
    for i in range(6):
        reference = {"name": f"n{i}", "subject": f"s{i}", "version": 1}
        path = f"/subjects/s{i - 1}/versions/1?deleted=true" if i else "/schemas/ids/1"
        server.answers[path] = [(200, {"schema": str(i), "references": [reference] if i < 5 else []})]
    clock = iter(float(i) for i in itertools.count())  # a second passes with each look at it
    found = opened(server.url, timeout_s=2)
    said = "did not return all references of a schema within 10 s; the next attempt fetches only the missing ones"
    with mock.patch.object(client, "time", mock.Mock(monotonic=lambda: next(clock), sleep=time.sleep)):
        with pytest.raises(RegistryUnavailable, match=said):
            found.get(1)
        with suppress(RegistryUnavailable):
            found.get(1)
        schema = found.get(1)
    assert len(schema.references) == 5
    assert [path for path in server.requested if "subjects" in path] == [
        f"/subjects/s{i}/versions/1?deleted=true" for i in range(5)
    ]


def test_a_temporary_registry_error_is_retried(server: MadeRegistry) -> None:
    server.answers["/schemas/ids/1"] = [(503, b""), (500, b""), (200, {"schema": "{}"})]
    assert opened(server.url).get(1).text == "{}"


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://user:secret@127.0.0.1:{listening.getsockname()[1]}/base"


def test_an_unresponsive_registry_and_a_refused_connection_are_reported_without_secrets() -> None:
    with silent() as url:
        with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:\d+/base does not respond") as raised:
            opened(url, timeout_s=0.2).get(1)
        assert "secret" not in str(raised.value)
    with pytest.raises(RegistryUnavailable, match="does not respond: ConnectionRefusedError"):
        opened(url, timeout_s=0.2).get(1)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_slowly_dripping_response_is_a_timeout(scheme: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates") if scheme == "https" else None
    trust = {"ca_file": str(authority.certificate)} if authority else {}
    with made_registry(authority and authority.issue("registry")) as server:
        server.answers["/schemas/ids/1"] = [(200, {"schema": '"string"', "padding": "x" * 10_000})]
        found = opened(server.url, timeout_s=0.5, **trust)
        server.drip_s = 0.05  # minutes for the whole answer, and each byte comes soon
        with pytest.raises(RegistryUnavailable, match=r"does not respond within 0\.5 s"):
            found.get(1)
        server.drip_s = 0.0
        assert opened(server.url, **trust).get(1).text == '"string"'


def test_the_timeout_holds_across_a_redirect() -> None:
    with made_registry() as first, made_registry() as second:
        first.answers["/schemas/ids/1"] = [(307, second.url + "/other")]
        second.answers["/other"] = [(200, {"schema": '"string"', "padding": "x" * 10_000})]
        found = opened(first.url, timeout_s=0.5)
        second.drip_s = 0.05
        with pytest.raises(RegistryUnavailable, match=r"does not respond within 0\.5 s"):
            found.get(1)


def test_a_redirect_to_another_host_does_not_extend_the_time_limit() -> None:
    with made_registry() as server:
        server.answers["/"] = [(200, {"padding": "x" * 10_000})]
        server.drip_s = 0.05
        bound = bounded_http._current_request.bound = bounded_http._TimeLimit(60.0)
        bound.end()  # as the timer does while the first host drips
        with pytest.raises(requests.exceptions.ConnectionError):
            bounded_http.create_session().get(server.url, timeout=60.0)


def test_only_the_declared_authority_is_trusted(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    with made_registry(ours.issue("registry")) as server:
        server.answers["/schemas/ids/1"] = [(200, {"schema": "{}"})]
        assert opened(server.url, ca_file=str(ours.certificate)).get(1).text == "{}"
        for trusted in (None, str(others.certificate)):
            untrusting = opened(server.url, ca_file=trusted)
            with pytest.raises(RegistryUnavailable, match=r"does not respond: .*CERTIFICATE_VERIFY_FAILED"):
                untrusting.get(1)
    with pytest.raises(SpecError, match=r"ca-file: \S+/lost\.pem does not exist on this host"):
        opened("https://registry", ca_file=str(tmp_path / "lost.pem"))


def test_credentials_are_references_and_go_with_each_request(server: MadeRegistry) -> None:
    server.answers["/schemas/ids/1"] = [(200, {"schema": "{}"})]
    opened(server.url, username="u", password="${env:P}").get(1)
    opened(server.url, token="${env:P}", properties={"X-Tenant": "${env:P}"}).get(1)
    basic, bearer = server.headers
    assert basic["Authorization"] == "Basic " + base64.b64encode(b"u:pw").decode()
    assert (bearer["Authorization"], bearer["X-Tenant"]) == ("Bearer pw", "pw")
    with pytest.raises(SpecError, match="MISSING is not set"):
        opened(server.url, token="${env:MISSING}")


def test_credentials_go_to_no_other_host_that_a_registry_redirects_to(server: MadeRegistry) -> None:
    with made_registry() as other:
        server.answers = {
            "/schemas/ids/1": [(307, f"{other.url}/schemas/ids/1".replace("127.0.0.1", "localhost"))],
            "/schemas/ids/2": [(307, f"{server.url}/schemas/ids/3")],
            "/schemas/ids/3": [(200, {"schema": "{}"})],
        }
        other.answers["/schemas/ids/1"] = [(200, {"schema": "{}"})]
        found = opened(server.url, token="${env:P}", properties={"X-Key": "${env:P}"})
        assert [found.get(1).text, found.get(2).text] == ["{}", "{}"]
        assert "pw" not in other.headers[0].values()
        assert server.headers[-1]["X-Key"] == "pw"


def test_a_process_has_one_client_for_each_registry_and_credentials() -> None:
    declared = Registry(url="http://r", token="${env:T}")
    one = shared_registry(declared, {"T": "a"})
    assert shared_registry(declared, {"T": "a"}) is one
    assert shared_registry(declared, {"T": "b"}) is not one


def test_only_a_bounded_number_of_schemas_is_cached(server: MadeRegistry) -> None:
    server.answers = {f"/schemas/ids/{i}": [(200, {"schema": "{}"})] for i in (1, 2, 3)}
    found = opened(server.url)
    with mock.patch.object(client, "MAX_CACHED_SCHEMAS", 2):
        for i in (1, 2, 1, 3, 1):
            found.get(i)
    assert len(server.requested) == 3


def test_ids_of_guids_are_distinct_and_bounded(server: MadeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_CACHED_GUIDS", 3)
    draws = iter([5, 5, 6, 7, 8, 9])
    monkeypatch.setattr(client.secrets, "randbits", lambda _: next(draws))
    guids = [bytes([n]) * 16 for n in range(4)]
    server.answers["/schemas/guids/00000000-0000-0000-0000-000000000000"] = [(200, {"schema": '"string"'})]
    found = opened(server.url)
    assert [found.id_of(guid) for guid in (*guids[:3], guids[0], guids[3])] == [-6, -7, -8, -6, -9]
    assert found.get(-6) == SchemaText("AVRO", '"string"')
    with pytest.raises(UnknownSchema, match="-7 is not a schema id"):
        found.get(-7)
    assert found.id_of(guids[1]) == -10
