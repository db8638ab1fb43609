"""Records of every format, valid and broken next to each other: each ends in one table, once, and with its value.

Who wrote a valid record says what it is worth: Python's `json` and `csv`, fastavro and google.protobuf. The laws of
single formats (`test_json_law`, `test_avro_law`, `test_protobuf_law`) go deeper into what one record may be.
"""

from __future__ import annotations

import csv
import io
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pytest
from google.protobuf import message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.protobuf.schema import message_of
from frazil.ingest.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS
from frazil.spec import iceberg
from frazil.spec.formats import dump_portable_format
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from tests.laws.test_avro_law import damage
from tests.unit.ingest.test_stage import RANGE_START, Record, World, rows

Row = dict[str, Any]
RESERVE_BYTES = 64 << 20
"""Memory for the rejections of a chunk, which are objects of Python."""
MAX_GROWTH = {"csv": 4.5}
"""Bytes for each byte of a chunk, where it is not 2: a line of CSV is decoded as an object of JSON next to it."""


@dataclass(frozen=True)
class Kind:
    """A column's type, its values, and how Avro writes it."""

    values: st.SearchStrategy[Any]
    avro: Any


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SCALARS = {
    "boolean": Kind(st.booleans(), "boolean"),
    "int": Kind(st.integers(-(2**31), 2**31 - 1), "int"),
    "long": Kind(st.integers(-(2**63), 2**63 - 1), "long"),
    "double": Kind(st.floats(allow_nan=False, allow_infinity=False), "double"),
    "string": Kind(TEXTS, "string"),
    "date": Kind(st.dates(date(1, 1, 2), date(9999, 12, 30)), {"type": "int", "logicalType": "date"}),
    "decimal(12, 3)": Kind(
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    ),
}
NESTED = {
    "list<int>": Kind(st.lists(st.none() | st.integers(0, 9), max_size=3), {"type": "array", "items": ["null", "int"]}),
    "map<string, long>": Kind(
        st.dictionaries(TEXTS, st.integers(0, 2**40), max_size=3),
        {"type": "map", "values": "long"},
    ),
    "struct<a: string, b: double>": Kind(
        st.fixed_dictionaries({"a": st.none() | TEXTS, "b": st.none() | st.just(0.5)}),
        {
            "type": "record",
            "name": "",
            "fields": [{"name": "a", "type": ["null", "string"]}, {"name": "b", "type": ["null", "double"]}],
        },
    ),
}
KINDS = SCALARS | NESTED
PROTOBUF_VALUES = {
    "list<int>": st.lists(st.integers(0, 9), max_size=3),
    "map<string, long>": st.dictionaries(TEXTS, st.integers(0, 2**40), max_size=3),
}
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(lambda d: d.replace(tzinfo=UTC))  # noqa: DTZ001


def of_json(value: Any) -> Any:
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
    return value


def as_landed(value: Any) -> Any:
    """The value as Arrow gives it: a map's entries in a list."""
    return [*value.items()] if isinstance(value, dict) and {"a", "b"} != {*value} else value


