"""A JSON record's outcome, values, error class and message depend only on its bytes and the schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import columns
from frazil.ingest.formats.json.decoder import JsonDecoder
from tests.json_oracle.record import decode_alone

PRIMITIVES: dict[str, t.IcebergType] = {
    "i": t.IntegerType(),
    "l": t.LongType(),
    "d": t.DoubleType(),
    "f": t.FloatType(),
    "n": t.DecimalType(5, 2),
    "whole": t.DecimalType(4, 0),
    "wide": t.DecimalType(38, 10),
    "part": t.DecimalType(3, 3),
    "ts": t.TimestampType(),
    "tz": t.TimestamptzType(),
    "in_s": t.TimestamptzType(),
    "in_ms": t.TimestamptzType(),
    "in_us": t.TimestamptzType(),
    "in_ns": t.TimestamptzType(),
    "tm": t.TimeType(),
    "day": t.DateType(),
    "u": t.UUIDType(),
    "b": t.BinaryType(),
    "b3": t.FixedType(3),
    "ok": t.BooleanType(),
    "s": t.StringType(),
}
NAMES = [*PRIMITIVES]
UNITS = {1 + NAMES.index(f"in_{unit}"): unit for unit in ("s", "ms", "us", "ns")}


def flat(names: list[str], first: int = 1, *, required: bool = False) -> list[t.NestedField]:
    """Field ids are 1000 a level and a name's place in it: those of `UNITS` are of the top level alone."""
    return [t.NestedField(first + NAMES.index(n), n, PRIMITIVES[n], required=required) for n in names]


def nested(names: list[str]) -> Schema:
    inside = t.StructType(t.NestedField(2000, "r", t.LongType(), required=True), *flat(names, 2001))
    lists = [
        t.NestedField(4000 + 2 * i, f"{n}s", t.ListType(4001 + 2 * i, PRIMITIVES[n], element_required=i % 2 == 0))
        for i, n in enumerate(names)
    ]
    entries = t.ListType(3001, t.StructType(*flat(names, 3002)), element_required=True)
    return Schema(*flat(names), t.NestedField(1000, "in", inside), t.NestedField(3000, "list", entries), *lists)


def maps(names: list[str]) -> Schema:
    found = [
        t.NestedField(
            5000 + 3 * i, f"{n}s", t.MapType(5001 + 3 * i, t.StringType(), 5002 + 3 * i, PRIMITIVES[n], i % 2 == 0)
        )
        for i, n in enumerate(names)
    ]
    return Schema(*flat(names), *found)


def decoders(names: list[str]) -> dict[str, JsonDecoder]:
    schemas = {
        "flat": Schema(*flat(names)),
        "nested": nested(names),
        "maps": maps(names),
        "required": Schema(*flat(names, required=True)),
    }
    return {name: JsonDecoder(schema, UNITS) for name, schema in schemas.items()}


OF_ONE = {name: decoders([name]) for name in NAMES}
OF_FEW = decoders(["i", "d", "n", "tz", "s", "b"])

