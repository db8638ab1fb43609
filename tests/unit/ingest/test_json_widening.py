"""The wider or optional columns that would accept a rejected record, if such columns suffice."""

from __future__ import annotations

import json

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.schema_drift import SchemaDrift, StructOf, find_new_fields

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "f", FloatType()),
    NestedField(3, "d", DecimalType(4, 2)),
    NestedField(4, "s", StringType(), required=True),
    NestedField(
        5, "in", StructType(NestedField(6, "i", IntegerType()), NestedField(7, "r", StringType(), required=True))
    ),
    NestedField(8, "l", ListType(9, IntegerType(), element_required=False)),
    NestedField(10, "m", MapType(11, StringType(), 12, DecimalType(3, 0), value_required=False)),
    NestedField(13, "t", TimestamptzType()),
)


def drift(*values: bytes) -> SchemaDrift:
    return create_decoder("json", SCHEMA, {}, "full")(RecordChunk.of_values(values)).drift


@pytest.mark.parametrize(
    ("value", "wider", "optional"),
    [
        (b'{"s":"","i":2147483648}', {("i",): "long"}, set()),
        (b'{"s":"","f":1e39}', {("f",): "double"}, set()),
        (b'{"s":"","d":123.4}', {("d",): "decimal(5, 2)"}, set()),
        (b'{"s":"","in":{"i":-9e0,"r":""}}', {}, set()),
        (b'{"s":"","in":{"i":-2147483649,"r":""}}', {("in", "i"): "long"}, set()),
        (b'{"s":"","l":[1,null,3000000000]}', {("l", "element"): "long"}, set()),
        (b'{"s":"","m":{"a":1000,"b":100000,"c":null}}', {("m", "value"): "decimal(6, 0)"}, set()),
        (b'{"i":1}', {}, {("s",)}),
        (b'{"s":null,"in":{"i":3000000000}}', {("in", "i"): "long"}, {("s",), ("in", "r")}),
    ],
)
def test_schema_evolution_requests_the_types_that_would_hold_a_record(
    value: bytes, wider: dict[tuple[str, ...], str], optional: set[tuple[str, ...]]
):
    found = drift(b'{"s":"sound"}', value)
    assert (found.wider, found.optional) == (wider, optional)


@pytest.mark.parametrize(
    "value",
    [
        b'{"s":"","i":9223372036854775808}',
        b'{"s":"","i":1.5}',
        b'{"s":"","i":"3000000000"}',
        b'{"s":1,"i":3000000000}',
        b'{"i":1,"t":"never"}',
        b'{"s":"","d":1.234}',
        b'{"s":"","d":1' + b"0" * 36 + b"}",
        b'{"s":"","i":3000000000,"i":1}',
        b"[]",
        b"{",
    ],
)
def test_a_record_that_would_still_be_rejected_adds_no_drift(value: bytes):
    assert not drift(value)


def test_schema_evolution_requests_the_widest_type_of_several_records():
    found = drift(b'{"s":"","d":123.4}', b'{"s":"","d":12345}', b'{"s":"","d":1234}')
    assert found.wider == {("d",): "decimal(7, 2)"}


@pytest.mark.parametrize("value", [b'{"s":"","i":3000000000,"x":1.5}', b'{"i":1,"x":1.5}'])
def test_new_fields_of_a_record_that_a_wider_or_optional_column_would_hold_count(value: bytes):
    """Otherwise the other records alone choose the new column's type, and this record becomes a dead letter."""
    found = drift(value, b'{"s":"","x":"hot"}')
    assert (found.new, found.records) == ({("x",): "mixed"}, 2)


@pytest.mark.parametrize(("number", "kind"), [(b"NaN", "double"), (b"-Infinity", "double"), (b"1e400", "mixed")])
def test_a_number_that_is_infinite_or_nan_hides_no_new_field_and_no_wider_type(number: bytes, kind: str):
    value = b'{"s":"","i":3000000000,"x":{"y":1,"z":' + number + b"}}"
    found = drift(value)
    assert found.new == {("x",): StructOf({"y": "long", "z": kind})}
    assert found.wider == {("i",): "long"}


def test_new_fields_of_a_record_that_would_stay_refused_do_not_count():
    assert drift(b'{"s":1,"i":3000000000,"x":1.5}', b'{"s":"","x":"hot"}').new == {("x",): "string"}


@pytest.mark.parametrize("name", ['a"q', "back\\slash", "tab\there"])
def test_a_column_name_that_json_must_escape_is_refused(name: str):
    """Other programs may have created such a column."""
    odd = Schema(NestedField(1, "o", StructType(NestedField(2, name, LongType()))))
    with pytest.raises(SpecError, match=r"schema\.o: the name of column .* JSON escapes; rename it"):
        create_decoder("json", odd, {})


@pytest.mark.parametrize("name", ['a"q', "back\\slash", "tab\there"])
def test_a_field_whose_name_json_must_escape_becomes_no_column(name: str):
    seen = drift(json.dumps({"s": "", name: 1, "o": {name: 2, "x": 3}}).encode())
    found = {field.path: field for field in find_new_fields(seen)}
    assert found[name,].type is None
    assert "in its name" in found[name,].problem or "cannot be printed" in found[name,].problem
    assert found["o", name].type is None
    assert [field.name for field in found["o",].type.fields] == ["x"]
