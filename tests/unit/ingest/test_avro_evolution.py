"""Differences between a written Avro schema and the table's, and reading with the evolved schema."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.avro.schema import column_type_of, find_drift, parse_schema
from frazil.ingest.schema_drift import MIXED, FoundType, ListOf, MapOf, StructOf, find_new_fields
from frazil.table.evolution import Addition
from tests.grown_schema import grown

TABLE = Schema(
    t.NestedField(1, "id", t.IntegerType(), required=True),
    t.NestedField(2, "in", t.StructType(t.NestedField(3, "x", t.FloatType()))),
    t.NestedField(
        4, "all", t.ListType(5, t.StructType(t.NestedField(6, "x", t.DecimalType(9, 2))), element_required=False)
    ),
)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]}


def decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "found_type"),
    [
        ("int", "int"),
        (["null", "double"], "double"),
        (["int", "string"], MIXED),
        ("null", None),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp"),
        ({"type": "long", "logicalType": "time-micros"}, MIXED),
        (decimal(12), "decimal(12, 2)"),
        (decimal(39), MIXED),
        ({"type": "fixed", "name": "F", "size": 4}, "fixed[4]"),
        ({"type": "fixed", "name": "F", "size": 0}, MIXED),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": ["null", "bytes"]}, ListOf("binary")),
        ({"type": "map", "values": "boolean"}, MapOf("boolean")),
        (record(("a", "long"), ("b", ["null", "R"])), StructOf({"a": "long", "b": MIXED})),
    ],
    ids=str,
)
def test_each_avro_type_maps_to_a_column_type(kind: Any, found_type: FoundType):
    assert column_type_of(parse_schema(json.dumps(kind))) == found_type


def test_new_fields_and_wider_columns_are_seen_at_every_level():
    written = parse_schema(
        json.dumps(
            record(
                ("id", "long"),
                ("in", ["null", record(("x", "double"), ("y", "string"), name="In")]),
                ("all", {"type": "array", "items": record(("x", decimal(11)), ("z", "int"), name="All")}),
                ("more", "boolean"),
            )
        )
    )
    found = find_drift(written, TABLE.as_struct(), allows_wider=True)
    assert found.new == {("in", "y"): "string", ("all", "element", "z"): "int", ("more",): "boolean"}
    assert found.wider == {("id",): "long", ("in", "x"): "double", ("all", "element", "x"): "decimal(11, 2)"}
    assert not find_drift(written, TABLE.as_struct(), allows_wider=False).wider


def test_a_table_that_evolved_by_a_writer_schema_stores_its_records():
    written = record(("id", "int"), ("who", ["null", "string"]), ("tags", {"type": "map", "values": decimal(5)}))
    value = {"id": 1, "who": "x", "tags": {}}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(written), value)
    chunk = RecordChunk.of_values([buffer.getvalue()] * 2)
    plain = {"type": "avro", "schema-text": json.dumps(written)}

    first = create_decoder(plain, TABLE, {}, "additive")(chunk)
    assert first.rows.num_rows == first.drift.records == 2
    added = {new.path: Addition(new.path, new.type, None) for new in find_new_fields(first.drift) if new.type}
    wider = assign_fresh_schema_ids(Schema(*grown(TABLE.as_struct(), (), added).fields))
    second = create_decoder(plain, wider, {}, "additive")(chunk)
    assert not second.drift
    assert second.rows.select(["id", "who", "tags"]).to_pylist() == [{**value, "tags": []}] * 2
    assert not create_decoder(plain, TABLE, {})(chunk).drift
