"""The page has the forms of values that each format accepts; run this module to print them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from pydantic import ValidationError

from frazil.errors import SpecError
from frazil.ingest.formats.protobuf.schema import message_of
from tests.unit.ingest.test_json_texts import avro, declared, decode

PAGE = Path("docs/reference/json-to-columns.md")
REFUSAL = re.compile("cannot|not supported|does not|accepts only")
HEADING = "## Forms of values, by format\n"
AVRO_TYPES = {str: "string", float: "double", int: "long", bool: "boolean"}
PROTOBUF_TYPES = {str: "string", float: "double", int: "int64", bool: "bool"}
EPOCH = "1970-01-01 00:00:00+00:00"
FORMS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "an integer as text, in `long`": ("7", {"type": "long"}, 7),
    "`7.0` in `long`": (7.0, {"type": "long"}, 7),
    "a number as text, in `double`": ("-1.5e3", {"type": "double"}, -1500.0),
    '`"true"` in `boolean`': ("true", {"type": "boolean"}, True),
    "`1` in `boolean`": (1, {"type": "boolean"}, True),
    "a number in `string`": (5, {"type": "string"}, "5"),
    "a boolean in `string`": (True, {"type": "string"}, "true"),
    "a number as text, in `decimal`": ("1.50", {"type": "decimal(5, 2)"}, "1.50"),
    "`1.235` in `decimal(5, 2)`, with `rounding`": ("1.235", {"type": "decimal(5, 2)", "rounding": "half-up"}, "1.24"),
    "milliseconds in `timestamptz`, with `unit`": (0, {"type": "timestamptz", "unit": "ms"}, EPOCH),
    "milliseconds as text, with `unit`": ("0", {"type": "timestamptz", "unit": "ms"}, EPOCH),
    "an ISO 8601 time, in `timestamptz`": ("1970-01-01T00:00:00Z", {"type": "timestamptz"}, EPOCH),
    "an ISO 8601 time, with `unit`": (
        "1970-01-01T00:00:00Z", {"type": "timestamptz", "unit": "ms"}, EPOCH
    ),
    "an ISO 8601 date, in `date`": ("1970-01-02", {"type": "date"}, "1970-01-02"),
    "a value of `null-if`": ("N/A", {"type": "long", "null-if": ["N/A"]}, None),
    "an empty or missing value, with `default`": (None, {"type": "long", "default": 3}, 3),
}  # fmt: skip


def encoded(form: str, value: Any) -> tuple[Any, bytes]:
    """Return a declared format, and a record of it with the field x."""
    if form == "JSON":
        return "json", json.dumps({} if value is None else {"x": value}).encode()
    if form == "CSV":
        text = "" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
        return {"type": "csv", "columns": ["y", "x", "at"]}, f"1,{text},".encode()
    if form == "Avro":
        kind = ["null", AVRO_TYPES.get(type(value), "long")]
        schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
        return {"type": "avro", "schema-text": json.dumps(schema)}, avro({"x": value}, schema)
    text = f'syntax = "proto3"; message R {{optional {PROTOBUF_TYPES.get(type(value), "int64")} x = 1;}}'
    message = GetMessageClass(message_of(text, (), "R"))(**({} if value is None else {"x": value}))
    return {"type": "protobuf", "schema-text": text, "message": "R"}, message.SerializeToString()


def accepts(form: str, value: Any, column: dict[str, Any], expected: Any) -> bool:
    declaration, record = encoded(form, value)
    columns = {"x": column, **({"y": "int"} if form == "CSV" else {})}
    try:
        decoded = decode([record], declared(columns, declaration))
    except (SpecError, ValidationError) as error:
        if REFUSAL.search(str(error)):
            return False
        raise
    if decoded.rejections:
        return False
    (found,) = decoded.rows.column("x").to_pylist()
    assert (str(found) if isinstance(expected, str) else found) == expected, (form, value, column, found)
    return True


def answer(form: str, value: Any, column: dict[str, Any], expected: Any) -> str:
    lenient = accepts(form, value, {**column, "cast": "lenient"}, expected)
    if accepts(form, value, {k: v for k, v in column.items() if k != "rounding"}, expected):
        return "yes"
    return "`cast`" if lenient else "no"


def table() -> str:
    formats = ("JSON", "Avro", "CSV")
    rows = ["| the value | JSON | Avro, Protobuf | CSV |", f"|{'---|' * (len(formats) + 1)}"]
    rows += [f"| {name} | {' | '.join(answer(form, *given) for form in formats)} |" for name, given in FORMS.items()]
    return "\n".join(rows)


@pytest.mark.parametrize("form", FORMS)
def test_avro_and_protobuf_accept_the_same_forms(form: str) -> None:
    assert answer("Avro", *FORMS[form]) == answer("Protobuf", *FORMS[form])


def test_the_docs_list_the_forms_that_each_format_accepts() -> None:
    shown = PAGE.read_text().split(HEADING)[1]
    assert table() in shown


if __name__ == "__main__":
    print(table())
