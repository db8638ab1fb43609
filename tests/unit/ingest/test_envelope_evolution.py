"""Schema drift of captured events: the same as if their rows had no envelope."""

from __future__ import annotations

import io
import json
from typing import Any, Literal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StructType

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.schema_drift import ListOf, SchemaDrift, StructOf
from tests.unit.ingest.test_envelope import ROW, SPEC, decode, event, wrapped

PLACEHOLDER = "__debezium_unavailable_value"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "in", StructType(NestedField(4, "a", LongType()))),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text("ab", max_size=2),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from("abn"), inside, max_size=2),
    max_leaves=4,
)
ROWS = st.lists(st.fixed_dictionaries({"id": st.integers(0, 9)}, optional=dict.fromkeys(("n", "in", "a", "b"), VALUES)))


def enveloped(*events: Any, evolution: Literal["additive", "full"] = "additive") -> DecodedChunk:
    made = create_decoder({"type": "json", "envelope": "debezium"}, SCHEMA, {}, evolution)
    return made(RecordChunk.of_values([json.dumps(e).encode() for e in events]))


@given(ROWS, st.data())
def test_schema_drift_of_envelope_events_equals_that_of_their_rows(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    evolution = data.draw(st.sampled_from(("additive", "full")))
    plain = create_decoder("json", SCHEMA, {}, evolution)(
        RecordChunk.of_values([json.dumps(row).encode() for row in rows])
    )
    form = data.draw(st.sampled_from((lambda e: e, wrapped)))
    events = [event(data.draw(st.sampled_from("cur")), after=row, before={"old": 1}) for row in rows]
    found = enveloped(*map(form, events), evolution=evolution)
    assert (found.drift, found.record_indexes.tolist()) == (plain.drift, plain.record_indexes.tolist())


@pytest.mark.parametrize("form", [lambda value: value, wrapped], ids=["plain", "with its schema"])
def test_schema_drift_is_detected_only_in_the_state_after_a_change(form: Any) -> None:
    state = {"id": 1, "extra": 1, "n": 2**40}
    events = [
        event("d", before=state),
        event("x", after=state),
        event("m", after=state),
        event("t"),
        {"id": 1, "extra": 1},
        event("u", before=state, after={"id": 1}),
    ]
    assert enveloped(*map(form, events), evolution="full").drift == SchemaDrift()
    found = enveloped(*map(form, [*events, event("u", before=state, after=state)]), evolution="full")
    assert (found.drift.new, found.drift.wider) == ({("extra",): "long"}, {("n",): "long"})


def test_many_new_keys_outside_the_row_do_not_hide_a_new_field_in_it() -> None:
    made = create_decoder({"type": "json", "envelope": "debezium"}, SCHEMA, {}, "additive")
    odd = [event("c", after={"id": n}, source={f"s{n}": 1}, **{f"k{n}": {}}) for n in range(3000)]
    last = event("c", after={"id": 1, "extra": [1]})
    found = made(RecordChunk.of_values([json.dumps(e).encode() for e in [*odd, last]]))
    assert found.drift == SchemaDrift({("extra",): ListOf("long")}, records=1)


def test_an_unavailable_value_placeholder_adds_no_field() -> None:
    hstore = {PLACEHOLDER: PLACEHOLDER}
    found = enveloped(event("u", after={"id": 1, "new": hstore, "in": hstore}))
    assert found.drift.new == {("new",): StructOf({})}
    found = enveloped(event("u", after={"id": 1, "new": hstore}), event("c", after={"id": 1, "new": {"a": "b"}}))
    assert found.drift.new == {("new",): StructOf({"a": "string"})}


def test_a_column_filled_by_the_envelope_ignores_a_field_of_the_same_name() -> None:
    found = decode([event("c", after={**ROW, "lsn": 1, "tx": 2, "extra": "x"})], evolution="additive")
    assert found.rows["lsn"].to_pylist() == [24_023_128]
    assert found.drift.new[("extra",)] == "string"


def test_an_avro_envelope_evolves_by_its_schema() -> None:
    state = {"type": "record", "name": "V", "fields": [{"name": "id", "type": "long"}]}
    state["fields"] += [{"name": "n", "type": ["null", "long"]}, {"name": "extra", "type": ["null", "string"]}]  # type: ignore[operator]
    source = {"type": "record", "name": "S", "fields": [{"name": "version", "type": "string"}]}
    fields = [{"name": "before", "type": ["null", state]}, {"name": "after", "type": ["null", "V"]}]
    fields += [{"name": "op", "type": "string"}, {"name": "source", "type": source}]  # type: ignore[list-item]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    out = io.BytesIO()
    after = {"id": 1, "n": 2, "extra": "x"}
    written = {"before": None, "after": after, "op": "u", "source": {"version": "3"}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), written)
    form = {"type": "avro", "schema-text": json.dumps(schema), "envelope": "debezium"}
    for evolution, wider in (("additive", {}), ("full", {("n",): "long"})):
        found = create_decoder(form, SCHEMA, {}, evolution)(RecordChunk.of_values([out.getvalue()]))  # type: ignore[arg-type]
        assert found.drift == SchemaDrift({("extra",): "string"}, wider, records=1)
    assert create_decoder(form, SCHEMA, {})(RecordChunk.of_values([out.getvalue()])).drift == SchemaDrift()


def test_without_evolution_no_drift_is_reported() -> None:
    assert decode([event("c", after={**ROW, "extra": 1})], **{"order-by": SPEC["order-by"]}).drift == SchemaDrift()
