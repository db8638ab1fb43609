"""The page on how Protobuf becomes columns is true: each row of its tables is decoded as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.ingest.calendar_limits import OUT_OF_RANGE, out_of_range
from frazil.ingest.chunk import Chunk
from frazil.ingest.formats import decoder
from frazil.ingest.shape import told
from frazil.spec import iceberg
from frazil.spec.load import validate_stream

FILE = Path("docs/reference/protobuf-to-columns.md")
PAGE, _ = FILE.read_text().split("## Dead letters") if FILE.exists() else ("", "")
ROWS = re.findall(
    r"^\| `([^|]+)` \| (?:`([0-9a-f ]+)`|\*nothing\*) \| `([^|]+?)(?:, unit: (\w+))?` \| (.+) \|$", PAGE, re.MULTILINE
)
TEXT = """syntax = "proto3";
import "google/protobuf/any.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
enum E { NEW = 0; PAID = 1; }
message In { int32 a = 1; string b = 2; }
"""


def test_every_row_of_the_page_is_tried() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    headings = [line for line in rows if line.endswith("| column `x` |")]
    assert len(rows) - len(headings) == len(ROWS) > 60


@pytest.mark.parametrize(("written", "octets", "declared", "unit", "outcome"), ROWS)
def test_a_value_becomes_what_the_page_says(written: str, octets: str, declared: str, unit: str, outcome: str) -> None:
    assert becomes(written, octets, declared, unit) == outcome


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
    schema = iceberg.schema(validate_stream(stream, Path("s.yaml")))
    units = {schema.find_field("x").field_id: unit} if unit else {}
    value = bytes.fromhex(octets)
    text = f"{TEXT} message R {{ {written} x = 1; }}"
    decoded = decoder({"type": "protobuf", "schema-text": text, "message": "R"}, schema, units)(
        Chunk.of_values([value])
    )
    if decoded.rejections:
        (rejection,) = decoded.rejections
        return f"dead letter `{rejection.error_class}`: `{rejection.error}`"
    if beyond := out_of_range(decoded.rows):
        words = told(beyond[0], value, quote=lambda _, __: None, units={})
        return f"dead letter `{OUT_OF_RANGE}`: `{words}`"
    found = decoded.rows["x"].to_pylist()[0]
    return f"`{found.hex(' ') if isinstance(found, bytes) else found}`"
