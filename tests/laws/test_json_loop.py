"""The compiled loop decides about each record like a reader of single records, and reads no byte past the end."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import DecodedChunk, DecoderOptions
from frazil.ingest.formats.json import rows as loop
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.ingest.formats.json.text import RecordError
from frazil.ingest.formats.json.types import Units
from frazil.ingest.schema_drift import wider_of
from tests.json_oracle.record import RecordReader, decode_alone

SCALARS: list[tuple[t.IcebergType, list[str]]] = [
    (t.BooleanType(), ["true", "false"]),
    (t.IntegerType(), ["0", "-0", "7", "-2147483648", "2147483648"]),
    (t.LongType(), ["12345678901234", "9223372036854775807", "-9223372036854775808", "1.0"]),
    (t.FloatType(), ["0.1", "3.4028235e38", "3.5e38", "-0"]),
    (t.DoubleType(), ["0.30000000000000004", "1e-7", "5e-324", "NaN", "-Infinity", "9007199254740993", "1e-400"]),
    (t.DecimalType(9, 2), ["1.5", '"2.25"', "100.000", "1e3", "1.234"]),
    (t.DecimalType(38, 10), ["1234567890123456789012345678.0123456789", "-0.1", r'"\u002d0.1"']),
    (t.DateType(), ['"2026-01-02"', r'"2026-\u00301-02"', '"2024-02-29"', '"2026-02-30"']),
    (t.TimeType(), ['"10:11:12.123"', '"10:11"', r'"10\u003a11"', r'"10:11\""']),
    (t.TimestampType(), ['"2026-01-02T03:04:05.123456"', '"2026-01-02 03:04"', '"9999-12-31T23:59:59-01:00"']),
    (
        t.TimestamptzType(),
        ['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.1234567+02:30"', r'"2026-01-02\u002B01"', r'"2026-01-02\""'],
    ),
    (
        t.StringType(),
        ['""', '"x"', '"é 漢 😀"', r'"\ud83d\ude00 \u00e9 \" \\ \/ \b\f\n\r\t"', r'"\ud800"', '"a long one"'],
    ),
    (t.UUIDType(), ['"f79c3e09-677c-4bbd-a479-3f349cb785e7"', r'"\u004679C3E09677C4BBDA4793F349CB785E7"', '"f7"']),
    (t.BinaryType(), ['"AAEC"', r'"\/+8="', '""', '"AAE"']),
    (t.FixedType(3), ['"AAEC"', '"AAE="']),
]
WRITTEN = {str(kind): values for kind, values in SCALARS}
WHITE = ["", "", "", " ", "\n", "\t\r\n  "]
IGNORED = ['{"a":[1,{"b":null}],"c":"]}"}', "[]", '"\\u0041"', "-1.5E+3", "true", "NaN", "1e400", "[1,]", "{}"]


def a_type(chance: random.Random, ids: Iterator[int], depth: int) -> t.IcebergType:
    what = chance.choice(["scalar"] * 4 + ["struct", "list", "map"] if depth else ["scalar"])
    if what == "struct":
        return a_struct(chance, ids, depth - 1)
    required = chance.random() < 0.5
    if what == "list":
        return t.ListType(next(ids), a_type(chance, ids, depth - 1), required)
    if what == "map":
        return t.MapType(next(ids), t.StringType(), next(ids), a_type(chance, ids, depth - 1), required)
    return chance.choice(SCALARS)[0]


def a_struct(chance: random.Random, ids: Iterator[int], depth: int) -> t.StructType:
    names = chance.sample(["a", "ab", "née", "seven77", "eight888", "a/b", ""], chance.randint(1, 4))
    return t.StructType(
        *(t.NestedField(next(ids), n, a_type(chance, ids, depth), required=chance.random() < 0.5) for n in names)
    )


def a_schema(seed: int) -> Schema:
    return Schema(*a_struct(random.Random(seed), itertools.count(1), 2).fields)


def written(kind: t.IcebergType, chance: random.Random, units: Units, field_id: int = 0) -> str:
    """A value of the type, mostly; now and then another, a null, a field too many, too few or twice."""
    if chance.random() < (0.7 if field_id in units else 0.06):
        return chance.choice(["null", "null", *IGNORED, *chance.choice(SCALARS)[1]])

    def spaced(text: str) -> str:
        return chance.choice(WHITE) + text + chance.choice(WHITE)

    match kind:
        case t.StructType():
            fields = [
                (f.name, written(f.field_type, chance, units, f.field_id))
                for f in kind.fields
                if chance.random() < 0.95
            ]
            if chance.random() < 0.2:
                again = fields[0][0] if fields else ""
                fields.append(
                    (chance.choice([again, "other", "Other", "ÉTÉ", "a", "eight8888", ""]), chance.choice(IGNORED))
                )
            if chance.random() < 0.3:
                chance.shuffle(fields)
            names = [json.dumps(name, ensure_ascii=chance.random() < 0.5) for name, _ in fields]
            members = [spaced(name) + ":" + spaced(value) for name, (_, value) in zip(names, fields, strict=True)]
            return "{" + ",".join(members) + chance.choice(WHITE) + "}"
        case t.ListType():
            some = [written(kind.element_type, chance, units, kind.element_id) for _ in range(chance.randrange(4))]
            return "[" + ",".join(map(spaced, some)) + "]"
        case t.MapType():
            keys = [chance.choice(["k", "l", "\\u006b", "m\\n", "é", "", ""]) for _ in range(chance.randrange(3))]
            keys += [f"key {i}" for i in range(chance.choice([0, 0, 0, 40]))]
            return (
                "{"
                + ",".join(f'"{key}":{spaced(written(kind.value_type, chance, units, kind.value_id))}' for key in keys)
                + "}"
            )
    return chance.choice(WRITTEN[str(kind)])


def broken(text: bytes, chance: random.Random) -> bytes:
    """Return the text with some bytes changed, removed or inserted."""
    octets = bytearray(text)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        at = chance.randrange(len(octets)) if octets else 0
        octets[at : at + chance.choice([0, 0, 1, 1, 30])] = bytes(
            chance.choice(b'"\\{}[],:0123456789.eE+-TZunN \n\t\x00\x1f\x7f\x80\xc3\xed\xf0\xff')
            for _ in range(chance.randrange(3))
        )
    return bytes(octets)


def rows(decoded: DecodedChunk) -> dict[int, str]:
    """Return values by index in the chunk; times as numbers, because Python's years are limited to 1 to 9999."""
    decoded.rows.validate(full=True)
    plain = pa.schema([pa.field(f.name, numbered(f.type)) for f in decoded.rows.schema])
    return dict(zip(decoded.record_indexes.tolist(), map(repr, decoded.rows.cast(plain).to_pylist()), strict=True))


