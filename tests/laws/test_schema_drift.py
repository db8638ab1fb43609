"""Laws of schema drift: the order of records and tasks does not matter, and the evolved table accepts all records."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import ListType, LongType, NestedField, StructType

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.columns import MIN_RECORDS
from frazil.ingest.formats.json.unknown_keys import MAX_SAMPLES
from frazil.ingest.schema_drift import (
    MIXED,
    FoundType,
    ListOf,
    MapOf,
    SchemaDrift,
    StructOf,
    find_new_fields,
    join_drift,
    merge_types,
    type_of_value,
)
from frazil.table.evolution import Addition, plan_growth
from tests.grown_schema import grown

NAMES = st.sampled_from(["a", "b", "A", "long name", "é", "x.y", ""])
LEAVES = st.sampled_from(
    [
        None,
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "string",
        "decimal(9, 2)",
        "decimal(11, 2)",
        "decimal(9, 3)",
        MIXED,
    ]
)
TYPES: st.SearchStrategy[FoundType] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(ListOf, inner),
        st.builds(MapOf, inner),
        st.builds(StructOf, st.dictionaries(NAMES, inner, max_size=3)),
    ),
    max_leaves=6,
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
DRIFTS = st.builds(
    SchemaDrift,
    st.dictionaries(PATHS, TYPES, max_size=3),
    st.dictionaries(PATHS, st.sampled_from(["decimal(9, 2)", "decimal(11, 2)"]), max_size=2),
    st.frozensets(PATHS, max_size=2),
    st.integers(0, 9),
)
FIELDS = st.sampled_from(["a", "b", "c", "wide"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(FIELDS, inner, max_size=3)),
    max_leaves=6,
)
BASE = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StructType(NestedField(3, "a", LongType())))
)


@given(TYPES, TYPES, TYPES)
def test_merging_types_does_not_depend_on_their_order(one: FoundType, two: FoundType, three: FoundType):
    assert merge_types(one, two) == merge_types(two, one)
    assert merge_types(one, merge_types(two, three)) == merge_types(merge_types(one, two), three)
    assert merge_types(one, one) == one
    assert merge_types(one, None) == one


@given(DRIFTS, DRIFTS, DRIFTS)
def test_joining_schema_drift_does_not_depend_on_order_and_survives_a_json_round_trip(
    one: SchemaDrift, two: SchemaDrift, three: SchemaDrift
):
    assert join_drift([one, two]) == join_drift([two, one])
    assert join_drift([join_drift([one, two]), three]) == join_drift([one, two, three])
    assert SchemaDrift.from_json(json.loads(json.dumps(one.to_json()))) == one


@given(st.lists(VALUES, max_size=4))
def test_the_type_of_a_list_is_that_of_all_its_values(values: list[Any]):
    element: FoundType = None
    for value in values:
        element = merge_types(element, type_of_value(value, 1))
    assert type_of_value(values) == ListOf(element)


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=3), max_size=8))
@example([{"a": []}, {"a": False}])
def test_a_table_that_evolved_by_drift_has_every_value_or_reports_the_refused_field(
    records: list[dict[str, Any]],
):
    values = [json.dumps({"id": n, "s": {"a": 1, **_but_a(r)}, **r}).encode() for n, r in enumerate(records)]
    schema, refused = BASE, set()
    for _ in range(8):  # a struct may show more fields once it is a column
        decode = create_decoder("json", schema, {}, "additive")
        decoded = decode(RecordChunk.of_values(values))
        found = list(find_new_fields(decoded.drift))
        refused |= {new.path for new in found if new.type is None}
        changes = plan_growth(schema, (), [Addition(n.path, n.type, None) for n in found if n.type], max_columns=500)
        refused |= {refusal.path for refusal in changes.refused}
        if not changes.changes:
            break
        schema = _grown(schema, [c for c in changes.changes if isinstance(c, Addition)])
    rejected = {rejection.index for rejection in decoded.rejections}
    assert all(_has_empty(json.loads(values[number])) for number in rejected)
    order = {int(place): row for place, row in zip(decoded.record_indexes, decoded.rows.to_pylist(), strict=True)}
    for number, value in enumerate(values):
        for path, leaf in () if number in rejected else _leaves(json.loads(value), ()):
            if not _empty(leaf) and not any(path[: len(r)] == r[: len(path)] for r in refused):
                assert _same(_at(order[number], path), leaf)


def test_a_new_field_is_found_in_the_first_record_that_has_a_value():
    quiet = [b'{"id":1,"n":null,"e":{},"l":[]}'] * (MAX_SAMPLES * 3)
    decode = create_decoder("json", BASE, {}, "additive")
    first = decode(RecordChunk.of_values(quiet)).drift
    assert not first.new
    last = decode(RecordChunk.of_values([*quiet, b'{"id":1,"n":1,"e":{"x":true},"l":["y"]}'])).drift
    assert last.new == {("n",): "long", ("e",): StructOf({"x": "boolean"}), ("l",): ListOf("string")}
    assert last.records == 1


def test_only_a_sample_of_records_is_checked_for_schema_drift():
    decode = create_decoder("json", BASE, {}, "additive")
    many = decode(RecordChunk.of_values([b'{"id":1,"n":1}'] * (MAX_SAMPLES + 1) + [b'{"id":1,"n":"x"}'])).drift
    assert many.new == {("n",): "long"}
    assert many.records == MAX_SAMPLES + 2


def test_rejected_records_are_no_samples():
    decode = create_decoder("json", BASE, {}, "additive")
    rejected = decode(RecordChunk.of_values([b'{"n":1,"id":"x"}'] * MAX_SAMPLES)).drift
    assert not rejected.new
    assert decode(RecordChunk.of_values([b'{"n":1,"id":1}'])).drift.new == {("n",): "long"}


def test_a_new_field_is_found_in_a_record_that_needs_more_memory():
    part = StructType(NestedField(3, "a", LongType(), required=False))
    schema = Schema(NestedField(1, "l", ListType(2, part, element_required=False), required=False))
    decode = create_decoder("json", schema, {}, "additive")
    value = json.dumps({"l": [{"n": 1}] * (2 * MIN_RECORDS)}).encode()
    assert decode(RecordChunk.of_values([value])).drift.new == {("l", "element", "n"): "long"}


def _but_a(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "a"}


def _grown(schema: Schema, additions: list[Addition]) -> Schema:
    """Return the schema that a table derives from it, without ids."""
    struct = grown(schema.as_struct(), (), {addition.path: addition for addition in additions})
    return assign_fresh_schema_ids(Schema(*struct.fields))


def _leaves(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    elif value is not None:
        yield path, value


def _at(row: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        row = row[name]
    return row


def _empty(value: Any) -> bool:
    """Whether it shows no type: of null, and of what has nothing else in it, there is no column."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return value is None or (isinstance(value, (dict, list)) and all(map(_empty, parts)))


def _has_empty(value: Any) -> bool:
    """Whether a list or object in it is empty: its record is rejected if others give the field another type."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, (dict, list)) and not value) or any(map(_has_empty, parts))


def _same(found: Any, sent: Any) -> bool:
    if _empty(sent):
        return True
    if isinstance(sent, list):
        return len(found) == len(sent) and all(_same(f, s) for f, s in zip(found, sent, strict=True))
    if isinstance(sent, dict):
        return all(_empty(value) or _same(found[name], value) for name, value in sent.items())
    if isinstance(sent, (int, float)) and not isinstance(sent, bool) and isinstance(found, float):
        return math.isclose(found, sent, rel_tol=1e-12, abs_tol=0) or found == sent
    return bool(found == sent)
