"""The declaration proposed for a topic whose schemas are in a registry."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from click.testing import CliRunner

from frazil.cli.main import frazil
from frazil.errors import RegistryUnavailable, SpecError
from frazil.infer.proposal import StreamNames, propose_declaration
from frazil.infer.registered_schemas import RegisteredSchemas, derive_json_columns, fetch_registered_schemas
from frazil.infer.sample import Sample, SampledRecord
from frazil.registry.client import SchemaText, shared_registry
from frazil.spec import yaml_file
from frazil.spec.formats import AvroFormat, JsonFormat, Registry
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from tests.made_registry import MadeRegistry, made_registry

AT_MS = 1_790_000_000_000
STOP = {"type": "record", "name": "Stop", "namespace": "city", "fields": [{"name": "street", "type": "string"}]}
RIDE = {
    "type": "record",
    "name": "Ride",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "ended_ms", "type": "long"},
        {"name": "driver", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["DAY", "NIGHT"]}},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "stops", "type": {"type": "array", "items": "city.Stop"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "either", "type": ["null", "int", "string"]},
    ],
}
NEWER = {**RIDE, "fields": [*RIDE["fields"][:3], {"name": "tip", "type": "float"}]}
REFERENCE = {"name": "city.Stop", "subject": "stop", "version": 1}
RECORD: dict[str, Any] = {
    "at": AT_MS,
    "ended_ms": AT_MS + 1,
    "driver": "Ann",
    "kind": "DAY",
    "fare": b"\x01",
    "stops": [{"street": "A"}],
    "tags": {"a": 1},
    "either": None,
    "tip": 1.5,
}


@pytest.fixture
def server() -> Iterator[MadeRegistry]:
    with made_registry() as made:
        made.answers = {
            "/schemas/ids/1": [(200, {"schema": json.dumps(RIDE), "references": [REFERENCE]})],
            "/schemas/ids/2": [(200, {"schema": json.dumps(NEWER)})],
            "/subjects/stop/versions/1?deleted=true": [(200, {"schema": json.dumps(STOP)})],
            "/subjects/t-value/versions/latest": [(200, {"schema": json.dumps(NEWER), "id": 2, "version": 2})],
        }
        yield made


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + content


def avro(schema: Any) -> bytes:
    out = io.BytesIO()
    named: dict[str, Any] = {}
    fastavro.parse_schema(STOP, named_schemas=named)
    parsed = fastavro.parse_schema(schema, named_schemas=named, _force=True)
    fastavro.schemaless_writer(out, parsed, {**RECORD, "kind": "DAY"})
    return out.getvalue()


def sample(*values: bytes | None) -> Sample:
    return Sample(
        "t", tuple(SampledRecord(v, timestamp_ms=AT_MS + i * 1000) for i, v in enumerate(values)), len(values)
    )


def proposed(server: MadeRegistry, of: Sample) -> tuple[str, StreamSpec]:
    declared = Registry(url=server.url)
    text = propose_declaration(
        of,
        StreamNames("t", "demo.t", "127.0.0.1:9092"),
        fetch_registered_schemas(of, declared, shared_registry(declared, {})),
    )
    return text, validate_stream(yaml.safe_load(text), Path("t.yaml"))


def types(spec: StreamSpec) -> dict[str, str]:
    return {c.name: f"{c.type}{' not null' if c.required else ''}" for c in spec.columns}


def test_avro_columns_are_those_of_the_newest_version_and_of_the_ids_that_were_seen(server: MadeRegistry) -> None:
    text, spec = proposed(server, sample(*[framed(1, avro(RIDE))] * 9, framed(2, avro(NEWER)), framed(9, b"x")))
    assert isinstance(spec.source.format, AvroFormat)
    assert types(spec) == {
        "at": "timestamptz not null",
        "ended_ms": "timestamptz not null",
        "driver": "string",
        "tip": "float",
        "kind": "string",
        "fare": "decimal(9, 2)",
        "stops": "list<struct<street: string>>",
        "tags": "map<string, int>",
    }
    assert (spec.units, spec.event_time.column) == ({"ended_ms": "ms"}, "at")
    assert "# either: no column type can store all values that the schemas allow" in text
    assert "tip: float    # in 1 of 2 schemas" in text
    assert "columns come from 2 schemas (AVRO) in the registry: the subject t-value, and" in text
    assert "The registry does not have these schema ids of the sample: 9" in text
    assert "1 of these 11 would be dead letters: UnknownSchema 1" in text


def test_the_columns_of_an_empty_topic_are_inferred_from_its_newest_schema_version(server: MadeRegistry) -> None:
    _, spec = proposed(server, sample())
    assert types(spec) == {
        "at": "timestamptz not null",
        "ended_ms": "long not null",
        "driver": "string",
        "tip": "float not null",
    }


def test_the_envelope_of_captured_changes_is_named_first(server: MadeRegistry) -> None:
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
    parts = {"before": ["null", row], "after": ["null", "Row"], "source": source, "op": "string"}
    envelope = {"type": "record", "name": "E", "fields": [{"name": n, "type": kind} for n, kind in parts.items()]}
    latest = {"schema": json.dumps(envelope), "id": 2, "version": 2}
    server.answers["/subjects/t-value/versions/latest"] = [(200, latest)]
    text, _ = proposed(server, sample())
    assert "Debezium's events" in text.splitlines()[2]


def test_an_unavailable_registry_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("frazil.infer.sample.read_sample", lambda *_, **__: sample(framed(1, avro(RIDE))))
    (tmp_path / "_defaults.yaml").write_text(
        "source: {bootstrap-servers: '127.0.0.1:1', format: {registry: {url: 'http://127.0.0.1:1', timeout: 1s}}}"
    )
    away = CliRunner().invoke(frazil, ["infer", "t", "--streams", str(tmp_path)]).exception
    assert isinstance(away, RegistryUnavailable)
    assert str(away).startswith("the schema registry http://127.0.0.1:1 does not respond: ")
    assert str(away).endswith(
        ". Nothing was inferred: fix this error, or give another registry with --registry; see source.format.registry"
    )


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("x", "source: is not a mapping"),
        ("{properties: [x]}", "source.properties: is not a mapping"),
        ("{format: {registry: 'http://x'}}", "source.format.registry: is not a mapping"),
        ("{format: {registry: {password: 1, url: 2}}}", "source.format.registry.url: is not text; put it in quotes"),
        ("{format: {registry: {uri: x}}}", "source.format.registry.uri: is an unknown key"),
    ],
)
def test_an_error_in_shared_defaults_is_reported_before_any_connection(
    tmp_path: Path, source: str, answer: str
) -> None:
    (tmp_path / "_defaults.yaml").write_text(f"source: {source}\n")
    requested = ["infer", "t", "--streams", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1"]
    error = CliRunner().invoke(frazil, requested).exception
    assert isinstance(error, SpecError)
    assert f"{tmp_path}/_defaults.yaml: {answer}" in str(error).splitlines()


def test_topics_without_a_registered_schema_are_inferred_from_the_sample(server: MadeRegistry) -> None:
    server.answers = {}
    _, spec = proposed(server, sample(*[b'{"a": 1}'] * 100))
    assert types(spec) == {"a": "long not null"}
    with pytest.raises(SpecError, match=r"schema id \(7\).*the registry with --registry"):
        proposed(server, sample(*[framed(7, b"\x02\x04")] * 10))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"schema": '"string"'}, "the registry's schema is string, but must be a record"),
        ({"schema": "{"}, "is not a valid Avro schema"),
        ({"schema": "[", "schemaType": "JSON"}, "several types for t: AVRO, JSON"),
        ({"schema": "", "schemaType": "PROTOBUF"}, "several types for t: AVRO, PROTOBUF"),
    ],
)
def test_schemas_that_make_no_columns_are_named(server: MadeRegistry, schema: Any, said: str) -> None:
    server.answers["/subjects/t-value/versions/latest"] = [(200, schema)]
    with pytest.raises(SpecError, match=said):
        proposed(server, sample(*[framed(1, avro(RIDE))] * 9))


ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "place": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}}
    },
    "type": "object",
    "required": ["id", "at", "ts_ms", "note"],
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "ts_ms": {"type": "integer"},
        "said": {"type": "string"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "price": {"type": ["number", "null"]},
        "place": {"$ref": "#/definitions/place"},
        "lines": {"type": "array", "items": {"$ref": "line.json"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "state": {"enum": ["new", "paid"]},
        "any": {},
        "mixed": {"type": ["string", "integer"]},
        "self": {"$ref": "#"},
    },
}
LINE = {"type": "object", "properties": {"sku": {"type": "string"}, "day": {"type": "string", "format": "date"}}}


def test_json_columns_come_from_the_registered_schema_and_the_sample_fills_its_gaps(server: MadeRegistry) -> None:
    reference = {"name": "line.json", "subject": "line", "version": 3}
    document = {"schema": json.dumps(ORDER), "schemaType": "JSON", "references": [reference]}
    server.answers = {
        "/schemas/ids/1": [(200, document)],
        "/subjects/t-value/versions/latest": [(200, document)],
        "/subjects/line/versions/3?deleted=true": [(200, {"schema": json.dumps(LINE), "schemaType": "JSON"})],
    }
    value = {
        "id": 1,
        "at": "2026-01-01T00:00:00Z",
        "ts_ms": AT_MS,
        "said": "2026-01-01",
        "note": "x",
        "any": [1],
        "extra": 1.5,
    }
    text, spec = proposed(server, sample(*[framed(1, json.dumps(value).encode())] * 100))
    assert isinstance(spec.source.format, JsonFormat)
    assert (spec.source.format.framing, spec.source.format.registry) == ("confluent", Registry(url=server.url))
    assert types(spec) == {
        "id": "long not null",
        "at": "timestamptz not null",
        "ts_ms": "timestamptz not null",
        "said": "date",
        "note": "string",
        "price": "double",
        "place": "struct<city: string, zip: long>",
        "lines": "list<struct<sku: string, day: date>>",
        "counts": "map<string, long>",
        "state": "string",
        "any": "list<long>",
        "extra": "double",
        "rest": "string",
    }
    assert spec.units == {"ts_ms": "ms", "rest": "rest"}
    assert "said: date    # string in the schema, but each sampled value is a date" in text
    assert "extra: double    # not in the schema" in text
    assert "# self: no column type can store all values that the schemas allow" in text
    assert "# mixed: no column type can store all values that the schemas allow" in text
    assert "would be dead letters" not in text


@pytest.mark.parametrize(
    "schema", [True, [], {"properties": 5}, {"$ref": "#/nowhere"}, {"$ref": "#"}, {"properties": {"a": {"allOf": [5]}}}]
)
def test_a_json_schema_of_any_shape_is_read(schema: Any) -> None:
    assert all(
        column.type in {None, "string"} for column in derive_json_columns([SchemaText("JSON", json.dumps(schema))], [])
    )


def test_names_that_engines_take_for_one_become_one_column() -> None:
    inner = {"type": "object", "properties": {"a\u017f": {"type": "string"}, "AS": {"type": "string"}}}
    properties = {"a-b": {"type": "string"}, "A-B": {"type": "string"}, "s": inner}
    schema = json.dumps({"type": "object", "properties": properties})
    columns = derive_json_columns([SchemaText("JSON", schema)], [])
    assert [column.type for column in columns] == ["string", None, "struct<a\u017f: string>"]
    assert columns[1].remark.startswith("has the same name as a-b, because")


@pytest.mark.parametrize(
    "kind",
    [
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "string"}}}]},
        {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
    ],
)
def test_values_of_a_union_and_a_tuple_type_are_kept_as_json(server: MadeRegistry, kind: Any) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "x": kind}}
    document = {"schema": json.dumps(schema), "schemaType": "JSON"}
    server.answers = {
        "/schemas/ids/1": [(200, document)],
        "/subjects/t-value/versions/latest": [(200, document)],
    }
    values = [{"id": n, "x": x} for n, x in enumerate(["a", ["b", 5], ["c", 6], "d"])]
    text, spec = proposed(server, sample(*(framed(1, json.dumps(value).encode()) for value in values)))
    assert types(spec) == {"id": "long", "x": "string"}
    assert "x: {type: string, as: json}    # values of several types" in text
    assert "would be dead letters" not in text


def test_infer_refuses_protobuf() -> None:
    written = RegisteredSchemas(Registry(url="http://r"), (SchemaText("PROTOBUF", ""),), is_framed=True)
    with pytest.raises(SpecError, match="are of type PROTOBUF, which infer does not support"):
        propose_declaration(sample(framed(1, b"\0x")), StreamNames("t", "demo.t"), written)


def test_an_empty_variable_is_treated_as_unset_and_the_defaults_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested, read = ["infer", "t", "--streams", str(tmp_path)], list[Path]()
    (tmp_path / "_defaults.yaml").write_text("source: {properties: {debug: all}}\n")
    monkeypatch.setenv("FRAZIL_KAFKA", "")
    monkeypatch.setattr(yaml_file, "_read_text", lambda path: read.append(path) or path.read_text())
    error = CliRunner().invoke(frazil, requested).exception
    assert str(error).startswith("no brokers: give them with --bootstrap-servers, in the variable FRAZIL_KAFKA")
    assert read == [tmp_path / "_defaults.yaml"]


@pytest.mark.parametrize("where", ["--bootstrap-servers", "FRAZIL_KAFKA", "_defaults.yaml"])
def test_credentials_inside_the_broker_list_are_refused_before_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    servers = "SASL_SSL://user:hunter2@127.0.0.1:1"
    requested = ["infer", "t", "--streams", str(tmp_path)]
    if where == "--bootstrap-servers":
        requested += [where, servers]
    elif where == "FRAZIL_KAFKA":
        monkeypatch.setenv(where, servers)
    else:
        (tmp_path / "_defaults.yaml").write_text(f"source: {{bootstrap-servers: '{servers}'}}\n")
    said = str(CliRunner().invoke(frazil, requested).exception)
    assert where in said
    assert ": has '@', which suggests credentials next to a host" in said
    assert "hunter2" not in said
