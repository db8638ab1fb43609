"""The catalogs that commit to several tables atomically, and the request to a REST catalog."""

from __future__ import annotations

import io
import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from frazil import clock
from frazil.commit.snapshot import SnapshotWriter
from frazil.errors import SpecError
from frazil.table.atomic_catalogs import COMMIT_ENDPOINT, TableChange, atomic_commit_problem, find_commit_tables
from frazil.table.catalogs import CatalogConfig, _open

REQUEST = {
    "type": "object",
    "required": ["table-changes"],
    "additionalProperties": False,
    "properties": {"table-changes": {"type": "array", "items": {"$ref": "#/$defs/change"}}},
    "$defs": {
        "change": {
            "type": "object",
            "required": ["identifier", "requirements", "updates"],
            "additionalProperties": False,
            "properties": {
                "identifier": {
                    "type": "object",
                    "required": ["namespace", "name"],
                    "properties": {
                        "namespace": {"type": "array", "items": {"type": "string"}},
                        "name": {"type": "string"},
                    },
                },
                "requirements": {"type": "array", "items": {"$ref": "#/$defs/requirement"}},
                "updates": {"type": "array", "items": {"$ref": "#/$defs/update"}},
            },
        },
        "requirement": {
            "oneOf": [
                {"required": ["type", "uuid"], "properties": {"type": {"const": "assert-table-uuid"}}},
                {
                    "required": ["type", "ref", "snapshot-id"],
                    "properties": {
                        "type": {"const": "assert-ref-snapshot-id"},
                        "snapshot-id": {"type": ["integer", "null"]},
                    },
                },
                {
                    "required": ["type", "current-schema-id"],
                    "properties": {"type": {"const": "assert-current-schema-id"}},
                },
                {"required": ["type", "default-spec-id"], "properties": {"type": {"const": "assert-default-spec-id"}}},
            ]
        },
        "update": {
            "oneOf": [
                {
                    "required": ["action", "snapshot"],
                    "properties": {
                        "action": {"const": "add-snapshot"},
                        "snapshot": {"required": ["snapshot-id", "timestamp-ms", "manifest-list", "summary"]},
                    },
                },
                {
                    "required": ["action", "ref-name", "type", "snapshot-id"],
                    "properties": {"action": {"const": "set-snapshot-ref"}, "type": {"enum": ["branch", "tag"]}},
                },
            ]
        },
    },
}
"""`CommitTransactionRequest` of Iceberg's REST specification, as far as a stream's commits use it."""

ENDPOINTS = ["GET /v1/{prefix}/namespaces/{namespace}/tables/{table}", COMMIT_ENDPOINT]


class Server:
    """Answers instead of the network."""

    def __init__(self) -> None:
        self.endpoints = ENDPOINTS
        self.status = 204
        self.requests: list[PreparedRequest] = []

    def send(self, request: PreparedRequest, **_: Any) -> Response:
        self.requests.append(request)
        if "/v1/config" in str(request.url):
            overrides = {"prefix": "lake-house"}
            return answer(request, 200, {"defaults": {}, "overrides": overrides, "endpoints": self.endpoints})
        if self.status == 204:
            return answer(request, 204, None)
        error = {"message": "somebody was first", "type": "SomeException", "code": self.status}
        return answer(request, self.status, {"error": error})


