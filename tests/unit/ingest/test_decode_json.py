"""JSON to Arrow: each message becomes its own row or a rejection, whatever its neighbours are."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.schema import Schema

from bench import decode as bench
from frazil.errors import SpecError
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import DecodedChunk, Decoder, DecoderOptions
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.json import decoder as json_decoder
from frazil.ingest.formats.json import rows, unknown_keys

SCHEMA = Schema(
    t.NestedField(1, "id", t.LongType(), required=True),
    t.NestedField(2, "name", t.StringType()),
    t.NestedField(3, "at", t.TimestamptzType()),
    t.NestedField(
        4,
        "inner",
        t.StructType(t.NestedField(5, "a", t.IntegerType(), required=True), t.NestedField(6, "b", t.DoubleType())),
    ),
    t.NestedField(7, "list", t.ListType(8, t.DecimalType(9, 2), element_required=False)),
)


def column(kind: t.IcebergType, *values: bytes, required: bool = False, unit: str = "iso") -> DecodedChunk:
    """Messages `{"x": <value>}` decoded as one column."""
    schema = Schema(t.NestedField(1, "x", kind, required=required))
    chunk = RecordChunk.of_values([b'{"x":' + value + b"}" for value in values])
    return create_decoder("json", schema, {} if unit == "iso" else {1: unit})(chunk)


def accepted(decoded: DecodedChunk) -> list[Any]:
    assert decoded.rejections == []
    return [row["x"] for row in decoded.rows.to_pylist()]


def classes(decoded: DecodedChunk) -> list[str]:
    assert decoded.rows.num_rows == 0
    return [rejection.error_class for rejection in decoded.rejections]


DECODE = create_decoder("json", SCHEMA, {})


def fates(values: Sequence[bytes | None], decode: Decoder = DECODE) -> list[Any]:
    """Per message its row, or the word "rejected"; each message has exactly one."""
    decoded = decode(RecordChunk.of_values(values))
    rows = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    rejected = {rejection.index for rejection in decoded.rejections}
    assert len(rejected) == len(decoded.rejections)
    assert sorted([*rows, *rejected]) == list(range(len(values)))
    return [rows.get(i, "rejected") for i in range(len(values))]


# What a message may be: good records, and everything that tries to move its neighbours.
ids = st.integers(-(2**63), 2**63 - 1)
records = st.builds(
    lambda number, name, a: {"id": number, "name": name, "inner": a, "other": {"id": "ignored"}},
    ids,
    st.one_of(st.none(), st.text(max_size=5).filter(lambda s: not any(0xD800 <= ord(c) <= 0xDFFF for c in s))),
    st.one_of(st.none(), st.fixed_dictionaries({"a": st.integers(-(2**31), 2**31 - 1)})),
)
good = st.one_of(
    records.map(lambda r: json.dumps(r).encode()),
    records.map(lambda r: json.dumps(r, indent=1, ensure_ascii=False).encode()),
    records.map(lambda r: b" \n\t" + json.dumps(r).encode() + b"\r\n"),
)
bad = st.one_of(
    st.none(),
    st.sampled_from(
        [
            b"",
            b" ",
            b"\n",
            b"null",
            b"{",
            b"}",
            b"{}",
            b"[]",
            b'[{"id":1}]',
            b"1",
            b'"x"',
            b'{"id":1}{"id":2}',
            b'{"id":1} {"id":2}',
            b'{"id":1}\n{"id":2}',
            b'{"id":1}\r{"id":2}',
            b'{"id":1}\x00}',
            b'{"id":1}}',
            b'{"id":1,"inner":{}',
            b'{"id":1,"id":2}',
            b'{"id":1,"name":"a\nb"}',
            b'{"id":1,"name":"\xff"}',
            b'{"id":1,"name":"\\ud800"}',
            b'{"id":9223372036854775808}',
            b'{"id":1.0}',
            b'{"id":"1"}',
            b'{"id":null}',
            b'{"name":"x"}',
            b'{"id":1,"inner":{}}',
            b'{"id":1,"inner":{"a":null}}',
            b'{"id":1,"inner":{"a":2147483648}}',
            b'{"id":1,"inner":[]}',
            b'{"id":1,"list":[1.234]}',
            b'{"id":1,"list":{"0":1}}',
            b'{"id":1,"at":"yesterday"}',
            b'{"id":1,"at":"2026-02-30T00:00:00Z"}',
            b'{"id":1,"at":5}',
            b"\xef\xbb\xbf{}",
        ]
    ),
    st.binary(max_size=8),
)


def as_expected(value: bytes | None) -> Any:
    """The oracle: what one message is, by Python's own JSON."""
    row = json.loads(value or b"")
    inner = row["inner"]
    return {
        "id": row["id"],
        "name": row["name"],
        "at": None,
        "inner": inner and {"a": inner["a"], "b": None},
        "list": None,
    }