def numbered(kind: Any) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, numbered(f.type)) for f in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(pa.field("element", numbered(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", numbered(kind.item_type)))
    return kind


def made(schema: Schema, seed: int, count: int, units: Units) -> list[bytes]:
    chance = random.Random(seed)
    return [broken(written(schema.as_struct(), chance, units).encode(), chance) for _ in range(count)]


def held(schema: Schema, seed: int) -> tuple[Schema, dict[int, str], list[tuple[str, ...]]]:
    """The schema, mostly with a column of all other fields; how strings keep values; and which fields are hidden."""
    chance = random.Random(seed)
    units = {
        field_id: chance.choice(["json", "json-in-text"])
        for field_id in strings(schema.as_struct())
        if chance.random() < 0.5
    }
    if chance.random() < 0.3:
        return schema, units, []
    fields = [*schema.fields, t.NestedField(1_000, "rest", t.StringType())]
    chance.shuffle(fields)
    hidden: list[tuple[str, ...]] = [("other",), ("été",), ("a", "eight8888"), ("ab", "element", "a"), ("née", "key")]
    return Schema(*fields), {**units, 1_000: "rest"}, chance.sample(hidden, chance.choice([0, 0, 2, 4]))


def strings(kind: t.IcebergType) -> Iterator[int]:
    match kind:
        case t.StructType():
            parts = [(f.field_id, f.field_type) for f in kind.fields]
        case t.ListType():
            parts = [(kind.element_id, kind.element_type)]
        case t.MapType():
            parts = [(kind.value_id, kind.value_type)]
        case _:
            parts = []
    for field_id, inner in parts:
        if isinstance(inner, t.StringType):
            yield field_id
        yield from strings(inner)


def check(schema: Schema, values: list[bytes], units: Units, hidden: Sequence[tuple[str, ...]] = ()) -> None:
    """The law."""
    decoded = JsonDecoder(schema, units, DecoderOptions(hidden))(RecordChunk.of_values(values))
    alone = decode_alone(schema, values, units, hidden)
    assert rows(decoded) == rows(alone), (schema, values)
    rejections = sorted(decoded.rejections)
    assert [rejection.index for rejection in rejections] == [rejection.index for rejection in alone.rejections]
    if rejections != alone.rejections:  # of very many errors, not all are stored
        errors = JsonDecoder(schema, units, DecoderOptions(hidden)).read_in_loop(BinaryColumn.of(values))[2]
        counts = Counter(error.record for error in errors)
        for rejection, expected in zip(rejections, alone.rejections, strict=True):
            assert rejection == expected or counts[rejection.index] == loop.MAX_ERRORS, (schema, values)


@settings(max_examples=20 * settings().max_examples)
@given(st.integers(0, 2**32))
def test_the_compiled_loop_decodes_a_record_as_it_is_decoded_alone(seed: int) -> None:
    """The seed also selects the schema: Hypothesis would draw one as slowly as this test decodes its records."""
    schema, units, hidden = held(a_schema(seed), seed)
    check(schema, made(schema, seed, 12, units), units, hidden)


@settings(max_examples=5 * settings().max_examples)
@given(st.integers(0, 2**32))
def test_the_loop_finds_the_columns_that_must_change_to_accept_a_record(seed: int) -> None:
    schema, units, _ = held(a_schema(seed), seed)
    decoder = JsonDecoder(schema, units, DecoderOptions(drift="full"))
    reader = RecordReader(schema.as_struct(), units, collects_changes=True)
    for value in made(schema, seed, 12, units):
        decoded = decoder(RecordChunk.of_values([value]))
        is_fixable = bool(decoded.rejections) and not isinstance(reader(value), RecordError)
        wider: dict[tuple[str, ...], str] = {}
        for path, kind in reader.changes if is_fixable else ():
            if kind is not None:
                wider[path] = wider_of(wider.get(path, kind), kind)
        optional = {path for path, kind in reader.changes if kind is None} if is_fixable else set()
        assert (decoded.drift.wider, decoded.drift.optional) == (wider, optional), (schema, value)


FLAT = Schema(*(t.NestedField(1 + i, f"c{i}", kind) for i, (kind, _) in enumerate(SCALARS)))
NESTED = Schema(
    t.NestedField(
        1,
        "a",
        t.ListType(2, t.StructType(*(f.model_copy(update={"field_id": 10 + f.field_id}) for f in FLAT.fields)), False),
    ),
    t.NestedField(3, "ab", t.MapType(4, t.StringType(), 5, t.ListType(6, t.StringType(), False), False)),
)


def test_the_loop_accepts_records_of_common_producers() -> None:
    valid = [kind for kind, _ in SCALARS]
    record = {f"c{i}": json.loads(SCALARS[i][1][0]) for i in range(len(valid))}
    nested = {"a": [record, record], "ab": {"x": ["é", None]}, "more": [{"deep": record}]}
    for schema, value in ((FLAT, record), (NESTED, nested)):
        for text in (
            json.dumps(value),
            json.dumps(value, separators=(",", ":")),
            json.dumps(value, indent=2),
            json.dumps(value, ensure_ascii=False),
        ):
            rows, flags, _ = JsonDecoder(schema, {}).read_in_loop(BinaryColumn.of([text.encode()]))
            assert not (flags & 1).any(), text
            assert rows.num_rows == 1


@given(st.one_of(st.floats(0, 2**-1022), st.floats(0, 10**-300)), st.integers(1, 18))
def test_the_loop_reads_the_smallest_doubles_exactly(number: float, digits: int) -> None:
    texts = [repr(number), f"{number:.{digits - 1}e}", "0.1e-323", "2.4703282292062327e-324", "2.4703282292062328e-324"]
    schema = Schema(t.NestedField(1, "d", t.DoubleType()))
    rows, flags, _ = JsonDecoder(schema, {}).read_in_loop(
        BinaryColumn.of([b'{"d":%s}' % one.encode() for one in texts])
    )
    assert not (flags & 1).any()
    assert [*map(repr, rows["d"].to_pylist())] == [repr(float(text)) for text in texts]


@pytest.mark.parametrize(
    ("kind", "text", "plain"),
    [
        (t.TimestamptzType(), r"2026-01-02T03:04:05\u002b01:00", "2026-01-02T03:04:05+01:00"),
        (t.DateType(), r"2026\u002D01\u002D02", "2026-01-02"),
        (t.TimeType(), r"10\u003a11", "10:11"),
        (t.UUIDType(), r"f79c3e09\u002d677c-4bbd-a479-3f349cb785e7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        (t.DecimalType(9, 2), r"\u002d1.25", "-1.25"),
    ],
    ids=lambda value: str(value) if isinstance(value, t.IcebergType) else None,
)
def test_the_loop_accepts_values_with_escapes(kind: t.IcebergType, text: str, plain: str) -> None:
    decoder = JsonDecoder(Schema(t.NestedField(1, "v", kind)), {})
    rows, flags, _ = decoder.read_in_loop(BinaryColumn.of([f'{{"v":"{value}"}}'.encode() for value in (text, plain)]))
    assert not (flags & 1).any()
    assert rows["v"][0] == rows["v"][1]


def test_decoder_memory_grows_with_the_content_of_the_records() -> None:
    """Elements, entries and escaped text beyond what there is room for at first, in the middle of a chunk."""
    values = [json.dumps({"ab": {f"é{k}": ["\n" * 9] * 50 for k in range(i % 7)}}).encode() for i in range(300)]
    decoded = JsonDecoder(NESTED, {})(RecordChunk.of_values(values))
    assert [dict(m) for m in decoded.rows["ab"].to_pylist()] == [json.loads(v)["ab"] for v in values]


def test_the_compiled_loop_skips_a_record_without_a_trailing_newline() -> None:
    column = BinaryColumn(np.frombuffer(b'{"c11":"x"}', np.uint8), np.array([0]), np.array([11]))
    assert JsonDecoder(FLAT, {}).read_in_loop(column)[1].tolist() == [1]


def check_many(seeds: int) -> int:
    """Check the law; of how many records the loop is sure."""
    sure = 0
    for plain, seed in itertools.product((FLAT, NESTED), range(seeds)):
        schema, units, hidden = held(plain, seed)
        values = made(schema, seed, 40, units)
        check(schema, values, units, hidden)
        sure += len(values) - int((JsonDecoder(schema, units).read_in_loop(BinaryColumn.of(values))[1] & 1).sum())
    return sure


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:2]
import importlib.util
spec = importlib.util.spec_from_file_location("loop_test", sys.argv[2])
test = importlib.util.module_from_spec(spec)
sys.modules["loop_test"] = test
spec.loader.exec_module(test)
print(test.check_many(int(sys.argv[3])))
"""


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_no_index_is_out_of_bounds_whatever_a_record_holds(tmp_path: Path) -> None:
    """Numba checks each index in a separate compilation."""
    environment = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM, str(Path.cwd()), __file__, "200"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 500