def in_order(value: Any) -> Any:
    """A map's entries in the order of their keys: Protobuf keeps no order."""
    return sorted(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


def as_json(row: Row, frame: bytes = b"") -> bytes:
    return frame + json.dumps({name: of_json(value) for name, value in row.items()}, ensure_ascii=False).encode()


def as_csv(row: Row) -> bytes:
    """Fields in the order of the columns; null is an empty field."""
    out = io.StringIO()
    values = [row[name] for name in ("ts", *sorted(row.keys() - {"ts"}))]
    cells = [f"{value}".lower() if isinstance(value, bool) else of_json(value) for value in values]
    csv.writer(out).writerow(["" if cell is None else f"{cell}" for cell in cells])
    return out.getvalue().encode()


def avro_schema(kinds: dict[str, str]) -> dict[str, Any]:
    def named(name: str, of: Any) -> Any:
        return {**of, "name": f"R_{name}"} if isinstance(of, dict) and of["type"] == "record" else of

    fields = [{"name": name, "type": ["null", named(name, KINDS[kind].avro)]} for name, kind in kinds.items()]
    at = {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    return {"type": "record", "name": "R", "fields": [at, *fields]}


def as_avro(row: Row, parsed: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, row)
    return out.getvalue()


PROTOBUF = {
    "boolean": "optional bool",
    "int": "optional int32",
    "long": "optional int64",
    "double": "optional double",
    "string": "optional string",
    "list<int>": "repeated int32",
    "map<string, long>": "map<string, int64>",
    "struct<a: string, b: double>": "optional S",
}
"""How a column's field is declared. Protobuf has no null within a list, and neither list nor map is null."""
CONFLUENT = b"\0\0\0\0\7\0"
"""A zero byte, a schema id, and the short form of the first message's indexes."""


def protobuf_schema(kinds: dict[str, str]) -> str:
    fields = " ".join(f"{PROTOBUF[kind]} {name} = {i};" for i, (name, kind) in enumerate(kinds.items(), 2))
    return (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        f"message R {{ google.protobuf.Timestamp ts = 1; {fields} }} "
        "message S { optional string a = 1; optional double b = 2; }"
    )


def as_protobuf(row: Row, made: Any, frame: bytes) -> bytes:
    message = made()
    for name, value in row.items():
        if isinstance(value, datetime):
            message.ts.FromDatetime(value)
        elif isinstance(value, dict) and {*value} == {"a", "b"}:
            getattr(message, name).SetInParent()
            for part, inner in value.items():
                if inner is not None:
                    setattr(getattr(message, name), part, inner)
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)
    return frame + bytes(message.SerializeToString())


@dataclass(frozen=True)
class Topic:
    """A declaration, what rows it has, and what writes them."""

    spec: StreamSpec
    some: list[Row]
    write: Callable[[Row], bytes]


def declared(form: Any, kinds: dict[str, str]) -> StreamSpec:
    return validate_stream(
        {
            "name": "s",
            "source": {"bootstrap-servers": "x:1", "topics": "t", "format": form},
            "table": "a.b",
            "schema": {"ts": "timestamptz not null", **kinds},
            "event-time": "ts",
            "complete": "none",
        },
        Path("s.yaml"),
    )


@st.composite
def topics(draw: st.DrawFn, form: str) -> Topic:
    allowed = SCALARS if form == "csv" else {kind: KINDS[kind] for kind in PROTOBUF} if "proto" in form else KINDS
    chosen = draw(st.lists(st.sampled_from(sorted(allowed)), min_size=1, max_size=5))
    kinds = {f"c{i}": kind for i, kind in enumerate(chosen)}
    columns = {name: st.none() | KINDS[kind].values for name, kind in kinds.items()}
    if "proto" in form:
        columns |= {name: PROTOBUF_VALUES[kind] for name, kind in kinds.items() if kind in PROTOBUF_VALUES}
    some = draw(st.lists(st.fixed_dictionaries({"ts": TIMES, **columns}), min_size=1, max_size=8))
    if form == "csv":  # which writes null and an empty text alike
        some = [{name: None if value == "" else value for name, value in row.items()} for row in some]
        return Topic(declared("csv", kinds), some, as_csv)
    if form == "avro":
        schema = avro_schema(kinds)
        parsed = fastavro.parse_schema(schema)
        declaration = {"type": "avro", "schema-text": json.dumps(schema)}
        return Topic(declared(declaration, kinds), some, lambda row: as_avro(row, parsed))
    if "proto" in form:
        text = protobuf_schema(kinds)
        made = message_factory.GetMessageClass(message_of(text, (), "R"))
        framing, frame = ("confluent", CONFLUENT) if form == "framed protobuf" else ("none", b"")
        declaration = {"type": "protobuf", "schema-text": text, "message": "R", "framing": framing}
        return Topic(declared(declaration, kinds), some, lambda row: as_protobuf(row, made, frame))
    if form == "framed":
        declaration = {"type": "json", "framing": "confluent"}
        return Topic(declared(declaration, kinds), some, lambda row: as_json(row, b"\0\0\0\0\7"))
    return Topic(declared("json", kinds), some, as_json)


def check(topic: Topic, damages: list[Callable[[bytes], bytes]], strays: list[bytes]) -> None:
    """Stage valid records, damaged ones and bytes of any kind in turn."""
    valid = [topic.write(row) for row in topic.some]
    broken = [*(one(valid[i % len(valid)]) for i, one in enumerate(damages)), *strays]
    values = [*valid, *broken]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        world = World(Path(folder), topic.spec, monkeypatch, chunk_records=3)
        context = replace(world.context(), format=dump_portable_format(topic.spec.value_format))
        result = world.stage([Record(value) for value in values], context)
        main, dead = rows(result, "main"), rows(result, "dead-letters")
    assert sorted([*main, *dead]) == [*range(RANGE_START, RANGE_START + len(values))]
    assert [(p.records, p.rejected) for p in result.progress] == [(len(main), len(dead))]
    for i, row in enumerate(topic.some):
        assert RANGE_START + i in main, dead[RANGE_START + i]
        landed = main[RANGE_START + i]
        assert {name: in_order(landed[name]) for name in row} == {
            name: in_order(as_landed(value)) for name, value in row.items()
        }
    for offset, dead_letter in dead.items():
        assert dead_letter["value"] == values[offset - RANGE_START]
        assert dead_letter["error_class"]
        assert dead_letter["error"]


FORMS = ("json", "framed", "csv", "avro", "protobuf", "framed protobuf")
STRAYS = st.lists(st.binary(max_size=30), max_size=4)
DAMAGES = st.lists(damage(), max_size=5)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("form", FORMS)
@given(st.data(), DAMAGES, STRAYS)
def test_each_record_lands_once_with_its_value_whatever_its_neighbours_break(
    form: str, data: st.DataObject, damages: list[Callable[[bytes], bytes]], strays: list[bytes]
) -> None:
    check(data.draw(topics(form)), damages, strays)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMS)