@settings(max_examples=max(100, settings().max_examples))
@given(st.lists(st.one_of(good.map(lambda v: (True, v)), bad.map(lambda v: (False, v))), max_size=12))
def test_every_message_decodes_the_same_whatever_its_neighbours_are(messages: list[tuple[bool, bytes | None]]) -> None:
    seen = fates([value for _, value in messages])
    for (is_good, value), fate in zip(messages, seen, strict=True):
        assert fate == (as_expected(value) if is_good else "rejected")


@settings(max_examples=max(100, settings().max_examples))
@given(st.lists(st.one_of(good, bad), min_size=1, max_size=8))
def test_a_messages_fate_does_not_depend_on_its_neighbours(values: list[bytes | None]) -> None:
    assert fates(values) == [fates([value])[0] for value in values]


LOOSE = Schema(
    t.NestedField(1, "i", t.IntegerType()),
    t.NestedField(2, "d", t.DecimalType(5, 2)),
    t.NestedField(3, "f", t.FloatType()),
    t.NestedField(4, "ts", t.TimestampType()),
    t.NestedField(5, "tm", t.TimeType()),
    t.NestedField(6, "day", t.DateType()),
    t.NestedField(7, "u", t.UUIDType()),
    t.NestedField(8, "b", t.BinaryType()),
    t.NestedField(9, "ok", t.BooleanType()),
    t.NestedField(10, "m", t.MapType(11, t.StringType(), 12, t.LongType(), value_required=True)),
)
decode_loose = create_decoder("json", LOOSE, {})
LITERALS = r"""
null true false 0 -0 1.5 1e2 1.234 999.99 1000 -1e-9 1e39 1e400 NaN Infinity -Infinity Inf 01 1. [] {} [1] ""
"x" "1" "1.5" "1e2" "1_0" "NaN" "2026-01-02" "2026-1-2" "2026-01-02T03" "2026-01-02T03:04" "2026-01-02T03:04:05"
"2026-01-02T03:04:05.123" "2026-01-02T03:04:05.1234567891Z" "2026-01-02T03:04:05+02" "2026-01-02T03:04:05-0230"
"2026-01-02T03:04:05." "2026-01-02T030405" "2026-01-02t03:04:05z" "2026-02-30" "2026-01-02Z" "2026-01-02T24:00:00"
"2026-01-02T03:04:05+24:00" "10:11:12" "10:11" "10" "101112" "24:00:00" "10:11:12.1234567" "10:11:12Z"
"12345678-1234-1234-1234-123456789abc" "12345678123412341234123456789ABC" "YWJj" "YWJ" "Y=W" {"a":1}
{"a":1,"a":2} {"a":null} {"a":"1"} [{"key":"a","value":1}]
"""
literals = st.one_of(
    st.sampled_from(LITERALS.split()),
    st.integers(-(2**40), 2**40).map(str),
    st.decimals(-2000, 2000, places=3).map(str),
    st.from_regex(r"\"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d:\d\d)?\"", fullmatch=True),
)


@settings(max_examples=max(150, settings().max_examples))
@given(st.lists(st.tuples(st.sampled_from([f.name for f in LOOSE.fields]), literals), min_size=1, max_size=6))
def test_the_slow_check_and_the_fast_path_agree_on_every_type(cells: list[tuple[str, str]]) -> None:
    """A poisoned neighbour forces the slow look upon records that would otherwise pass together."""
    values = [f'{{"{name}":{literal}}}'.encode() for name, literal in cells]
    alone = [decode_loose(RecordChunk.of_values([value])) for value in values]
    expected = [repr(d.rows.to_pylist()[0]) if d.rows.num_rows else "'rejected'" for d in alone]
    assert [repr(fate) for fate in fates([*values, b'{"i":"poison"}'], decode_loose)] == [*expected, "'rejected'"]