ODD_LITERALS = r"""
null true false 0 -0 -0.0 0.0 1.5 1e2 1.234 999.99 1000 100.000 999.990 -1e-9 1e38 1e39 1e400 -1e400 1e-400 NaN -NaN
1E-41 -5e-62 0e-41 1.00000000000000000000000000001e-12
Infinity -Infinity Inf -Inf Infx 1Inf 01 1. .5 +1 [] {} [1] [null] "" "x" "1" "1.5" "+.5" "5." "1e2" "1_0" "NaN" "Inf"
1.7976931348623157e308 1.7976931348623158e308 1.7976931348623159e308 4.9e-324 2.4e-324 3.4028235677973366e38
3.4028235677973362e38 2147483647 2147483648 -2147483649 9223372036854775807 9223372036854775808 -9223372036854775809
9223372036854775 9223372036854776 1767323045.25 1767323045.1234567891234 1.76732304525e9 99999999999999999999
12345678901234567890123456789012345678 1234567890123456789012345678.0123456789 0.12345678901 9007199254740993
9223372036854.775807 9223372036854.775808 -9223372036854.775808 -1.5 -1001 -1000.0000019 "1\u002e5" 0e999999999999
1e-999999999999 1e999999999999 "2026-01-02" "2026-1-2" "2026-01-02T03" "2026-01-02T03:04" "2026-01-02T03:04:05"
"2026-01-02T03:04:05.123" "2026-01-02T03:04:05.1234567891Z" "2026-01-02T03:04:05+02" "2026-01-02T03:04:05-0230"
"2026-01-02T03:04:05." "2026-01-02T030405" "2026-01-02T0304" "2026-01-02T03:0405" "2026-01-02t03:04:05z" "2026-02-30"
"2026-02-29" "2024-02-29" "1900-02-29" "0000-02-29" "0000-01-01T00:00:00Z" "9999-12-31T23:59:59.999999-23:59"
"2026-01-02Z" "2026-01-02T24:00:00" "2026-01-02T23:59:60Z" "2026-01-02T03:04:05+24:00" "2026-01-02T03:04:05+23:60"
"2026-04-31" "2026-01-02_03:04" "2026-01-02T03:04:05Z " " 2026-01-02" "2026-01-02\n" "２０２６-01-02" "10:11:12" "10:11"
"10" "101112" "24:00:00" "10:11:60" "10:11:12.1234567" "10:11:12Z" "10:11:12+01" "10:1112" "1:2:3"
"12345678-1234-1234-1234-123456789abc" "12345678123412341234123456789ABC" "-1-2345678123412341234123456789ABC--" "YWJj"
"YWJ" "Y=W" "YW==" "YWI=" "YWJj\n" "é" {"a":1} {"a":1,"a":2} {"a":null} {"a":"1"} {"a":1e400} {"a":NaN} {"a":-0}
{"a":"2026-02-30"} [{"key":"a","value":1}] ["2026-02-30"] [1.5,"x"] [-0] [[1]] {"r":1,"d":-0} {"r":1,"i":1,"i":2}
{"r":null} {"r":1,"tz":"2026-02-30T00:00:00Z"} [{"i":1},{"i":2}] [{"i":1,"i":2}] [{"n":1.234}] [{"day":"2026-02-30"}]
[{"b":"YWJ"}] [null] "\ud83d\ude00" "\ud800" "\u0000" tru nul "a"b" "\x"
"""
LITERALS = ODD_LITERALS.split()

numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
small = st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{1,4})?", fullmatch=True)
moments = st.from_regex(
    r"\"[0-9]{4}-[01][0-9]-[0-3][0-9]([Tt ][0-2][0-9](:?[0-6][0-9](:?[0-6][0-9](\.[0-9]{0,10})?)?)?"
    r"([Zz]|[+-][0-2][0-9](:?[0-6][0-9])?)?)?\"",
    fullmatch=True,
)
clocks = st.from_regex(r"\"[0-2][0-9](:?[0-6][0-9](:?[0-6][0-9](\.[0-9]{0,10})?)?)?\"", fullmatch=True)
literals = st.one_of(st.sampled_from(LITERALS), numbers, small, moments, clocks, st.text(max_size=4).map(repr))
names = st.sampled_from(["i", "i", "d", "n", "tz", "s", "b", "is", "ds", "tzs", "in", "list", "ignored"])