@given(st.data(), DAMAGES, STRAYS)
@settings(max_examples=12_500)
def test_each_of_many_records_lands_once_with_its_value(
    form: str, data: st.DataObject, damages: list[Callable[[bytes], bytes]], strays: list[bytes]
) -> None:
    check(data.draw(topics(form)), damages, strays)


LIES = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
"""The longest length, of Avro and of Protobuf. Bytes follow: a chunk of few would measure the reserve alone."""
NASTY = {
    "one huge text": [b'{"c0": "' + b"a" * MAX_CHUNK_BYTES],
    "one huge record": [b'{"ts": "2024-01-01T00:00:00Z", "c0": "' + b"a" * MAX_CHUNK_BYTES + b'"}'],
    "deep arrays": [b"[" * 10_000] * (MAX_CHUNK_BYTES // 10_000),
    "deep objects": [b'{"c0":' * 10_000] * (MAX_CHUNK_BYTES // 60_000),
    "escapes": [b'{"c0": "' + b"\\ud800" * 1000 + b'"}'] * (MAX_CHUNK_BYTES // 6000),
    "zeros": [bytes(1000)] * (MAX_CHUNK_BYTES // 1000),
    "lengths that lie": [b"\0\2" + LIES + bytes(600)] * MAX_CHUNK_RECORDS,
    "Protobuf's lengths that lie": [b"\x12" + LIES + bytes(600)] * MAX_CHUNK_RECORDS,
    "groups": [b"\x0b" * 1000] * (MAX_CHUNK_BYTES // 1000),
    "quotes": [b'"' * 999] * (MAX_CHUNK_BYTES // 999),
    "commas": [b"," * 1000] * (MAX_CHUNK_BYTES // 1000),
    "empty": [b""] * MAX_CHUNK_RECORDS,
}


def decoded_alone(form: str, what: str) -> None:
    """Decode a chunk in a separate process, and print how much memory grew beyond the reserve, in its own size."""
    kinds = {"c0": "string", "c1": "long"}
    of: Any = {"framed": {"type": "json", "framing": "confluent"}, "json": "json", "csv": "csv"}.get(form)
    if "proto" in form:
        framing = "confluent" if form == "framed protobuf" else "none"
        of = {"type": "protobuf", "schema-text": protobuf_schema(kinds), "message": "R", "framing": framing}
    of = of or {"type": "avro", "schema-text": json.dumps(avro_schema(kinds))}
    spec = declared(of, kinds)
    schema = record_schema(iceberg.table_schema(spec), has_coordinates=True)
    decode = create_decoder(dump_portable_format(spec.value_format), schema, {})
    decode(RecordChunk.of_values([b"{}", b"x", b'"']))  # what is imported and compiled is not the chunk's
    chunk = RecordChunk.of_values(NASTY[what][:MAX_CHUNK_RECORDS])
    size = sum(map(len, NASTY[what][:MAX_CHUNK_RECORDS]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    found = decode(chunk)
    if len(found.record_indexes) + len(found.rejections) != len(chunk):
        raise AssertionError("a record is neither row nor rejection")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    print(max(0, grown - RESERVE_BYTES) / max(size, 1))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("what", NASTY)
@pytest.mark.parametrize("form", FORMS)
def test_no_bytes_cost_more_than_twice_their_own_memory(form: str, what: str) -> None:
    program = f"from tests.laws.test_formats_law import decoded_alone; decoded_alone({form!r}, {what!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= MAX_GROWTH.get(form, 2)