def test_a_missing_required_column_is_a_dead_letter() -> None:
    decoded = column(t.StringType(), b"null", required=True)
    assert [(r.error_class, r.error) for r in decoded.rejections] == [
        ("MissingRequired", "x: required, and missing or null")
    ]


def test_a_tombstone_is_a_dead_letter() -> None:
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([None]))
    assert classes(decoded) == ["Tombstone"]


def test_a_wrong_type_is_reported_with_its_path() -> None:
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([b'{"id":1,"inner":{"a":"one"}}']))
    assert decoded.rejections[0].error == "inner.a: expected a whole number (int), got the string 'one'"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (rb'{"name":"\ud800"}', r"\ud800 is half of a surrogate pair (byte 9)"),
        (rb'{"name":"\\\ud83d\ude00\ud800\u0041"}', r"\ud800 is half of a surrogate pair (byte 23)"),
        (rb'{"other":"\n\udc00"}', r"\udc00 is half of a surrogate pair (byte 12)"),
        (rb'{"other":"\u12"}', "invalid character in unicode escape (byte 15)"),
    ],
)
def test_half_of_a_surrogate_pair_is_reported_as_such(value: bytes, said: str) -> None:
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([value]))
    assert [(r.error_class, r.error) for r in decoded.rejections] == [("InvalidJson", f"JSON is malformed: {said}")]


@pytest.mark.parametrize("escape", [rb"\u003:", rb"\u00-1", rb"\u00+1", rb"\u00", rb"\u0"])
def test_an_invalid_escape_after_a_wrong_type_does_not_fail_the_chunk(escape: bytes) -> None:
    values = [b'{"id":"one","name":"' + escape + end for end in (b'"}', b"")]
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([*values, b'{"id":7}']))
    assert [(r.index, r.error_class) for r in decoded.rejections] == [(0, "InvalidJson"), (1, "InvalidJson")]
    assert decoded.rows.column("id").to_pylist() == [7]


def test_fields_that_the_schema_does_not_name_are_ignored() -> None:
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([b'{"id":7,"new":[1,{"deep":null}]}']))
    assert decoded.rows.column("id").to_pylist() == [7]


LONG_DECIMAL = Decimal("1234567890123456789012345678.0123456789")


def map_of(value: t.IcebergType, first_id: int = 2) -> t.MapType:
    return t.MapType(first_id, t.StringType(), first_id + 1, value, value_required=False)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (t.BooleanType(), b"true", True),
        (t.IntegerType(), b"-2147483648", -(2**31)),
        (t.LongType(), b"9223372036854775807", 2**63 - 1),
        (t.FloatType(), b"1.5", 1.5),
        (t.DoubleType(), b"0.1", 0.1),
        (t.DecimalType(38, 10), str(LONG_DECIMAL).encode(), LONG_DECIMAL),
        (t.DecimalType(9, 2), b'"1.50"', Decimal("1.50")),
        (t.DateType(), b'"2026-02-28"', date(2026, 2, 28)),
        (t.TimeType(), b'"10:11:12.5"', time(10, 11, 12, 500000)),
        (t.TimestampType(), b'"2026-01-02T03:04:05.000001"', datetime(2026, 1, 2, 3, 4, 5, 1)),  # noqa: DTZ001
        (t.StringType(), b'"\\ud83d\\ude00"', "😀"),
        (t.UUIDType(), b'"12345678-1234-1234-1234-123456789abc"', UUID("12345678123412341234123456789abc")),
        (t.FixedType(3), b'"YWJj"', b"abc"),
        (t.BinaryType(), b'"YWI="', b"ab"),
        (t.StructType(t.NestedField(2, "d", t.DateType())), b'{"d":"2026-02-28"}', {"d": date(2026, 2, 28)}),
        (t.ListType(2, t.TimeType(), False), b'["10:11:12",null]', [time(10, 11, 12), None]),
        (t.ListType(2, t.ListType(3, t.LongType(), True), False), b"[[1,2],null,[]]", [[1, 2], None, []]),
        (map_of(t.DecimalType(9, 2)), b'{"k":1.25,"z":null}', [("k", Decimal("1.25")), ("z", None)]),
        (map_of(map_of(t.LongType(), 10)), b'{"k":{"m":1}}', [("k", [("m", 1)])]),
    ],
    ids=str,
)
def test_every_type_is_read_and_null_stays_null(kind: t.IcebergType, text: bytes, value: Any) -> None:
    assert accepted(column(kind, text, b"null", text)) == [value, None, value]


