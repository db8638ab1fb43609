"""The page on JSON's columns is correct: tests each of its rows, and each value of values/json.md."""

from __future__ import annotations

import gzip
import json
import re
from datetime import date, time
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.ingest.calendar_limits import OUT_OF_RANGE, find_out_of_range
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder, create_quoter
from frazil.ingest.shaper import range_error_text
from frazil.spec import iceberg
from frazil.spec.load import validate_stream
from tests.unit.ingest.test_json_texts import declared as of_columns
from tests.unit.ingest.test_json_texts import decode

PAGE = Path("docs/reference/json-to-columns.md").read_text().split("## Dead letters")[0]
REST = PAGE.split("## Fields without a column\n")[1].split("\n## ")[0]
FIELDS = PAGE.split("## Fields elsewhere in the record\n")[1].split("\n## ")[0]
CASTS = PAGE.split("## Values of other forms\n")[1].split("\n## Records without")[0]
CASTS_AND_MORE = CASTS + Path("tests/unit/ingest/values/casts.md").read_text()
PROSE = (
    PAGE.replace(REST, "").replace(FIELDS, "").replace(CASTS, "") + Path("tests/unit/ingest/values/json.md").read_text()
)
COLUMN_ROWS = re.findall(
    r"^\| `([a-z][^`|]*)`(?:, `(?:unit|as): (.+?)`)? \| (?:`(.+)`|\*no field\*) \| (.+) \|$", PROSE, re.MULTILINE
)
RECORD_ROWS = re.findall(r"^\| (`[^|]+`|\*[^|]+\*) \| (`[^|]+`|dead letter [^|]+) \|$", PROSE, re.MULTILINE)
NOT_PRINTABLE = {
    "*no value (a tombstone)*": None,
    "*white space only*": b" \n",
    "*a byte that is not UTF-8*": b'{"x": 1, "y": "\xff"}',
    "*a byte order mark, then an object*": b'\xef\xbb\xbf{"x": 1}',
    "*an object in UTF-16*": '{"x": 1}'.encode("utf-16"),
    "*an object in UTF-32*": '{"x": 1}'.encode("utf-32"),
    "*an object that gzip compressed*": gzip.compress(b'{"x": 1}'),
    "*an object in Confluent's wire format*": b'\x00\x00\x00\x00\x07{"x": 1}',
    "*arrays nested 501 deep*": b'{"x": 1, "y": ' + b"[" * 501 + b"]" * 501 + b"}",
}


def test_every_row_of_the_documentation_page_is_tested() -> None:
    rows = [line for line in PROSE.splitlines() if line.startswith("| ") and "---" not in line]
    headings = [line for line in rows if line.endswith(("| in the table |", "| column `x` |"))]
    assert len(rows) - len(headings) == len(COLUMN_ROWS) + len(RECORD_ROWS) > 100


@pytest.mark.parametrize(("declared", "unit", "value", "outcome"), COLUMN_ROWS)
def test_a_column_value_is_converted_as_documented(declared: str, unit: str, value: str, outcome: str) -> None:
    record = f'{{"x": {value}}}' if value else "{}"
    assert _outcome(declared, unit, record.encode()) == outcome


@pytest.mark.parametrize(("value", "outcome"), RECORD_ROWS)
def test_a_record_is_converted_as_documented(value: str, outcome: str) -> None:
    record = NOT_PRINTABLE[value] if value in NOT_PRINTABLE else value.strip("`").encode()
    assert _outcome("int", "", record) == outcome


