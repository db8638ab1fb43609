"""No record exceeds the decoding time in `docs/reference/limits.md`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.ingest.chunk import RecordChunk, pack_headers, unpack_headers
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder
from frazil.ingest.schema_drift import MAX_NEW_FIELDS, MAX_OBJECT_FIELDS, SchemaDrift, find_new_fields, join_drift
from frazil.spec import iceberg
from frazil.spec.formats import dump_portable_format
from frazil.spec.load import validate_stream
from frazil.stream.evolve import requested_changes
from frazil.table.evolution import plan_growth

MAX_SECONDS = 4
"""CPU seconds for half a megabyte or less. A step that is quadratic in it takes minutes."""
COLUMNS = {
    "i": "long",
    "s": "string",
    "d": "decimal(10, 2)",
    "t": "timestamptz",
    "u": "uuid",
    "f": "double",
    "at": "date",
    "b": "binary",
    "l": "list<long>",
    "m": "map<string, long>",
    "st": "struct<a: long>",
}
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "i", "type": "long"},
        {"name": "nulls", "type": {"type": "array", "items": "null"}},
        {"name": "names", "type": {"type": "map", "values": "null"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}
PROTOBUF = 'syntax = "proto3"; message R { int64 i = 1; string s = 2; map<string, int64> m = 4; R r = 5; }'


def an_object(fields: int, of: str = "k") -> bytes:
    return json.dumps({f"{of}{i}": 1 for i in range(fields)}).encode()


def zigzag(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 127:
        number, out = number >> 7, out + bytes([number & 127 | 128])
    return out + bytes([number])


def messages(depth: int) -> bytes:
    inside = b""
    for _ in range(depth):
        length, rest = b"", len(inside)
        while rest > 127:
            rest, length = rest >> 7, length + bytes([rest & 127 | 128])
        inside = b"\x2a" + length + bytes([rest]) + inside
    return inside


JSON: dict[str, Callable[[int], list[bytes]]] = {
    "new fields": lambda n: [an_object(n // 12)],
    "new fields of a new object": lambda n: [b'{"x": %s}' % an_object(n // 12)],
    "new fields of a known object": lambda n: [b'{"st": %s}' % an_object(n // 12)],
    "other new fields in each record": lambda n: [an_object(100, f"k{i}_") for i in range(n // 1400)],
    "other fields of a new object in each record": lambda n: [
        b'{"x": %s}' % an_object(100, f"k{i}_") for i in range(n // 1400)
    ],
    "a list of objects with other fields": lambda n: [
        b'{"x": [%s]}' % b",".join(b'{"k%d":1}' % i for i in range(n // 12))
    ],
    "names in another case": lambda n: [
        b"{%s}" % b",".join(b'"%s":1' % f"{i:016b}".translate({48: "a", 49: "A"}).encode() for i in range(n // 21))
    ],
    "names with dots": lambda n: [an_object(n // 14, "a.")],
    "a long name": lambda n: [b'{"%s":1}' % (b"k" * n)],
    "one name again and again": lambda n: [b"{%s}" % b",".join([b'"x":1'] * (n // 6))],
    "entries of a map": lambda n: [b'{"m": %s}' % an_object(n // 12)],
    "nested objects": lambda n: [b'{"x":' * (n // 6) + b"1" + b"}" * (n // 6)],
    "nested lists": lambda n: [b'{"x":' + b"[" * (n // 2) + b"]" * (n // 2) + b"}"],
    "digits": lambda n: [b'{"%s":%s}' % (name, b"9" * n) for name in (b"i", b"d", b"t", b"f", b"x")],
    "digits in a text": lambda n: [b'{"%s":"%s"}' % (name, b"9" * n) for name in (b"i", b"d", b"t", b"f", b"at")],
    "digits of a fraction": lambda n: [b'{"%s":0.%s1}' % (name, b"0" * n) for name in (b"i", b"d", b"t", b"f")],
    "exponents": lambda n: [
        b'{"%s":%s}' % (name, text)
        for name in (b"i", b"d", b"t", b"f", b"x")
        for text in (b"1e999999999", b"1e-999999999", b'"1e999999999"', b"0e999999999", b"1e" + b"9" * n)
    ],
    "hyphens of a uuid": lambda n: [b'{"u":"%s"}' % (b"-" * n), b'{"u":"%s"}' % (b"-a" * (n // 2))],
    "escapes": lambda n: [b'{"s":"%s"}' % (part * (n // len(part))) for part in (b"\\ud800", b"\\", b'"', b"\\u0041")],
    "white space": lambda n: [b" " * n + b'{"i":1}', b'{"i":' + b"\n" * n + b"1}"],
    "NaN": lambda n: [b'{"x":[%s1]}' % (b"NaN," * (n // 4)), b'{"l":[%s1]}' % (b"NaN," * (n // 4))],
    "brackets": lambda n: [b"[" * n, b"{" * n, b'{"a":' * (n // 5), b"," * n, b"-" * n],
    "Base64": lambda n: [b'{"b":"%s"}' % (b"=" * n), b'{"b":"%s"}' % (b"A" * n)],
    "refused records": lambda n: [b'{"i":"x%d"}' % i for i in range(n // 100)],
    "records for which columns would be wider": lambda n: [b'{"d":%d}' % (10**20 + i) for i in range(n // 100)],
}
OTHERS: dict[str, dict[str, Callable[[int], list[bytes]]]] = {
    "avro": {
        "elements without bytes": lambda _: [b"\2" + zigzag(2**k) + b"\0" * 9 for k in (16, 24, 31, 40, 61)],
        "entries without a name": lambda n: [b"\2\0" + zigzag(n) + b"\0" * n + b"\0\2\1"],
        "blocks": lambda n: [b"\2" + b"\2" * n + b"\0\0\2\1"],
        "digits": lambda n: [b"\2\0\0" + zigzag(n) + byte * n for byte in (b"\x7f", b"\0")],
        "a length that lies": lambda _: [b"\2\0\0" + zigzag(2**61)],
    },
    "protobuf": {
        "groups": lambda n: [b"\x0b" * n],
        "nested messages": lambda n: [messages(n // 100)],
        "one field again and again": lambda n: [b"\x08\1" * (n // 2), b"\x12\0" * (n // 2)],
        "unknown fields": lambda n: [b"\x7a\0" * (n // 2)],
        "one entry of a map again and again": lambda n: [b"\x22\0" * (n // 2)],
    },
    "csv": {
        "delimiters": lambda n: [b"," * n],
        "quotes": lambda n: [b'"' * n, b'1,"' + b'""' * (n // 2) + b'"', b'1,"' + b'""' * (n // 2) + b"x"],
        "digits": lambda n: [b"9" * n + b",a"],
        "fields": lambda n: [b'"a"' + b',"a"' * 1000] * (n // 4000),
        "line breaks": lambda n: [b"\n" * n],
    },
}
FORMS: dict[str, Any] = {
    "json": ("json", COLUMNS, {}),
    "avro": ({"type": "avro", "schema-text": json.dumps(AVRO)}, {"i": "long", "d": "decimal(10, 2)"}, {}),
    "protobuf": ({"type": "protobuf", "schema-text": PROTOBUF}, {"i": "long", "s": "string"}, {}),
    "csv": ("csv", {"i": "long", "s": "string"}, {}),
    "envelope": (
        {"type": "json", "envelope": "debezium"},
        {**COLUMNS, "i": "long not null"},
        {"mode": "upsert", "key": ["i"]},
    ),
}


def staged(form: str, values: list[bytes]) -> SchemaDrift:
    """Decode, and let a table evolve, as for a batch of these records."""
    of, columns, more = FORMS[form]
    declared = {
        "name": "s",
        "source": {"bootstrap-servers": "x:1", "topics": "t", "format": of},
        "table": "a.b",
        "schema": columns,
        "event-time": "kafka_timestamp",
        "complete": "none",
        **more,
    }
    spec = validate_stream(declared, Path("s.yaml"))
    schema = record_schema(iceberg.table_schema(spec), has_coordinates=True)
    decode = create_decoder(dump_portable_format(spec.value_format), schema, {}, "off" if form == "csv" else "full")
    found = decode(RecordChunk.of_values(values))
    assert len(found.record_indexes) + len(found.rejections) == len(values)
    requested, _ = requested_changes(SchemaDrift.from_json(json.loads(json.dumps(join_drift([found.drift]).to_json()))))
    plan_growth(schema, (schema,), requested, max_columns=500)
    return found.drift


def is_quick(form: str, records: Callable[[int], list[bytes]]) -> SchemaDrift:
    staged(form, records(2_000))  # imports, and compiles
    values = records(300_000)
    before = time.process_time()
    drift = staged(form, values)
    assert time.process_time() - before < MAX_SECONDS
    return drift


@pytest.mark.parametrize("what", JSON)
def test_the_work_for_a_record_of_json_is_linear_in_its_bytes(what: str):
    is_quick("json", JSON[what])


@pytest.mark.parametrize("what", JSON)
def test_decoding_a_hostile_captured_change_takes_linear_time(what: str):
    def changes(n: int) -> list[bytes]:
        start, end = b'{"before":null,"op":"c","source":{},"after":{"i":1,', b"}"
        return [start + value[1:] + end for value in JSON[what](n) if value.startswith(b"{")] or [b"{}"]

    is_quick("envelope", changes)


@pytest.mark.parametrize(("form", "what"), [(form, what) for form, kinds in OTHERS.items() for what in kinds])
def test_decoding_a_hostile_record_of_another_format_takes_linear_time(form: str, what: str):
    is_quick(form, OTHERS[form][what])


def test_an_object_with_too_many_fields_does_not_become_a_column_and_is_reported():
    drift = is_quick("json", JSON["new fields of a new object"])
    ((field),) = find_new_fields(drift)
    assert field.type is None
    assert f"more than {MAX_OBJECT_FIELDS:,} fields" in field.problem
    few = staged("json", [b'{"x": %s}' % an_object(MAX_OBJECT_FIELDS)])
    assert [field.type is None for field in find_new_fields(few)] == [False]


def test_new_fields_are_bounded_and_do_not_depend_on_the_order_of_records():
    parts = [
        join_drift(staged("json", [an_object(MAX_OBJECT_FIELDS, f"{name}_{n}_")]) for n in range(10)) for name in "cab"
    ]
    found = join_drift(parts)
    assert {path[0][:2] for path in found.new} == {"a_"}
    assert len(found.new) == MAX_NEW_FIELDS
    assert join_drift(reversed(parts)) == join_drift([join_drift(parts[:2]), parts[2]]) == found


def test_unpacking_headers_takes_linear_time():
    headers = [(f"h{i}", b"") for i in range(50_000)]
    before = time.process_time()
    assert unpack_headers(pack_headers(headers)) == headers
    assert time.process_time() - before < MAX_SECONDS


def test_a_record_with_too_many_new_fields_adds_none_and_hides_none_of_the_others():
    """Its keys come first in the alphabet, and would use all columns that the table may still get."""
    drift = staged("json", [an_object(MAX_OBJECT_FIELDS + 1), b'{"zone": 1, "i": 2}'])
    requested, (refused,) = requested_changes(drift)
    assert [change.path for change in requested] == [("zone",)]
    assert (refused.path, drift.records) == (("*",), 2)
    assert f"more than {MAX_OBJECT_FIELDS:,} undeclared fields of one object" in refused.reason
