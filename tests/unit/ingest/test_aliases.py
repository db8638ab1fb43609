"""A renamed column is filled from fields with its former name."""

from __future__ import annotations

import json
from functools import partial

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.shaper import create_aliased_decoder

KINDS: list[tuple[IcebergType, str]] = [
    (StringType(), '"x"'),
    (DecimalType(9, 2), "1.50"),
    (UUIDType(), '"00000000-0000-0000-0000-000000000001"'),
    (ListType(10, StringType(), element_required=False), '["x",null]'),
    (MapType(11, StringType(), 12, LongType(), value_required=False), '{"x":1}'),
    (StructType(NestedField(13, "a", StringType()), NestedField(14, "b", UUIDType())), '{"a":"x"}'),
]


def decoded(schema: Schema, *values: str, units: dict[int, str] | None = None, **aliases: int) -> DecodedChunk:
    make = partial(create_decoder, "json", evolution="additive")
    return create_aliased_decoder(make, schema, units or {}, aliases)(
        RecordChunk.of_values([value.encode() for value in values])
    )


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=str)
def test_the_former_or_current_field_name_fills_a_column_of_any_type(kind: IcebergType, value: str):
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "now", kind))
    found = decoded(
        schema, *(f'{{"id":1,"{name}":{value}}}' for name in ("now", "was", "older", "never")), was=2, older=2
    )
    one, two, three, four = found.rows["now"].to_pylist()
    assert one is not None
    assert one == two == three
    assert four is None
    assert list(found.drift.new) == [("never",)]
    assert found.rows.schema.field("now").metadata == {b"PARQUET:field_id": b"2"}


def test_a_required_column_needs_a_value_under_one_of_its_names_and_the_current_name_wins():
    schema = Schema(NestedField(1, "now", LongType(), required=True), NestedField(2, "s", StringType(), required=True))
    values = ('{"s":"","was":1}', '{"s":"","now":2,"was":3}', '{"s":""}', '{"s":"","now":null,"was":4}', '{"was":5}')
    found = decoded(schema, *values, was=1)
    rows = dict(zip(found.record_indexes.tolist(), found.rows["now"].to_pylist(), strict=True))
    assert rows == {0: 1, 1: 2, 3: 4}
    assert sorted((r.index, r.error) for r in found.rejections) == [
        (2, "now: required, and missing or null"),
        (4, "s: required, and missing or null"),
    ]


def test_a_time_unit_applies_to_every_name_of_a_column():
    schema = Schema(NestedField(1, "now", TimestamptzType()))
    found = decoded(schema, '{"was":1}', '{"now":1}', units={1: "s"}, was=1)
    assert [moment.timestamp() for moment in found.rows["now"].to_pylist()] == [1, 1]


def test_without_aliases_the_plain_decoder_is_used():
    made: list[Schema] = []
    create_aliased_decoder(lambda schema, _: made.append(schema), Schema(NestedField(1, "a", LongType())), {}, {})  # type: ignore[func-returns-value,arg-type,return-value]
    assert len(made) == 1


def test_an_unavailable_value_under_a_former_name_is_marked_as_omitted_in_its_column():
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "now", StringType()))
    make = partial(create_decoder, {"type": "json", "envelope": "debezium"})
    event = '{"op":"u","before":null,"after":{"id":1,"was":"__debezium_unavailable_value"}}'
    values = [event, event.replace("__debezium_unavailable_value", "x"), '{"op":"d","before":{"id":1,"was":null}}']
    found = create_aliased_decoder(make, schema, {}, {"was": 2})(
        RecordChunk.of_values([value.encode() for value in values])
    )
    assert found.rejections == []
    assert found.rows[OMITTED_COLUMNS].to_pylist() == [[2], None, None]
    assert found.rows["now"].to_pylist() == [None, "x", None]


