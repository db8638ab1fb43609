"""The formats string, bytes and csv, compared with Python's own parsers."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder, create_quoter
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.load import validate_stream


def schema(*kinds: IcebergType, required: bool = False) -> Schema:
    return Schema(*(NestedField(i, f"c{i}", kind, required=required) for i, kind in enumerate(kinds, 1)))


def csv_format(columns: int, **changes: Any) -> dict[str, Any]:
    return {"type": "csv", "columns": [f"c{i}" for i in range(1, columns + 1)], **changes}


def outcomes(decoded: DecodedChunk, count: int) -> list[Any]:
    """The row of each record, or the class of its error; each record has exactly one."""
    found: dict[int, Any] = {r.index: r.error_class for r in decoded.rejections}
    for place, row in zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True):
        assert place not in found
        found[place] = tuple(row.values())
    return [found[i] for i in range(count)]


TEXTS = create_decoder(csv_format(3), schema(*[StringType()] * 3), {})
SEMICOLONS = create_decoder(csv_format(3, delimiter=";", quote="'", null="NULL"), schema(*[StringType()] * 3), {})
UNQUOTED = create_decoder(csv_format(3, quote=None), schema(*[StringType()] * 3), {})
TEXT = create_decoder({"type": "string", "column": "c1"}, schema(StringType()), {})
BYTES = create_decoder({"type": "bytes", "column": "c1"}, schema(BinaryType()), {})
NEEDED = create_decoder({"type": "string", "column": "c1"}, schema(StringType(), required=True), {})


@given(st.lists(st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode), max_size=20))
def test_a_plain_text_value_becomes_a_row_exactly_if_python_can_decode_it(values: list[bytes | None]) -> None:
    def text(value: bytes | None) -> object:
        try:
            return (None if value is None else value.decode(),)
        except UnicodeDecodeError:
            return "InvalidUtf8"

    count = len(values)
    assert outcomes(TEXT(RecordChunk.of_values(values)), count) == [text(value) for value in values]
    assert outcomes(BYTES(RecordChunk.of_values(values)), count) == [(value,) for value in values]
    expected = ["MissingRequired" if value is None else text(value) for value in values]
    assert outcomes(NEEDED(RecordChunk.of_values(values)), count) == expected


def test_the_position_of_invalid_utf8_is_reported() -> None:
    (rejection,) = TEXT(RecordChunk.of_values([b"fine", "é".encode() * 8 + b"\xc3"])).rejections
    assert rejection.error == "c1: the value is not UTF-8 (byte 16): write UTF-8, or make the column binary"


FIELD = st.text(st.characters(codec="utf-8") | st.sampled_from("\"',; \\\n\r\t\x01é"), max_size=12)


@given(st.lists(st.lists(FIELD, min_size=1, max_size=5), max_size=12), st.sampled_from(["", "\n", "\r\n"]))
def test_csv_lines_written_by_python_are_read_as_python_reads_them(lines: list[list[str]], end: str) -> None:
    written = []
    for fields in lines:
        text = io.StringIO()
        csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerow(fields)
        written.append(text.getvalue().encode())
    expected = [tuple(fields) if len(fields) == 3 else "WrongFieldCount" for fields in lines]
    assert outcomes(TEXTS(RecordChunk.of_values(written)), len(written)) == expected


BITS = st.lists(st.sampled_from(["a", "bc", "é", ";", "'", "''", "NULL", " ", "\\", '"', ","]), max_size=14)


@given(st.lists(BITS.map("".join), max_size=12))
def test_any_line_is_read_as_python_reads_it_or_is_a_dead_letter(lines: list[str]) -> None:
    found = outcomes(SEMICOLONS(RecordChunk.of_values([line.encode() for line in lines])), len(lines))
    for line, outcome in zip(lines, found, strict=True):
        if not line:
            assert outcome == "Empty"
            continue
        try:
            (fields,) = csv.reader([line], delimiter=";", quotechar="'", strict=True)
        except csv.Error:
            assert outcome in {"InvalidCsv", "WrongFieldCount"}
            continue
        # Python's reader does not say which field was quoted: a quoted NULL is text.
        nulls = [None if field == "NULL" and "'NULL'" not in line else field for field in fields]
        assert outcome == (tuple(nulls) if len(fields) == 3 else "WrongFieldCount") or "'NULL'" in line


@given(st.lists(st.lists(st.sampled_from(["a", '"', ",", "é", ""]), max_size=9).map("".join), max_size=9))
def test_without_a_quote_a_line_is_split_at_each_delimiter(lines: list[str]) -> None:
    found = outcomes(UNQUOTED(RecordChunk.of_values([line.encode() for line in lines])), len(lines))
    for line, outcome in zip(lines, found, strict=True):
        fields = tuple(field or None for field in line.split(","))
        assert outcome == ("Empty" if not line else fields if len(fields) == 3 else "WrongFieldCount")


FIELDS_OF_TYPES = [
    (LongType(), b"007", 7),
    (LongType(), b" +12 ", 12),
    (LongType(), b"-0", 0),
    (LongType(), b'"5"', 5),
    (LongType(), b"5x", "TypeMismatch"),
    (LongType(), b"1.5", "TypeMismatch"),
    (LongType(), b'"5"",""c1"":""6"', "TypeMismatch"),
    (LongType(), b"--5", "TypeMismatch"),
    (LongType(), b"9223372036854775808", "OutOfRange"),
    (DoubleType(), b"1e3", 1000.0),
    (DoubleType(), b"-Infinity", float("-inf")),
    (BooleanType(), b"True", True),
    (BooleanType(), b"0", False),
    (BooleanType(), b"yes", "TypeMismatch"),
    (DecimalType(5, 2), b"1.25", "1.25"),
    (StringType(), b" a ", " a "),
    (StringType(), b'""', ""),
    (StringType(), b"", None),
    (StringType(), b"a\0b", "a\0b"),
    (BinaryType(), b"aGk=", b"hi"),
]


@pytest.mark.parametrize(("kind", "field", "expected"), FIELDS_OF_TYPES)
def test_a_csv_field_is_converted_to_the_type_of_its_column(kind: IcebergType, field: bytes, expected: object) -> None:
    decode = create_decoder(csv_format(2), schema(kind, StringType()), {})
    (outcome,) = outcomes(decode(RecordChunk.of_values([field + b",x"])), 1)
    value = outcome if isinstance(outcome, str) else outcome[0]
    assert value == expected or str(value) == expected


def test_a_time_is_read_as_a_number_in_its_unit_or_as_text() -> None:
    decode = create_decoder(csv_format(2), schema(TimestamptzType(), TimestamptzType()), {1: "ms"})
    ((first, second),) = outcomes(decode(RecordChunk.of_values([b"1000,1970-01-01T00:00:01Z"])), 1)
    assert first == second
    assert first.timestamp() == 1


def test_a_field_without_a_column_is_skipped_and_a_column_without_a_field_is_null() -> None:
    decode = create_decoder({"type": "csv", "columns": ["c2", "_", "c1"]}, schema(*[LongType()] * 3), {})
    assert outcomes(decode(RecordChunk.of_values([b"2,x,1"])), 1) == [(1, 2, None)]


def test_an_invalid_csv_line_is_reported() -> None:
    lines = [b"a,b", b'"a', b'"a"b,c,d', b"a,b,c\nd,e,f", None, b"a,b,\xff"]
    errors = {r.index: (r.error_class, r.error) for r in TEXTS(RecordChunk.of_values(lines)).rejections}
    assert errors == {
        0: ("WrongFieldCount", "the line has 2 fields, but 3 are declared: c1, c2, c3"),
        1: ("InvalidCsv", 'a field begins with ", but does not end with "'),
        2: ("InvalidCsv", 'text follows a closing "; within a quoted field, write " twice'),
        3: ("InvalidCsv", "the value has several lines: write one record for each line"),
        4: ("Tombstone", "the message has no value"),
        5: ("InvalidUtf8", "the value is not UTF-8 (byte 4)"),
    }


def test_a_chunk_is_read_in_pieces_and_a_huge_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.ingest.formats.csv.JSON_BUFFER_BYTES", 400)
    decode = create_decoder(csv_format(1), schema(StringType()), {})
    values = [b"x" * (i % 70 + 1) if i != 50 else b'"' + b"\x01" * 5000 + b'"' for i in range(200)]
    found = outcomes(decode(RecordChunk.of_values(values)), 200)
    assert found == [(value.strip(b'"').decode(),) for value in values]


def test_an_empty_chunk_has_the_columns_of_the_table() -> None:
    for decode in (TEXTS, TEXT):
        assert decode(RecordChunk.of_values([])).rows.num_rows == 0


def test_an_error_quotes_a_field_as_it_was_sent() -> None:
    assert create_quoter(csv_format(2))(b'"a ""b""",99999-01-01', ["c2"]) == "the field '99999-01-01'"


