"""A value that an update left unchanged is kept, for each of Debezium's placeholders."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import fastavro
import pytest

from frazil.ingest.changes import OMITTED_COLUMNS
from tests.unit.ingest.test_envelope import ROW, SPEC, decode, event, wrapped

VALUES = Path("tests/unit/ingest/values/placeholders.md").read_text()
FORMS = re.findall(r"^\| .+? \| `([^`]+)` \| `(.+?)` \|$", VALUES, re.MULTILINE)
X = 11
"""The id of the column `x`."""
PLACEHOLDER = "__debezium_unavailable_value"


def of(declared: str, *events: dict[str, Any], **envelope: Any) -> Any:
    schema = {**SPEC["schema"], "x": declared}  # type: ignore[dict-item]
    if not envelope:
        return decode([*events], schema=schema)
    form = {"type": "json", "envelope": {**SPEC["source"]["format"]["envelope"], **envelope}}  # type: ignore[index]
    return decode([*events], schema=schema, source={**SPEC["source"], "format": form})  # type: ignore[dict-item]


def update(x: Any, **parts: Any) -> dict[str, Any]:
    return event("u", after={**ROW, "x": x}, **parts)


def others(value: Any) -> list[Any]:
    """Return values that resemble a placeholder but are not one."""
    if isinstance(value, list):
        return [[], [*value, value[0]], [None, *value[1:]], value[1:] or [None]]
    return [{}, {**value, "": ""}, dict.fromkeys(value, "")] if isinstance(value, dict) else [""]


def test_the_placeholder_table_covers_all_forms() -> None:
    assert len(FORMS) == 10


@pytest.mark.parametrize(("declared", "form"), FORMS)
def test_json_recognises_the_unavailable_value_placeholder_in_the_form_of_its_type(declared: str, form: str) -> None:
    value = json.loads(form)
    reported = [value, None, *(v for v in others(value) if declared != "list<uuid>" or v is None)]
    before = {"id": 1}
    found = of(declared, *(update(v, before=before) for v in [*reported, value]))
    assert found.rejections == []
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[X], *[None] * (len(reported) - 1), [X]]
    values = found.rows["x"].to_pylist()
    assert values[0] is values[-1] is values[1] is None
    assert None not in values[2:-1]


AVRO: dict[str, Any] = {
    "string": "string",
    "binary": "bytes",
    "map<string, string>": {"type": "map", "values": ["null", "string"]},
    "list<string>": {"type": "array", "items": ["null", "string"]},
    "list<binary>": {"type": "array", "items": ["null", "bytes"]},
    "list<uuid>": {"type": "array", "items": ["null", "string"]},
    "list<int>": {"type": "array", "items": ["null", "int"]},
    "list<long>": {"type": "array", "items": ["null", "long"]},
    "list<date>": {"type": "array", "items": ["null", "int"]},
}


@pytest.mark.parametrize(("declared", "form"), FORMS)
def test_avro_recognises_the_unavailable_value_placeholder(declared: str, form: str) -> None:
    value = json.loads(form)
    if "binary" in declared:
        value = [base64.b64decode(v) for v in value] if isinstance(value, list) else base64.b64decode(value)
    found = of_avro(declared, AVRO[declared], {"id": 1, "x": value})
    assert found.rejections == []
    assert (found.rows["x"].to_pylist(), found.rows[OMITTED_COLUMNS].to_pylist()) == ([None], [[3]])


def of_avro(declared: str, x: Any, after: dict[str, Any], **names: Any) -> Any:
    """An update without `before`, in a written schema that has `x` of this type, unless it is None."""
    state: dict[str, Any] = {"type": "record", "name": "V", "fields": [{"name": "id", "type": "long"}]}
    if x is not None:
        state["fields"].append({"name": "x", "type": ["null", x], **names})
    fields = [{"name": "before", "type": ["null", state]}, {"name": "after", "type": ["null", "V"]}]
    fields += [{"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]}]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    out = io.BytesIO()
    written = {"before": None, "after": after, "op": "u", "ts_ms": 5}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), written)
    envelope = {"metadata": {"said_at": "ts_ms"}}
    source = {
        **SPEC["source"],  # type: ignore[dict-item]
        "format": {"type": "avro", "schema-text": json.dumps(schema), "envelope": envelope},
    }
    columns = {"id": "long not null", "said_at": {"type": "timestamptz", "unit": "ms"}, "x": declared}
    return decode([out.getvalue()], source=source, schema=columns, **{"order-by": None})


@pytest.mark.parametrize(
    ("declared", "form"),
    [
        ("string", base64.b64encode(PLACEHOLDER.encode()).decode()),
        ("string", PLACEHOLDER.encode().hex()),
        ("list<string>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
        ("list<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("list<double>", [*PLACEHOLDER.encode()]),
        ("list<decimal(5, 1)>", [*PLACEHOLDER.encode()]),
    ],
)
def test_an_unavailable_value_is_omitted_for_every_column_type(declared: str, form: Any) -> None:
    assert of(declared, update(form)).rows[OMITTED_COLUMNS].to_pylist() == [[X]]


def test_another_declared_placeholder_is_recognised_instead_of_the_default() -> None:
    found = of("list<int>", update([-61, -92]), update([*PLACEHOLDER.encode()]), unavailable="ä")
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[X], None]
    found = of("list<string>", update(["ä"]), update([PLACEHOLDER]), unavailable="ä")
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[X], None]


def test_an_unavailable_hstore_placeholder_in_a_struct_is_recognized() -> None:
    values = [{PLACEHOLDER: PLACEHOLDER}, {"a": "x", PLACEHOLDER: "y"}, {"a": "x"}, {}, None]
    found = of("struct<a: string>", *map(update, values))
    assert found.rejections == []
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[X], None, None, None, None]
    assert found.rows["x"].to_pylist() == [None, {"a": "x"}, {"a": "x"}, {"a": None}, None]
    found = of("struct<a: string>", update({"a": "x"}), unavailable='"')
    assert found.rows["x"].to_pylist() == [{"a": "x"}]


@pytest.mark.parametrize("declared", ["list<double>", "list<boolean>", "list<list<int>>", "struct<wkb: binary>"])
def test_a_null_that_may_stand_for_an_unchanged_value_is_a_dead_letter(declared: str) -> None:
    before = {"id": 1, "x": None}
    events = [
        update(None),
        event("c", after={**ROW, "x": None}),
        update(None, before=before),
        event("d", before=before),
    ]
    found = of(declared, *events)
    (rejection,) = found.rejections
    assert (rejection.index, rejection.error_class) == (0, "UnavailableValue")
    assert rejection.error.startswith("after.x: null, but the connector also writes null for a large value")
    assert found.record_indexes.tolist() == [1, 2, 3]


@pytest.mark.parametrize("form", [lambda value: value, wrapped], ids=["plain", "with its schema"])
@pytest.mark.parametrize("framing", ["none", "confluent"])
def test_a_missing_field_is_not_an_unavailable_value(form: Any, framing: str) -> None:
    events = [form(e) for e in (event("u", after=ROW), update([1.5]), update(None), event("u", after=ROW, more=1))]
    source = {**SPEC["source"], "format": {**SPEC["source"]["format"], "framing": framing}}  # type: ignore[dict-item,index]
    frame = bytes(5) if framing == "confluent" else b""
    values = [frame + json.dumps(e).encode() for e in [*events, form(event("u", after=ROW, n=float("nan")))]]
    found = decode(values, schema={**SPEC["schema"], "x": "list<double>"}, source=source)  # type: ignore[dict-item]
    assert [(r.index, r.error_class) for r in found.rejections] == [(2, "UnavailableValue")]
    assert found.rows["x"].to_pylist() == [None, [1.5], None, None]


def test_the_written_schema_determines_which_fields_are_missing() -> None:
    doubles = {"type": "array", "items": "double"}
    assert of_avro("list<double>", None, {"id": 1}).rejections == []
    assert of_avro("list<double>", doubles, {"id": 1, "x": [1.5]}).rejections == []
    (rejection,) = of_avro("list<double>", doubles, {"id": 1, "x": None}).rejections
    assert rejection.error_class == "UnavailableValue"
    (rejection,) = of_avro("list<double>", doubles, {"id": 1, "y": None}, name="y", aliases=["x"]).rejections
    assert rejection.error_class == "UnavailableValue"


def test_a_key_equal_to_the_placeholder_text_stays_the_key() -> None:
    schema = {**SPEC["schema"], "id": "string not null"}  # type: ignore[dict-item]
    state = {"id": PLACEHOLDER, "name": PLACEHOLDER}
    found = decode([event("u", after=state), event("d", before=state)], schema=schema)
    assert found.rejections == []
    assert found.rows["id"].to_pylist() == [PLACEHOLDER] * 2
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[2], None]


def test_a_row_that_the_event_makes_has_no_value_to_keep() -> None:
    """A changed primary key is a delete and a create; PostgreSQL may not log a large value of the new row."""
    made = event("c", after={**ROW, "name": PLACEHOLDER})
    found = decode([made, event("c", after=ROW), event("d", before={"id": 1})])
    (rejection,) = found.rejections
    assert (rejection.index, rejection.error_class) == (0, "UnavailableValue")
    assert rejection.error.startswith("after.name: the placeholder for a value that the event omits")
    assert found.record_indexes.tolist() == [1, 2]


def test_a_placeholder_text_in_a_snapshot_read_is_a_real_value() -> None:
    found = decode([event("r", after={**ROW, "name": PLACEHOLDER}), event("r", after=ROW)])
    assert found.rejections == []
    assert found.rows["name"].to_pylist() == [PLACEHOLDER, "a"]
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [None, None]


@pytest.mark.parametrize("declared", ["string", "list<string>", "list<int>", "map<string, string>", "struct<a: int>"])
def test_a_plain_null_is_not_taken_for_the_unavailable_value_placeholder(declared: str) -> None:
    assert of(declared, update(None)).rejections == []
