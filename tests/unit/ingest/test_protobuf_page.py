"""The page on Protobuf's columns is correct: tests each pair of its table, and each value of values/protobuf.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.ingest.calendar_limits import OUT_OF_RANGE, find_out_of_range
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.shaper import range_error_text
from frazil.spec import iceberg
from frazil.spec.load import validate_stream
from tests.type_tables import COLUMNS, written_types

PAGE = Path("tests/unit/ingest/values/protobuf.md").read_text()
ROWS = re.findall(
    r"^\| `([^|]+)` \| (?:`([0-9a-f ]+)`|\*nothing\*) \| `([^|]+?)(?:, unit: (\w+))?` \| (.+) \|$", PAGE, re.MULTILINE
)
TEXT = """syntax = "proto3";
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
enum E { NEW = 0; PAID = 1; }
message In { int32 a = 1; string b = 2; }
"""


def test_every_row_of_the_types_page_is_tested() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    headings = [line for line in rows if line.endswith("| column `x` |")]
    assert len(rows) - len(headings) == len(ROWS) > 60


@pytest.mark.parametrize(("written", "octets", "declared", "unit", "outcome"), ROWS)
def test_a_value_is_converted_as_its_row_of_the_documentation_says(
    written: str, octets: str, declared: str, unit: str, outcome: str
) -> None:
    assert becomes(written, octets, declared, unit) == outcome


@pytest.mark.parametrize(("written", "filled"), written_types("protobuf-to-columns.md"))
def test_a_written_type_fills_exactly_the_columns_of_its_documentation_row(written: str, filled: set[str]) -> None:
    octets = next(row[1] for row in ROWS if row[0] == written and row[1] and "Invalid" not in row[4])
    fills = {word for word, column in COLUMNS.items() if "cannot fill" not in becomes(written, octets, column, "")}
    assert fills == filled


def becomes(written: str, octets: str, declared: str, unit: str) -> str:
    event_time = {"column": "x", "unit": unit} if unit else "at"
    columns = {"x": declared} if unit else {"x": declared, "at": "timestamptz"}
    stream = {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "broker:9092"},
        "table": "a.b",
        "schema": columns,
        "event-time": event_time,
        "coordinates": False,
        "complete": "none",
    }
    schema = iceberg.table_schema(validate_stream(stream, Path("s.yaml")))
    units = {schema.find_field("x").field_id: unit} if unit else {}
    value = bytes.fromhex(octets)
    text = f"{TEXT} message R {{ {written} x = 1; }}"
    decoded = create_decoder({"type": "protobuf", "schema-text": text, "message": "R"}, schema, units)(
        RecordChunk.of_values([value])
    )
    if decoded.rejections:
        (rejection,) = decoded.rejections
        return f"dead letter `{rejection.error_class}`: `{rejection.error}`"
    if beyond := find_out_of_range(decoded.rows):
        words = range_error_text(beyond[0], value, quote=lambda _, __: None, units={})
        return f"dead letter `{OUT_OF_RANGE}`: `{words}`"
    found = decoded.rows["x"].to_pylist()[0]
    return f"`{found.hex(' ') if isinstance(found, bytes) else found}`"
