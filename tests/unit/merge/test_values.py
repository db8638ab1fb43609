"""Values that no change touches are the same after a merge, whatever their type."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from frazil.merge.change_outcomes import are_values_equal
from frazil.merge.contract import MergeRules
from tests.unit.merge.made_table import MadeTable

STRUCT = StructType(NestedField(20, "a", IntegerType(), required=False))
OTHER = StructType(NestedField(21, "a", IntegerType(), required=False))
INNER = StructType(NestedField(22, "a", IntegerType(), required=False))
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "list", ListType(10, STRUCT, element_required=False), required=False),
    NestedField(3, "map", MapType(11, StringType(), 12, OTHER, value_required=False), required=False),
    NestedField(
        4,
        "deep",
        ListType(13, ListType(14, INNER, element_required=False), element_required=False),
        required=False,
    ),
)
ROWS = [
    {"id": 1, "list": None, "map": None, "deep": None},
    {"id": 2, "list": [], "map": [], "deep": []},
    {"id": 3, "list": [None, {"a": None}, {"a": 1}], "map": [("k", None), ("l", {"a": 1})], "deep": [None, [], [None]]},
    {"id": 4, "list": None, "map": [("k", {"a": None})], "deep": [[{"a": 4}], None]},
]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_null_list_or_map_of_structs_stays_null(tmp_path, how):
    table = MadeTable(tmp_path, SCHEMA, MergeRules(("id",), how=how))

    table.merge(table.stage(ROWS))
    table.merge(table.stage([{"id": 4, "deep": []}]))

    assert sorted(table.rows(), key=lambda row: row["id"]) == [
        *ROWS[:3],
        {**dict.fromkeys(ROWS[0]), "id": 4, "deep": []},
    ]


def test_a_change_of_the_sign_of_zero_is_a_change(tmp_path):
    parts = ListType(3, DoubleType(), element_required=False)
    schema = Schema(
        NestedField(1, "key", LongType(), required=True),
        NestedField(2, "number", DoubleType(), required=False),
        NestedField(4, "parts", parts, required=False),
    )
    made = MadeTable(tmp_path, schema, MergeRules(("key",)))
    rows = {1: (0.0, [1.0]), 2: (1.0, [0.0]), 3: (math.nan, [math.nan, None])}
    made.merge(made.stage([{"key": key, "number": number, "parts": of} for key, (number, of) in rows.items()]))
    changed = {1: (-0.0, [1.0]), 2: (1.0, [-0.0]), 3: (-math.nan, [math.nan, None])}
    staged = made.stage([{"key": key, "number": number, "parts": of} for key, (number, of) in changed.items()])
    counts = made.merge(staged)
    assert (counts.updated, counts.unchanged) == (2, 1)
    found = {row["key"]: (row["number"], row["parts"]) for row in made.rows()}
    assert (str(found[1]), str(found[2])) == ("(-0.0, [1.0])", "(1.0, [-0.0])")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([{"a": 1, "b": 2}], [{"a": 1, "b": 2}], True),
        ([{"a": 1, "b": 2}], [{"a": 1, "b": 3}], False),
        ([{"a": None, "b": 2}], [None], False),
        ([None], [{"a": None, "b": 2}], False),
        ([[1], []], [[1], []], True),
        ([[1], []], [[1], None], False),
    ],
)
def test_values_within_lists_are_compared_one_by_one(one, other, same):
    kind = pa.infer_type([[*one, *other]])
    assert are_values_equal(pa.array([one], kind), pa.array([other], kind)).tolist() == [same]