def test_a_renamed_key_column_is_filled_from_either_field_name():
    schema = Schema(NestedField(1, "place", LongType(), required=True), NestedField(2, "id", LongType(), required=True))
    make = partial(create_decoder, {"type": "json", "envelope": "debezium"}, evolution="additive")
    events = [
        {"op": "c", "before": None, "after": {"place": 1, "was": 7, "new": 1}},
        {"op": "d", "before": {"place": 1, "was": 7}, "after": None},
        {"op": "d", "before": {"place": 1, "id": 8, "was": 7}, "after": None},
        {"op": "d", "before": {"place": 1}, "after": None},
        {"op": "u", "before": None, "after": {"place": 1}},
        {"op": "d", "before": {"was": 7}, "after": None},
    ]
    found = create_aliased_decoder(make, schema, {}, {"was": 2})(
        RecordChunk.of_values([json.dumps(event).encode() for event in events])
    )
    assert found.rows.select(["place", "id", CHANGE]).to_pylist() == [
        {"place": 1, "id": 7, CHANGE: UPSERT},
        {"place": 1, "id": 7, CHANGE: DELETE},
        {"place": 1, "id": 8, CHANGE: DELETE},
    ]
    assert [r.error for r in found.rejections] == [
        "before.id: required, and missing or null",
        "after.id: required, and missing or null",
        "before.place: required, and missing or null",
    ]
    assert list(found.drift.new) == [("new",)]


def test_a_default_does_not_replace_an_unavailable_value_under_a_former_name():
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "now", StringType()))
    make = partial(create_decoder, {"type": "json", "envelope": "debezium"})
    text = "__debezium_unavailable_value"
    states = [{"was": text}, {"older": text}, {"now": text}, {}, {"older": "x"}]
    events = [json.dumps({"op": "u", "after": {"id": 1, **state}}).encode() for state in states]
    found = create_aliased_decoder(make, schema, {2: {"default": "d"}}, {"was": 2, "older": 2})(
        RecordChunk.of_values(events)
    )
    assert [ids or None for ids in found.rows[OMITTED_COLUMNS].to_pylist()] == [[2], [2], [2], None, None]
    assert found.rows["now"].to_pylist()[3:] == ["d", "x"]


def test_casts_and_defaults_of_a_renamed_field_are_those_of_its_column():
    schema = Schema(NestedField(1, "now", LongType(), required=True))
    units = {1: {"cast": "lenient", "default": 5}}
    values = [b'{"was": "7"}', b'{"now": 1}', b'{"now": "2", "was": 3}', b"{}"]
    found = create_aliased_decoder(partial(create_decoder, "json"), schema, units, {"was": 1})(
        RecordChunk.of_values(values)
    )
    assert (found.rows["now"].to_pylist(), found.drift.cast) == ([7, 1, 2, 5], {"now": 2})


def captured(kind: IcebergType, *states: dict[str, object], **aliases: int) -> DecodedChunk:
    """Updates without `before`, of a column `now`."""
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "now", kind))
    make = partial(create_decoder, {"type": "json", "envelope": "debezium"})
    events = [json.dumps({"op": "u", "before": None, "after": {"id": 1, **state}}) for state in states]
    return create_aliased_decoder(make, schema, {}, aliases)(
        RecordChunk.of_values([event.encode() for event in events])
    )


def test_a_value_sent_under_the_current_column_name_is_not_treated_as_omitted():
    text = "__debezium_unavailable_value"
    states = [{"was": text, "now": "x"}, {"was": "x", "now": text}, {"was": text, "now": None}]
    found = captured(StringType(), *states, {"was": text, "now": text}, was=2)
    assert [ids or None for ids in found.rows[OMITTED_COLUMNS].to_pylist()] == [None, [2], [2], [2]]
    assert found.rows["now"].to_pylist()[0] == "x"


def test_a_null_is_not_unavailable_if_another_name_of_the_column_has_a_value():
    reported = [{"was": [1.5]}, {"now": [1.5]}, {"was": None, "now": [1.5]}, {"older": [1.5]}]
    unreported = [{"was": None}, {"now": None}, {"was": None, "now": None}]
    doubles = ListType(3, DoubleType(), element_required=False)
    found = captured(doubles, *reported, {}, *unreported, was=2, older=2)
    assert found.rows["now"].to_pylist() == [[1.5]] * 4 + [None]
    assert [(r.index, r.error_class, r.error.split(":")[0]) for r in found.rejections] == [
        (5, "UnavailableValue", "after.was"),
        (6, "UnavailableValue", "after.now"),
        (7, "UnavailableValue", "after.now"),
    ]