@pytest.mark.parametrize(("value", "kept"), re.findall(r"^\| `([^`]+)` \| (`[^`]+`|\*null\*) \|$", REST, re.MULTILINE))
def test_fields_without_a_column_are_stored_in_rest_as_documented(value: str, kept: str) -> None:
    columns = {"id": "int", "place": "struct<city: string>", "more": "string", "at": "timestamptz"}
    source = {"topics": ["t"], "format": "json", "bootstrap-servers": "broker:9092"}
    stream = {"name": "s", "source": source, "table": "a.b", "schema": columns, "event-time": "at", "rest": "more"}
    spec = validate_stream({**stream, "coordinates": False, "complete": "none"}, Path("s.yaml"))
    schema = iceberg.table_schema(spec)
    units = {schema.find_field(name).field_id: unit for name, unit in spec.units.items()}
    (found,) = create_decoder("json", schema, units)(RecordChunk.of_values([value.encode()])).rows["more"].to_pylist()
    assert kept == ("*null*" if found is None else f"`{found}`")


@pytest.mark.parametrize(
    ("declared", "record", "outcome"),
    [
        *re.findall(r"^\| `(\{.+?\})` \| `(.+)` \| (.+) \|$", FIELDS, re.MULTILINE),
        *(
            (declared, f'{{"x": {value}}}' if value else "{}", outcome)
            for declared, value, outcome in re.findall(
                r"^\| `(\{.+?\})`(?:, also .+)? \| (?:`(.+)`|\*no field\*) \| (.+) \|$", CASTS_AND_MORE, re.MULTILINE
            )
        ),
    ],
)
def test_a_field_with_column_options_is_converted_as_documented(declared: str, record: str, outcome: str) -> None:
    column = yaml.safe_load(declared)
    decoded = decode([record.encode()], of_columns({"x": column}))
    if decoded.rejections:
        ((_, error_class, error),) = decoded.rejections
        assert outcome == f"dead letter `{error_class}`: `{error}`"
    else:
        (found,) = decoded.rows["x"].to_pylist()
        assert outcome == ("*null*" if found is None else f"`{found}`")
    as_usual = decode([record.encode()], of_columns({"x": {**column, "cast": "strict", "rounding": None}}))
    assert (sum(decoded.drift.cast.values()) == 1) == (as_usual.rejections != [] and decoded.rejections == [])


def _outcome(declared: str, unit: str, record: bytes | None) -> str:
    as_json = "json" in unit
    if as_json:
        required = declared.endswith(" not null")
        how = dict([unit.strip("{}").split(": ")]) if unit.startswith("{") else unit
        x: Any = {"type": declared.removesuffix(" not null"), "as": how, "required": required}
    event_time = {"column": "x", "unit": unit} if unit and not as_json else "at"
    columns = {"x": x, "at": "timestamptz"} if as_json else {"x": declared, **({} if unit else {"at": "timestamptz"})}
    source = {"topics": ["t"], "format": "json", "bootstrap-servers": "broker:9092"}
    stream = {"name": "s", "source": source, "table": "a.b", "schema": columns, "event-time": event_time}
    spec = validate_stream({**stream, "coordinates": False, "complete": "none"}, Path("s.yaml"))
    schema = iceberg.table_schema(spec)
    units = {schema.find_field(name).field_id: unit for name, unit in spec.units.items()}
    decoded = create_decoder("json", schema, units)(RecordChunk.of_values([record]))
    if decoded.rejections:
        (rejection,) = decoded.rejections
        return f"dead letter `{rejection.error_class}`: `{rejection.error}`"
    if beyond := find_out_of_range(decoded.rows):
        words = range_error_text(beyond[0], record, quote=create_quoter("json"), units={"x": unit} if unit else {})
        return f"dead letter `{OUT_OF_RANGE}`: `{words}`"
    return f"`{_shown(decoded.rows['x'].to_pylist()[0])}`"


def _shown(value: Any) -> str:  # noqa: PLR0911 - a table
    """A column's value as the page writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case bytes():
            return f"0x{value.hex()}"
        case date() | time():
            return value.isoformat()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return "{" + ", ".join(f"{name}: {_shown(inner)}" for name, inner in value.items()) + "}"
        case [tuple(), *_]:  # a map
            return _shown(dict(value))
        case list():
            return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