@pytest.mark.parametrize(
    "text",
    [
        b'"2026-01-02T03:04:05Z"',
        b'"2026-01-02T05:04:05+02:00"',
        b'"2026-01-02T05:04:05+0200"',
        b'"2026-01-02T03:04:05"',
        b'"2026-01-02 03:04:05.000Z"',
        b'"2026-01-02T03:04:05.000000999Z"',
        b'"2026-01-02t03:04:05z"',
    ],
)
def test_a_timestamp_may_have_any_zone_or_none_and_any_fraction(text: bytes) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert accepted(column(t.TimestamptzType(), text)) == [moment]
    assert accepted(column(t.TimestamptzType(), text, b'"2026-01-02T03:04:05"', b'"1970-01-01"')) == [
        moment,
        moment,
        datetime(1970, 1, 1, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("s", b"1767323045.25"),
        ("s", b"1767323045.2500000999"),
        ("s", b"1.76732304525e9"),
        ("ms", b"1767323045250"),
        ("us", b"1767323045250000"),
        ("ns", b"1767323045250000999"),
    ],
)
def test_event_time_may_be_a_number_since_the_epoch(unit: str, text: bytes) -> None:
    expected = datetime(2026, 1, 2, 3, 4, 5, 250000, tzinfo=UTC)
    assert accepted(column(t.TimestamptzType(), text, unit=unit)) == [expected]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (t.IntegerType(), b"2147483648"),
        (t.LongType(), b"-9223372036854775809"),
        (t.FloatType(), b"1e39"),
        (t.DoubleType(), b"1e400"),
        (t.DecimalType(5, 2), b"1000"),
        (t.DecimalType(5, 2), b"1.001"),
        (t.DateType(), b'"2026-02-29"'),
        (t.TimeType(), b'"25:00:00"'),
        (t.TimestamptzType(), b'"2026-01-02T03:04:61Z"'),
        (t.UUIDType(), b'"1234"'),
        (t.FixedType(3), b'"YWI="'),
        (t.BinaryType(), b'"a"'),
        (t.BooleanType(), b"1"),
        (t.StringType(), b"1"),
        (t.MapType(2, t.StringType(), 3, t.LongType()), b'{"a":1,"a":2}'),
        (t.MapType(2, t.StringType(), 3, t.LongType()), b'[{"key":"a","value":1}]'),
        (t.ListType(2, t.LongType(), element_required=True), b"[null]"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_its_type_is_a_dead_letter(kind: t.IcebergType, text: bytes) -> None:
    assert len(classes(column(kind, text))) == 1


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_does_not_fit_a_decimal_is_quoted_as_it_was_sent(text: str) -> None:
    (rejection,) = column(t.DecimalType(5, 2), text.encode()).rejections
    assert rejection.error == f"x: {text} does not fit decimal(5, 2)"


def test_a_number_too_big_for_the_unit_is_a_dead_letter() -> None:
    assert len(classes(column(t.TimestamptzType(), b"9223372036854775807", unit="ms"))) == 1


@pytest.mark.parametrize("kind", [t.TimestampNanoType(), t.MapType(2, t.LongType(), 3, t.LongType())], ids=str)
def test_a_type_that_json_cannot_fill_is_refused_at_start(kind: t.IcebergType) -> None:
    with pytest.raises(SpecError, match=r"schema\.x"):
        column(kind)


def test_an_unknown_format_is_refused_at_start() -> None:
    with pytest.raises(SpecError, match="allowed: json"):
        create_decoder("xml", SCHEMA, {})


def test_an_empty_chunk_has_the_columns_of_the_table() -> None:
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([]))
    assert decoded.rows.num_rows == 0
    assert decoded.rows.column_names == [field.name for field in SCHEMA.fields]


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """The records that were read again, in a form that the loop reads with certainty."""
    done: list[bytes | None] = []
    read = json_decoder.JsonDecoder.read_in_loop

    def counting(self: json_decoder.JsonDecoder, values: BinaryColumn, *, is_again: bool = False) -> Any:
        done.extend(values if is_again else ())
        return read(self, values, is_again=is_again)

    monkeypatch.setattr(json_decoder.JsonDecoder, "read_in_loop", counting)
    return done