def test_a_column_that_a_field_cannot_fill_is_refused_at_start() -> None:
    from pyiceberg.types import TimestampNanoType

    with pytest.raises(SpecError, match=r"schema\.c1"):
        create_decoder(csv_format(1), schema(TimestampNanoType()), {})


PAGE = Path("docs/reference/plain-formats.md").read_text().split("## `csv`")[1]
PAGE += Path("tests/unit/ingest/values/csv.md").read_text()
ROWS = re.findall(r"^\| `([a-z][^`]*)` \| `([^`]*)` \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_row_of_the_documentation_page_is_tested() -> None:
    assert len(ROWS) == len([line for line in PAGE.splitlines() if line.startswith("| ") and "`c1`" not in line]) > 20


@pytest.mark.parametrize(("declared", "value", "said"), ROWS)
def test_a_line_is_converted_as_documented(declared: str, value: str, said: str) -> None:
    stream = {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "b:1", "format": "csv"},
        "table": "a.b",
        "schema": {"c1": declared, "c2": "string"},
        "event-time": "kafka_timestamp",
    }
    spec = validate_stream(stream, Path("s.yaml"))
    decode = create_decoder(dump_format(spec.value_format), record_schema(iceberg.table_schema(spec), True), {})
    (outcome,) = outcomes(decode(RecordChunk.of_values([value.encode()])), 1)
    if said.startswith("dead letter"):
        assert said == f"dead letter `{outcome}`"
    else:
        assert outcome[0] == {"null": None, "an empty text": ""}.get(said, outcome[0])
        assert said in {"null", "an empty text", f"`{outcome[0]}`"}
