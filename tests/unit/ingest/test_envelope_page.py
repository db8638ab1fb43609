"""The page on captured changes is correct: tests each of its types, and each value of values/debezium.md."""

from __future__ import annotations

import base64
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from frazil.ingest.changes import change_schema
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import create_decoder
from frazil.spec import iceberg
from frazil.spec.formats import dump_format
from frazil.spec.model import StreamSpec

SECTION = Path("docs/how-to/capture-changes.md").read_text().split("## Types")[1].split("\n## ")[0]
SECTION += Path("tests/unit/ingest/values/debezium.md").read_text()
ROWS = re.findall(
    r"^\| (.+?) \| (.*?) \| (?:`(.+?)`)? \| (?:`(.+?)`)? \| `([^`]+)` \| (dead letter|`.+?`)(?:, \w+)? \|$",
    SECTION,
    re.MULTILINE,
)


def test_every_row_of_the_envelope_page_is_tested() -> None:
    lines = [line for line in SECTION.splitlines() if line.startswith("| ") and "in the database" not in line]
    assert len(lines) == len(ROWS) > 35


@pytest.mark.parametrize(("json_value", "declared", "outcome"), [(r[2], r[4], r[5]) for r in ROWS if r[2]])
@pytest.mark.parametrize("with_schema", [False, True])
def test_a_json_value_in_an_envelope_fills_its_column_as_documented(
    json_value: str, declared: str, outcome: str, *, with_schema: bool
) -> None:
    # As text: a decimal that JSON has as a number keeps its digits.
    event = f'{{"before": null, "after": {{"id": 1, "x": {json_value}}}, "op": "c", "ts_ms": 1}}'
    value = f'{{"schema": {{"type": "struct"}}, "payload": {event}}}' if with_schema else event
    assert became({"type": "json"}, declared, value.encode()) == outcome


@pytest.mark.parametrize(("row", "declared", "outcome"), [((r[2], r[3]), r[4], r[5]) for r in ROWS if r[3]])
def test_an_avro_value_in_an_envelope_fills_its_column_as_documented(
    row: tuple[str, str], declared: str, outcome: str
) -> None:
    written, _, own = row[1].partition(" of ")
    kind = json.loads(written)
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": ["null", kind]}]
    after = {"type": "record", "name": "Value", "fields": fields}
    fields = [{"name": "before", "type": ["null", after]}, {"name": "after", "type": ["null", "Value"]}]
    fields += [{"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]}]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    out = io.BytesIO()
    event = {"before": None, "after": {"id": 1, "x": of_avro(own or row[0] or '"1.50"', kind)}, "op": "c", "ts_ms": 1}
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain_longs(schema)), event)
    assert became({"type": "avro", "schema-text": json.dumps(schema)}, declared, out.getvalue()) == outcome


def of_avro(text: str, kind: Any) -> Any:
    """Return what an Avro writer accepts for a JSON value."""
    if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
        return Decimal(text)
    value = json.loads(text)
    if isinstance(kind, dict) and kind["type"] == "record":
        return {**value, "value": base64.b64decode(value["value"])}
    return base64.b64decode(value) if kind == "bytes" else value


def plain_longs(schema: Any) -> Any:
    """Return the schema without logical time types: the writer accepts the numbers themselves."""
    if isinstance(schema, list):
        return [plain_longs(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: plain_longs(v) for k, v in schema.items() if not (k == "logicalType" and v != "decimal")}


def became(of: dict[str, Any], declared: str, value: bytes) -> str:
    kind, *options = declared.split(", ") if not declared.startswith(("decimal", "struct")) else [declared]
    reported = dict(option.split(": ") for option in options)
    envelope = {"metadata": {"said_at": "ts_ms"}, **({"times": "iso"} if "times" in reported else {})}
    column = {"type": kind, "unit": reported["unit"]} if "unit" in reported else kind
    spec = StreamSpec.model_validate(
        {
            "name": "s",
            "source": {"topics": ["t"], "bootstrap-servers": "broker:9092", "format": {**of, "envelope": envelope}},
            "table": "a.b",
            "schema": {"id": "long not null", "x": column, "said_at": {"type": "timestamptz", "unit": "ms"}},
            "event-time": "said_at",
            "mode": "upsert",
            "key": "id",
        }
    )
    table = iceberg.table_schema(spec)
    units = {table.find_field(name).field_id: unit for name, unit in spec.units.items()}
    filled = record_schema(change_schema(table, spec.key), has_coordinates=True)
    decoded = create_decoder(dump_format(spec.value_format), filled, units)(RecordChunk.of_values([value]))
    return "dead letter" if decoded.rejections else f"`{decoded.rows['x'].to_pylist()[0]}`"