def test_a_bad_record_among_many_is_rejected_and_not_read_again(read_again: list[bytes | None]) -> None:
    values: list[bytes | None] = [b'{"id":%d}' % i for i in range(100_000)]
    values[77_777] = b'{"id":"not a number"}'
    decoded = create_decoder("json", SCHEMA, {})(RecordChunk.of_values(values))
    assert [r.index for r in decoded.rejections] == [77_777]
    assert decoded.rows.column("id").to_pylist() == [i for i in range(100_000) if i != 77_777]
    assert not read_again


PRICES = Schema(
    t.NestedField(1, "id", t.StringType()),
    t.NestedField(2, "price", t.DecimalType(38, 38)),
    t.NestedField(3, "prices", t.ListType(4, t.DecimalType(38, 38))),
)


def test_strings_that_resemble_numbers_cost_nothing(read_again: list[bytes | None]) -> None:
    values = [b'{"id":"9c5b94b1-35ad-4%03d-b8e-4100-0000%08de-41","price":0.5}' % (i, i) for i in range(1_000)]
    decoded = create_decoder("json", PRICES, {})(RecordChunk.of_values(values))
    assert decoded.record_indexes.tolist() == list(range(1_000))
    assert not read_again


@pytest.mark.parametrize("number", ["1e-39", "-1e-41", "1.5E-0041", "0.0001e-100", "1234567890123456789e-9"])
@pytest.mark.parametrize(
    "form", ['{"price":%s}', '{"price": %s}', '{"price":\t%s}', '{"prices":[%s]}', '{"prices":[0,%s]}']
)
def test_a_record_with_a_number_beyond_any_decimal_is_rejected_wherever_the_number_stands(
    form: str, number: str, read_again: list[bytes | None]
) -> None:
    decoded = create_decoder("json", PRICES, {})(RecordChunk.of_values([(form % number).encode()]))
    path = "prices.element" if "[" in form else "price"
    assert [r.error for r in decoded.rejections] == [f"{path}: {number} does not fit decimal(38, 38)"]
    assert not read_again


DIGITS = "1" * 30
UNSURE = "9007199254740993.0000000000000000000001"
"""A number just above the middle between two doubles. The loop is not certain of it."""


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (t.DoubleType(), "9007199254740993.0000000000000000000000", 9007199254740992.0),
        (t.DoubleType(), UNSURE, 9007199254740994.0),
        (t.FloatType(), "0.1000000000000000055511151231257827", 0.10000000149011612),
        (t.DecimalType(38, 8), f"{DIGITS}.5{'0' * 40}", Decimal(f"{DIGITS}.50000000")),
        (t.DecimalType(9, 2), r'"\u002b1.5"', Decimal("1.50")),
        (t.DateType(), '"' + "".join(f"\\u{ord(c):04x}" for c in "2026-01-02") + '"', date(2026, 1, 2)),
        (t.TimeType(), '"10:11:12.5' + r"\u0030" * 200 + '"', time(10, 11, 12, 500_000)),
    ],
    ids=str,
)
def test_a_value_that_needs_more_digits_or_escapes_than_usual_is_exact(
    kind: t.IcebergType, text: str, value: Any
) -> None:
    assert accepted(column(kind, text.encode())) == [value]
    assert accepted(column(t.ListType(2, kind, element_required=False), f"[null,{text},{text}]".encode())) == [
        [None, value, value]
    ]