def spelled(name: str, *, escaped: bool) -> str:
    return f"\\u{ord(name[0]):04x}{name[1:]}" if escaped else name


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Objects of one to three fields, each with any value, some given twice or spelled with an escape."""
    cells = draw(st.lists(st.tuples(names, literals, st.integers(0, 9).map(lambda n: n == 0)), min_size=1, max_size=3))
    between = draw(st.sampled_from([":", ":", " : ", ":\n"]))
    return ("{" + ",".join(f'"{spelled(n, escaped=e)}"{between}{v}' for n, v, e in cells) + "}").encode()


def deep(depth: int) -> bytes:
    """A row but for its depth, and for fields that no schema here names."""
    return b'{"i":1,"ignored":' + b"[" * depth + b"]" * depth + b"}"


odd = st.sampled_from(
    [
        None,
        b"",
        b" ",
        b"null",
        b"[1]",
        b"{",
        b"}",
        b"{}",
        b'{"i":1}{"i":2}',
        b'{"i":1}\x00}',
        b'{"i":1}{"i":2}\x00}',
        b'{"i":1}\n{"i":2}',
        b' {"i":1}\r\n',
        b'{"s":"\n"}',
        b'{"s":"\xff"}',
        b'{"ignored":"\\ud800","i":1}',
        b'{"ignored":"]]]]","i":1}',
        b'{"i":1,"i":',
        b'{"ignored":1e400,"i":1}',
        b'{"ignored":[1e400,"1e400",-0.00E+0400],"i":1,"d":-2e308}',
        b'{"ignored":"\\"1e400","i":1,"d":1e400}',
        b'{"\\u005cu0069":1,"i":2}',
        b'{"\\\\u0069":1,"i":2}',
        b'{"\\"i":1,"i":2}',
        b'{"s":"\\"i","i":2,"\\u0069":3}',
        b'{"i" :1,"i":2}',
        b'{"other":1,"other":2,"i":3}',
        b'{"d":' + b"9" * 5000 + b"}",
        b'{"l":' + b"9" * 5000 + b"}",
        b'{"s":' + b"9" * 5000 + b"}",
        b'{"n":1.' + b"0" * 5000 + b"}",
        b'{"in_s":1.' + b"3" * 5000 + b"}",
        *map(deep, (328, 329, 330, 499, 500, 5000)),
    ]
)
values = st.one_of(records(), records(), records(), odd)

Outcome = tuple[str, str]


def numbered(kind: pa.DataType) -> pa.DataType:
    """The type with moments as numbers, for Python's calendar has no year 0."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(numbered(f.type)).with_nullable(True) for f in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(numbered(kind.value_type)).with_nullable(True))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(numbered(kind.item_type)).with_nullable(True))
    return kind


def outcomes(decoded: DecodedChunk, count: int) -> list[Outcome]:
    """Per value its row, or its class and text: exactly one."""
    decoded.rows.validate(full=True)
    schema = pa.schema([f.with_type(numbered(f.type)).with_nullable(True) for f in decoded.rows.schema])
    rows = decoded.rows.cast(schema).to_pylist()
    found = {place: ("row", repr(row)) for place, row in zip(decoded.record_indexes.tolist(), rows, strict=True)}
    found |= {r.index: (r.error_class, r.error) for r in decoded.rejections}
    assert len(found) == len(decoded.rejections) + decoded.rows.num_rows == count
    return [found[i] for i in range(count)]


def outcomes_of_each(chunks: list[DecodedChunk], count: int) -> list[list[Outcome]]:
    """The outcomes of chunks of `count` values, which costs little more than those of one chunk."""
    places = [decoded.record_indexes + count * i for i, decoded in enumerate(chunks)]
    rejections = [r._replace(index=r.index + count * i) for i, decoded in enumerate(chunks) for r in decoded.rejections]
    rows = pa.concat_tables([decoded.rows for decoded in chunks])
    found = outcomes(DecodedChunk(rows, np.concatenate(places), rejections), count * len(chunks))
    return [found[i : i + count] for i in range(0, len(found), count)]


def by_reference(decoder: JsonDecoder, some: Sequence[bytes | None]) -> list[Outcome]:
    """Return each value as the oracle reads it."""
    columns = decoder._columns
    return outcomes(decode_alone(Schema(*columns._schema.fields), some, columns._units), len(some))


@settings(max_examples=max(100, settings().max_examples))
@given(st.sampled_from([*OF_FEW.values()]), st.lists(values, min_size=1, max_size=12), st.integers(1, 4))
def test_a_record_decodes_the_same_alone_and_with_any_neighbours(
    decoder: JsonDecoder, some: list[bytes | None], piece: int
) -> None:
    """Chunks, their pieces and single records match one reference, whatever their neighbours, order and bounds."""
    expected = by_reference(decoder, some)
    with mock.patch.object(columns, "TARGET_WORDS", 0), mock.patch.object(columns, "MIN_RECORDS", piece):
        assert outcomes(decoder(RecordChunk.of_values(some)), len(some)) == expected
        assert outcomes(decoder(RecordChunk.of_values(some[::-1])), len(some)) == expected[::-1]
    assert outcomes(decoder(RecordChunk.of_values(some)), len(some)) == expected