def answer(request: PreparedRequest, status: int, body: object) -> Response:
    response = Response()
    response.status_code, response.request, response.url = status, request, str(request.url)
    response.raw = io.BytesIO(b"" if body is None else json.dumps(body).encode())
    return response


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server()
    monkeypatch.setattr(HTTPAdapter, "send", lambda _, request, **options: found.send(request, **options))
    return found


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[list[Table]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("demo")
    yield [catalog.create_table(f"demo.{name}", Schema(NestedField(1, "x", LongType()))) for name in "ab"]
    catalog.engine.dispose()


def opened(**properties: str) -> RestCatalog:
    catalog = _open(CatalogConfig("lake", {"type": "rest", "uri": "http://lake.example/api", **properties}))
    assert isinstance(catalog, RestCatalog)
    return catalog


def changes(tables: list[Table]) -> list[TableChange]:
    prepared = [SnapshotWriter(()).prepare(table, summary={}, now_ms=clock.now_ms()) for table in tables]
    return [TableChange(t, p.requirements, p.updates) for t, p in zip(tables, prepared, strict=True)]


def test_an_atomic_commit_request_follows_the_iceberg_rest_specification(server: Server, tables: list[Table]) -> None:
    commit = find_commit_tables(opened(**{"frazil.atomic": "Lakekeeper"}))
    assert commit(changes(tables)) is None
    sent = server.requests[-1]
    assert (sent.method, sent.url) == ("POST", "http://lake.example/api/v1/lake-house/transactions/commit")
    assert sent.headers["Content-type"] == "application/json"
    body = json.loads(sent.body or b"")
    jsonschema.validate(body, REQUEST)
    assert [change["identifier"] for change in body["table-changes"]] == [
        {"namespace": ["demo"], "name": "a"},
        {"namespace": ["demo"], "name": "b"},
    ]


def test_each_attempt_has_an_idempotency_key_of_its_own(server: Server, tables: list[Table]) -> None:
    commit, before_ms = find_commit_tables(opened(**{"frazil.atomic": "polaris"})), time.time_ns() // 1_000_000
    for _ in range(3):
        commit(changes(tables))
    keys = [str(sent.headers["Idempotency-Key"]) for sent in server.requests[-3:]]
    assert len(set(keys)) == 3
    for key in map(uuid.UUID, keys):
        assert (key.version, key.variant) == (7, uuid.RFC_4122)
        assert 0 <= (key.int >> 80) - before_ms < 60_000


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (409, CommitFailedException),
        *((status, CommitStateUnknownException) for status in (500, 502, 504)),
    ],
)
def test_an_error_of_an_atomic_commit_is_classified_like_that_of_a_single_table_commit(
    server: Server, tables: list[Table], status: int, error: type[Exception]
) -> None:
    commit = find_commit_tables(opened(**{"frazil.atomic": "polaris"}))
    server.status, server.requests = status, []
    with pytest.raises(error):
        commit(changes(tables))
    assert len(server.requests) == 1, "a commit is never sent twice from here"


def test_a_server_without_the_endpoints_of_its_declared_catalog_type_is_refused(server: Server) -> None:
    server.endpoints = ENDPOINTS[:1]
    with pytest.raises(SpecError, match=re.escape(f"to be polaris, but its server does not offer `{COMMIT_ENDPOINT}`")):
        find_commit_tables(opened(**{"frazil.atomic": "polaris"}))


def test_a_transactions_endpoint_alone_does_not_prove_atomic_commits(server: Server) -> None:
    with pytest.raises(
        SpecError, match=r"most REST catalogs change several tables one after the other.*frazil\.atomic"
    ):
        find_commit_tables(opened())
    assert server.endpoints == ENDPOINTS


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"uri": "sqlite:////lake/catalog.db"}, None),
        ({"type": "sql", "uri": "postgresql+psycopg2://frazil@db/lake"}, None),
        ({"type": "sql", "uri": "mysql+pymysql://frazil@db/lake"}, "in mysql, where atomic commits to several tables"),
        ({"uri": "https://lake", "frazil.atomic": "polaris"}, None),
        ({"uri": "https://lake", "frazil.atomic": "nessie"}, "server is lakekeeper or polaris"),
        ({"uri": "thrift://lake"}, "of type 'hive', which changes one table at a time"),
        ({"type": "glue"}, "of type 'glue', which changes one table at a time"),
    ],
)
def test_catalog_properties_decide_whether_a_multi_table_commit_is_supported(
    properties: dict[str, str], said: str | None
) -> None:
    reason = atomic_commit_problem("lake", properties)
    assert reason is None if said is None else said in str(reason)
