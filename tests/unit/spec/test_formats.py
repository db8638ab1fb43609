"""Declarations of a record's value, key, headers and units, and the error message for each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import SpecError
from frazil.spec.formats import (
    AvroFormat,
    CsvFormat,
    JsonFormat,
    dump_format,
    dump_portable_format,
    parse_format,
    read_schema_text,
)
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import find_environment_names

Declare = Callable[..., Path]
TIMED = {"text": "string", "raw": "binary", "at": "timestamptz"}


def source(**changes: Any) -> dict[str, Any]:
    return {"bootstrap-servers": "a:1", "topics": "x", **changes}


def avro(**registry: Any) -> dict[str, Any]:
    return {"source": source(format={"type": "avro", "registry": {"url": "http://r", **registry}})}


def test_a_format_is_a_name_or_a_mapping(declare: Declare) -> None:
    assert load_stream(declare()).source.format == JsonFormat()
    assert load_stream(declare(source=source(format="json"))).source.format == JsonFormat()
    assert load_stream(declare(source=source(format={"type": "csv", "null": "NULL"}))).source.format == CsvFormat(
        null="NULL"
    )


def test_a_schema_file_is_found_relative_to_its_declaration(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    declared = declare(source=source(format={"type": "avro", "schema-file": "ride.avsc"}))
    (declared.parent / "ride.avsc").write_text('"string"')
    found = load_stream(declared).source.format
    assert isinstance(found, AvroFormat)
    assert read_schema_text(found) == '"string"'
    assert dump_portable_format(found) == {"type": "avro", "schema-text": '"string"'}
    assert dump_format(found) == {"type": "avro", "schema-file": "ride.avsc"}  # the same on every host
    absolute = AvroFormat(schema_file=str(declared.parent / "ride.avsc"))
    assert read_schema_text(absolute) == '"string"'


def test_a_declared_format_survives_a_json_round_trip(declare: Declare) -> None:
    spec = load_stream(declare(**avro(timeout="3s", token="${env:TOKEN}")))
    assert StreamSpec.model_validate_json(spec.model_dump_json()) == spec
    assert find_environment_names(spec) == {"TOKEN"}


def test_the_format_fingerprint_changes_only_with_format_declarations(declare: Declare) -> None:
    def fingerprint(schema: dict[str, Any] = TIMED, **changes: Any) -> str:
        return load_stream(declare(schema=schema, event_time="at", source=source(**changes))).fingerprint()

    first = fingerprint()
    assert fingerprint(format="json", headers=[]) == first
    assert fingerprint(format={"type": "json", "framing": "none", "lines": False}) == first
    others = {
        fingerprint(format={"type": "json", "framing": "confluent"}),
        fingerprint(format={"type": "json", "lines": True}),
        fingerprint(key={"column": "text"}),
        fingerprint(headers=[{"name": "x", "column": "text"}]),
        fingerprint({**TIMED, "at": {"type": "timestamptz", "unit": "ms"}}),
    }
    assert len(others | {first}) == 6


def test_a_circuit_breaker_is_declared_as_a_percentage_or_off(declare: Declare) -> None:
    def of(circuit: Any) -> StreamSpec:
        return load_stream(declare(dead_letters={"circuit": circuit}))

    plain = load_stream(declare())
    assert (
        plain.dead_letters.circuit
        == of({}).dead_letters.circuit
        == of({"share": "50%", "at-least": 1000}).dead_letters.circuit
    )
    assert of({"share": 50}).fingerprint() == plain.fingerprint() != of({"share": "5 %"}).fingerprint()
    assert of("off").dead_letters.circuit == "off"
    assert StreamSpec.model_validate_json(of("off").model_dump_json()).dead_letters.circuit == "off"
    for wrong in ({"share": "100%"}, {"share": "half"}, {"share": True}, {"share": -1}, {"at-least": 0}, "on"):
        with pytest.raises(SpecError, match="circuit"):
            of(wrong)


def test_units_are_taken_from_columns_and_from_the_event_time(declare: Declare) -> None:
    schema = {
        "a": {"type": "timestamptz", "unit": "ns"},
        "b": {"type": "timestamp", "unit": "iso"},
        "at": "timestamptz",
    }
    spec = load_stream(declare(schema=schema, event_time={"column": "at", "unit": "ms"}))
    assert spec.units == {"a": "ns", "at": "ms"}


def test_the_event_time_may_be_the_kafka_timestamp(declare: Declare) -> None:
    spec = load_stream(declare(event_time="kafka_timestamp", partition_by="day(kafka_timestamp)"))
    assert spec.window == "day"
    with pytest.raises(SpecError, match="event-time: 'kafka_timestamp' is not a column"):
        load_stream(declare(event_time="kafka_timestamp", coordinates=False))


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("no type", {"source": source(format={"delimiter": ";"})}, "source.format: has no type"),
    (
        "type",
        {"source": source(format={"type": "xml"})},
        "source.format.type: 'xml' is not allowed; write json, string",
    ),
    (
        "a format's key",
        {"source": source(format={"type": "csv", "delimitr": ";"})},
        "source.format.delimitr: is an unknown key; did you mean delimiter?",
    ),
    (
        "a registry's key",
        avro(user="x"),
        "source.format.registry.user: is an unknown key; did you mean username?",
    ),
    (
        "delimiter",
        {"source": source(format={"type": "csv", "delimiter": "::"})},
        "'::' is not allowed; write one ASCII character",
    ),
    ("quote", {"source": source(format={"type": "csv", "quote": ","})}, "the same character as delimiter and as quote"),
    (
        "no schema",
        {"source": source(format="avro")},
        "source.format: needs exactly one of registry, schema-file",
    ),
    ("password", avro(username="x", password="hunter2"), "source.format.registry.password: is a secret"),
    ("token", avro(token="hunter2"), "source.format.registry.token: is a secret"),
    ("reference", avro(url="http://${NAME}"), "source.format.registry.url: has ${NAME}; write ${env:NAME}"),
    ("two ways", avro(username="x", password="${env:P}", token="${env:T}"), "both a username and a token"),
    (
        "fields",
        {"source": source(format={"type": "csv", "columns": ["delay", "departed"]})},
        "source.format.columns: does not name the column carrier",
    ),
    (
        "nested",
        {"source": source(format="csv"), "schema": {"at": "timestamptz", "l": "list<int>"}, "event_time": "at"},
        "schema.l: 'list<int>' cannot be read from one field of a line",
    ),
    ("one column", {"source": source(format="string")}, "'string' fills exactly one column, but these"),
    (
        "text",
        {"source": source(format="string"), "schema": {"v": "binary"}, "event_time": "kafka_timestamp"},
        "schema.v: is of type binary, but source.format: string needs a column of type string",
    ),
    ("key", {"source": source(key={"column": "carier"})}, "source.key.column: 'carier' is not a column"),
    (
        "key's type",
        {"source": source(key={"column": "carrier", "format": "bytes"})},
        "source.key.column: 'carrier' is a column of type string; make it binary",
    ),
    (
        "two fillers",
        {"source": source(key={"column": "carrier"}, headers=[{"name": "x", "column": "carrier"}])},
        "source.headers.0.column: 'carrier' is already filled by source.key.column",
    ),
    (
        "unit",
        {"schema": {"a": {"type": "long", "unit": "ms"}, "departed": "timestamptz"}},
        "schema.a.unit: 'ms' is the unit of a time, but the column is long",
    ),
    (
        "units",
        {
            "schema": {"departed": {"type": "timestamptz", "unit": "ms"}},
            "event_time": {"column": "departed", "unit": "s"},
        },
        "event-time.unit: 's' differs from the column's own unit, ms",
    ),
]


@pytest.mark.parametrize(("changes", "answer"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_an_error_names_key_value_and_remedy(declare: Declare, changes: dict[str, Any], answer: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_stream(declare(**changes))
    assert answer in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_the_registrys_certificate_authority_is_found_next_to_the_declaration(declare: Declare) -> None:
    registry = {"url": "https://registry", "ca-file": "ca/registry.pem"}
    declared = declare(source=source(format={"type": "avro", "registry": registry}))
    found = load_stream(declared).value_format
    assert isinstance(found, AvroFormat)
    assert found.registry is not None
    assert found.registry.ca_file == str(declared.parent / "ca/registry.pem")
    assert parse_format(dump_format(found)) == found


def test_json_with_a_registry_is_framed_and_executors_need_no_registry(declare: Declare) -> None:
    registry = {"url": "https://registry", "token": "${env:TOKEN}"}
    found = load_stream(declare(source=source(format={"type": "json", "registry": registry}))).value_format
    assert isinstance(found, JsonFormat)
    assert found.framing == "confluent"
    assert parse_format(dump_format(found)) == found
    assert dump_portable_format(found) == {"type": "json", "framing": "confluent"}
    bare = {"type": "json", "framing": "none", "registry": registry}
    unframed = load_stream(declare(source=source(format=bare))).value_format
    assert unframed == found.model_copy(update={"framing": "none"})
    assert parse_format(dump_format(unframed)) == unframed