def test_few_errors_of_a_record_with_many_are_stored_and_explained() -> None:
    schema = Schema(t.NestedField(1, "x", t.ListType(2, t.StringType(), element_required=False)))
    value = b'{"x":[' + b"1," * 100_000 + b"1]}"
    decoder = json_decoder.JsonDecoder(schema, {})
    assert len(decoder.read_in_loop(BinaryColumn.of([value, value]))[2]) == 2 * rows.MAX_ERRORS
    decoded = decoder(RecordChunk.of_values([value]))
    assert [r.error for r in decoded.rejections] == ["x.element: expected a string, got the number 1"]


@pytest.mark.parametrize(
    ("last", "errors"), [("0.5", []), ('"z"', ["x.element: expected a number (double), got the string 'z'"])]
)
def test_a_record_with_many_values_of_many_digits_is_read_again_twice_at_most(
    last: str, errors: list[str], read_again: list[bytes | None]
) -> None:
    """The loop reports the first values, then all others."""
    count = 10 * rows.MAX_ERRORS
    decoded = column(t.ListType(2, t.DoubleType(), element_required=False), f"[{f'{UNSURE},' * count}{last}]".encode())
    assert [r.error for r in decoded.rejections] == errors
    assert [row["x"] for row in decoded.rows.to_pylist()] == ([] if errors else [[9007199254740994.0] * count + [0.5]])
    assert len(read_again) == 2


def test_all_columns_that_must_change_are_found_in_a_record_with_many_errors() -> None:
    schema = Schema(
        t.NestedField(1, "x", t.ListType(2, t.IntegerType(), element_required=False)),
        t.NestedField(3, "y", t.IntegerType()),
    )
    decode = json_decoder.JsonDecoder(schema, {}, DecoderOptions(drift="full"))
    many = ",".join(["3000000000"] * 2 * rows.MAX_ERRORS)
    for last, expected in (("3000000000", {("x", "element"): "long", ("y",): "long"}), ('"z"', {})):
        decoded = decode(RecordChunk.of_values([f'{{"x":[{many}],"y":{last}}}'.encode()]))
        assert [r.error_class for r in decoded.rejections] == ["OutOfRange"]
        assert decoded.drift.wider == expected


def test_new_fields_are_found_in_records_that_are_all_read_again(read_again: list[bytes | None]) -> None:
    """More records than there are samples of a field."""
    schema = Schema(t.NestedField(1, "x", t.DoubleType()))
    decode = json_decoder.JsonDecoder(schema, {}, DecoderOptions(drift="full"))
    values = [f'{{"new":1,"x":{UNSURE}}}'.encode()] * (unknown_keys.MAX_SAMPLES + 1)
    for _ in range(2):
        drift = decode(RecordChunk.of_values(values)).drift
        assert (drift.new, drift.records) == ({("new",): "long"}, len(values))
    assert len(read_again) == 2 * len(values)


@pytest.mark.parametrize("kind", bench.BAD)
def test_bad_records_of_any_kind_and_only_those_are_rejected_and_not_read_again(
    kind: str, read_again: list[bytes | None]
) -> None:
    values = [bench.record(i) for i in range(2_500)]
    mixed = [bench.changed(v, bench.BAD[kind]) if i % 10 == 0 else v for i, v in enumerate(values)]
    decoded = create_decoder("json", bench.SCHEMA, {})(RecordChunk.of_values(mixed))
    if kind != "year 0":  # a moment that only the table's writer refuses
        assert [r.index for r in decoded.rejections] == [*range(0, 2_500, 10)]
    assert not read_again


@pytest.mark.parametrize("frames", [0, 850])
def test_a_deep_record_decodes_at_any_stack_depth_of_the_caller(frames: int) -> None:
    """The parser's depth counts against the interpreter's limit together with the caller's frames."""
    inner = b"[" * 499 + b"]" * 499
    values = [b'{"id":1,"deep":' + inner + b"}", b'{"id":"x","deep":' + inner + b"}"]
    decode = create_decoder("json", SCHEMA, {})

    def called(times: int) -> DecodedChunk:
        return called(times - 1) if times else decode(RecordChunk.of_values(values))

    decoded = called(max(0, frames - len(inspect.stack())))
    assert (decoded.record_indexes.tolist(), [r.error_class for r in decoded.rejections]) == ([0], ["TypeMismatch"])