@pytest.mark.rotates(2)
@pytest.mark.parametrize("name", NAMES)
def test_an_unusual_value_of_any_type_decodes_the_same_in_a_chunk_and_alone(name: str) -> None:
    """Place it at the top, in a struct, a list, a struct in a list, and a map; alone and behind a valid neighbour."""
    for kind, form in (
        ("flat", '{"NAME":VALUE}'),
        ("nested", '{"in":{"r":1,"NAME":VALUE}}'),
        ("nested", '{"NAMEs":[VALUE]}'),
        ("nested", '{"list":[{"i":3},{"NAME":VALUE}]}'),
        ("maps", '{"NAMEs":{"k":VALUE}}'),
        ("required", '{"NAME":VALUE}'),
    ):
        decoder = OF_ONE[name][kind]
        values = [form.replace("NAME", name).replace("VALUE", literal).encode() for literal in LITERALS]
        beside = [decoder(RecordChunk.of_values([b"{}", value])) for value in values]
        found = outcomes_of_each(beside, 2)
        for value, expected, (_, outcome) in zip(values, by_reference(decoder, values), found, strict=True):
            assert outcome == expected, value


@settings(max_examples=max(100, settings().max_examples))
@given(st.sampled_from(NAMES), st.lists(st.one_of(numbers, small, moments, clocks), min_size=1, max_size=4))
def test_random_values_decode_the_same_in_a_chunk_and_alone(name: str, some: list[str]) -> None:
    decoder = OF_ONE[name]["flat"]
    literals = [*some, *(f'"{literal}"' for literal in some if '"' not in literal)]
    values = [f'{{"{name}":{literal}}}'.encode() for literal in literals]
    found = outcomes_of_each([decoder(RecordChunk.of_values([value])) for value in values], 1)
    for value, expected, (outcome,) in zip(values, by_reference(decoder, values), found, strict=True):
        assert outcome == expected, value


KEYED = JsonDecoder(
    Schema(
        t.NestedField(1, "m", t.MapType(2, t.StringType(), 3, t.LongType(), value_required=False)),
        t.NestedField(4, "", t.LongType()),
        t.NestedField(5, "k", t.StructType(t.NestedField(6, "", t.LongType()), t.NestedField(7, "k", t.LongType()))),
        t.NestedField(
            8, "ms", t.ListType(9, t.MapType(10, t.StringType(), 11, t.LongType(), value_required=False), False)
        ),
    ),
    {},
)
spellings = st.sampled_from(["", "", "k", "\\u006b", "é", "\\u00e9", "/", "\\/", "\\u0000", " ", "0", "other"])
members = st.lists(st.tuples(spellings, st.sampled_from(["null", "null", "0", "3"])), max_size=20)


def joined(cells: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in cells) + "}"


def repeated(cells: list[tuple[str, str]], known: frozenset[str] | None = None) -> bool:
    keys = [json.loads(f'"{key}"') for key, _ in cells]
    counted = [key for key in keys if known is None or key in known]
    return len(set(counted)) < len(counted)


@settings(max_examples=max(150, settings().max_examples))
@given(members, members, members, st.lists(st.sampled_from(["null", "0"]), max_size=2))
def test_a_repeated_json_key_rejects_the_record_and_loses_no_value(
    of_map: list[tuple[str, str]], of_struct: list[tuple[str, str]], in_list: list[tuple[str, str]], empty: list[str]
) -> None:
    """Compare with Python's own parser of the keys: the loop and the reference may share a mistake."""
    cells = [("m", joined(of_map)), ("k", joined(of_struct)), ("ms", f"[{joined(in_list)}]"), *(("", v) for v in empty)]
    twice = len(empty) > 1 or repeated(of_map) or repeated(in_list) or repeated(of_struct, frozenset({"", "k"}))
    decoded = KEYED(RecordChunk.of_values([joined(cells).encode()]))
    assert (decoded.rows.num_rows == 0) == twice
    assert all(r.error_class == "TypeMismatch" and r.error.endswith("given twice") for r in decoded.rejections)