MANY = 200_000


@pytest.mark.parametrize(
    ("value", "error_class"),
    [
        (b'{"n":"' + b"1" * MANY + b'x"}', "TypeMismatch"),
        (b'{"s":"' + b'\\"' * MANY + b"[" * 501 + b"}", "InvalidJson"),
        (b'{"d":Inf,"s":"' + b'\\"' * MANY + b"}", "InvalidJson"),
        (b'{"ignored":"' + b'\\"' * MANY + b'","\\u006e":1,"n":x}', "InvalidJson"),
    ],
)
def test_no_record_takes_quadratic_time_to_decode(value: bytes, error_class: str) -> None:
    """Each of these records once took hours: the square of its length in steps. A hang here is this defect again."""
    columns = [("n", t.DecimalType(9, 2)), ("s", t.StringType()), ("d", t.DoubleType())]
    schema = Schema(*(t.NestedField(i, name, kind) for i, (name, kind) in enumerate(columns, 1)))
    [rejection] = json_decoder.JsonDecoder(schema, {})(RecordChunk.of_values([value])).rejections
    assert rejection.error_class == error_class


@pytest.mark.parametrize("order", ["", "-le", "-be"])
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("text", ['{"n": 1}', '{"n": 1}\n'])
def test_a_value_in_another_encoding_is_reported_with_and_without_a_byte_order_mark(
    encoding: str, order: str, text: str
) -> None:
    (rejection,) = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([text.encode(encoding + order)])).rejections
    assert (rejection.error_class, rejection.error) == ("NotAnObject", f"the value is {encoding}: write UTF-8")


@pytest.mark.parametrize("length", range(1, len(WHOLE := b'{"id":1,"other":{"a":[1.5e3,"x\\u00e9\\n"],"b":true}}')))
def test_a_record_truncated_at_any_length_is_reported_as_truncated(length: int) -> None:
    (rejection,) = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([WHOLE[:length]])).rejections
    assert rejection.error_class == "InvalidJson"
    assert rejection.error.startswith("the record is truncated")


@pytest.mark.parametrize("tail", [b"\0", b"}", b"]"])
def test_a_record_with_trailing_characters_is_not_reported_as_truncated(tail: bytes) -> None:
    (rejection,) = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([b'{"id": 1}' + tail])).rejections
    assert (rejection.error_class, rejection.error) == (
        "InvalidJson", "JSON is malformed: trailing characters (byte 10)"
    )  # fmt: skip


MAPPED = Schema(
    t.NestedField(1, "i", t.IntegerType()),
    t.NestedField(
        2,
        "m",
        t.MapType(
            3,
            t.StringType(),
            4,
            t.StructType(
                t.NestedField(5, "d", t.DoubleType()), t.NestedField(6, "l", t.ListType(7, t.LongType(), False))
            ),
            value_required=False,
        ),
    ),
)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b'{"m":{"a":{"l":[1]},"b":{"d":1e400},"c":{"d":"x"}}}', "m.value.d: the number 1e400 is too big for double"),
        (
            b'{"m":{"a":{"l":[1]},"b":null,"c":{"l":[1,2.5]}}}',
            "m.value.l.element: expected a whole number (long), got the number 2.5",
        ),
        (b'{"m":{"a":{"d":NaN},"b":7}}', "m.value: expected an object, got the number 7"),
        (b'{"m":{"a":{"d":NaN,"l":["x"]}},"i":1,"i":2}', "i: given twice"),
        (b'{"i":NaN,"i":1}', "i: given twice"),
    ],
)
def test_the_error_quotes_the_value_even_inside_a_map(value: bytes, error: str) -> None:
    (rejection,) = create_decoder("json", MAPPED, {})(RecordChunk.of_values([value])).rejections
    assert rejection.error == error


@pytest.mark.parametrize("value", [b"\x00", b"\x00\x00\x00\x00\x07", b"\x1f", b"\xff", b"}", b'"{"'])
def test_bytes_that_resemble_no_known_format_are_rejected_as_not_an_object(value: bytes) -> None:
    (rejection,) = create_decoder("json", SCHEMA, {})(RecordChunk.of_values([value])).rejections
    assert rejection.error.startswith("expected a JSON object")
