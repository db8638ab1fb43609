"""Each row goes to the one table that its record selects, or its record is rejected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.changes import CHANGE, DELETE, UPSERT
from frazil.ingest.chunk import BinaryColumn, RecordChunk, pack_headers
from frazil.ingest.contract import Destinations, OffsetRange
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.destinations import DividedRows, RowDivider
from frazil.ingest.routed_writers import fit_rows

RANGES = (OffsetRange("t", 0, 0, 100), OffsetRange("u", 0, 0, 100))


def divided(values: list[Any], **declared: Any) -> tuple[dict[str, list[int]], dict[int, str], RowDivider]:
    """The rows by target, the errors by record, and who divided them. Row i is that of record i."""
    count, unchanged = len(values), declared.pop("unchanged", [])
    kept = np.array(declared.pop("kept", range(count)), np.int64)
    ranges = np.array([value if declared.get("by") == "topic" else 0 for value in values], np.int32)
    headers = None
    if declared.get("by") == "header":
        headers = BinaryColumn.of([None if v is None else pack_headers([("x", b"no"), ("kind", v)]) for v in values])
    nothing = BinaryColumn.nulls(count)
    chunk = RecordChunk(nothing, nothing, ranges, np.arange(count), np.zeros(count, np.int64), headers=headers)
    kinds = pa.array(values, pa.large_string()) if declared.get("by", "field") == "field" else pa.nulls(count)
    rows = pa.table({"kind": kinds, "row": pa.array(range(count), pa.int64())})
    if (deletes := declared.pop("deletes", None)) is not None:
        rows = rows.append_column(CHANGE, pa.array([DELETE if n in deletes else UPSERT for n in range(count)]))
    divide = RowDivider(
        Destinations(**{"by": "field", "name": "kind", "targets": {}, "to_main": True, **declared}), RANGES
    )
    found: DividedRows = divide(chunk, DecodedChunk(rows, kept))
    by_target: dict[str, list[int]] = {}
    for row, code in zip(found.decoded.rows["row"].to_pylist(), found.codes.tolist(), strict=True):
        by_target.setdefault(found.targets[code], []).append(row)
    assert found.unchanged.tolist() == unchanged
    assert found.main_rows["row"].to_pylist() == by_target.get("main", [])
    return by_target, {r.index: r.error for r in found.decoded.rejections}, divide


def test_rows_without_a_routed_table_go_to_the_default_table() -> None:
    found, errors, divide = divided(["a", None, "b", "a", "c"], targets={"a": "n.a", "b": "n.b"})
    assert found == {"n.a": [0, 3], "main": [1, 4], "n.b": [2]}
    assert (errors, divide.values) == ({}, set())


def test_rows_without_a_table_are_rejected_where_declared() -> None:
    found, errors, _ = divided(["a", None, "c"], targets={"a": "n.a"}, to_main=False)
    assert found == {"n.a": [0]}
    default = "With route.otherwise: table, such records go to the default table"
    assert errors == {
        1: f"field kind: has no value. {default}",
        2: f"field kind: 'c' has no table. Add it to route.tables. {default}",
    }


def test_new_values_are_reported_and_their_rows_left_out() -> None:
    declared = {"targets": {"a": "n.a"}, "creates": True, "allow": ("a*", "b*"), "refused": {"bad": "it is taken"}}
    found, errors, divide = divided(["a", "ab", "bad", "c", "ab", "b" * 201], **declared)
    assert found == {"n.a": [0]}
    assert divide.values == {"ab"}
    assert [errors[2], errors[3]] == [
        "field kind: 'bad' gets no table: it is taken",
        "field kind: 'c' gets no table: route.allow does not allow it",
    ]
    assert errors[5].endswith("gets no table: it has more than 200 characters")


@pytest.mark.parametrize("by", ["field", "header"])
def test_a_delete_for_a_route_value_without_a_table_changes_nothing_and_is_not_reported(by: str) -> None:
    values = ["a", "b", "c", "c", "bad", "b"]
    declared = {"by": by, "targets": {"a": "n.a"}, "creates": True, "allow": ("*",), "refused": {"bad": "it is taken"}}
    kinds = [value.encode() for value in values] if by == "header" else values
    found, errors, divide = divided(kinds, deletes={0, 1, 3, 4, 5}, unchanged=[1, 3, 5], **declared)
    assert (found, errors.keys(), divide.values) == ({"n.a": [0]}, {4}, {"c"})


def test_an_upsert_that_has_a_table_lands_although_the_delete_of_its_record_has_none() -> None:
    declared = {"targets": {"a": "n.a"}, "creates": True, "allow": ("*",), "deletes": {0, 2}}
    found, _, divide = divided(["b", "a", "b"], kept=[0, 0, 1], unchanged=[1], **declared)
    assert (found, divide.values) == ({"n.a": [1]}, set())


def test_when_no_further_table_can_be_made_new_values_are_rejected() -> None:
    found, errors, divide = divided(
        ["a", "b"], targets={"a": "n.a"}, creates=True, allow=("*",), full="there are enough"
    )
    assert (found, divide.values) == ({"n.a": [0]}, set())
    assert errors == {1: "field kind: 'b' gets no table: there are enough"}


@pytest.mark.parametrize(
    ("values", "stay", "errors"),
    [
        (("a", "b"), ["b", "a"], {}),
        (("no", "b"), ["b"], {}),
        (("a", "no"), [], {0: "field kind: 'no' has no table"}),
        (("no", "no"), [], {0: "field kind: 'no' has no table"}),
    ],
)
def test_an_update_that_moves_its_row_needs_a_table_only_for_the_new_row(
    values: tuple[str, str], stay: list[str], errors: dict[int, str]
) -> None:
    nothing = BinaryColumn.nulls(1)
    chunk = RecordChunk(nothing, nothing, np.zeros(1, np.int32), np.arange(1), np.zeros(1, np.int64))
    rows = pa.table({"kind": pa.array(values[::-1], pa.large_string()), CHANGE: pa.array([UPSERT, DELETE], pa.int32())})
    to = Destinations(by="field", name="kind", targets={"a": "n.a", "b": "n.b"}, to_main=False)
    found = RowDivider(to, RANGES)(chunk, DecodedChunk(rows, np.array([0, 0])))
    assert found.decoded.rows["kind"].to_pylist() == stay
    assert [found.targets[code] for code in found.codes] == [f"n.{value}" for value in stay]
    assert {r.index: r.error.partition(".")[0] for r in found.decoded.rejections} == errors


def test_a_header_names_the_table_and_a_header_that_is_not_text_is_rejected() -> None:
    found, errors, _ = divided([b"a", None, b"\xff"], by="header", targets={"a": "n.a"})
    assert found == {"n.a": [0], "main": [1]}
    assert errors == {2: "header kind: its value is not UTF-8; write UTF-8"}


def test_a_topic_selects_the_table() -> None:
    found, _, divide = divided([0, 1, 0], by="topic", name="", targets={"u": "n.u"})
    assert found == {"main": [0, 2], "n.u": [1]}
    _, _, divide = divided([0, 0], by="topic", name="", creates=True, allow=("*",))
    assert divide.values == {"t"}, "a topic without records here needs no table yet"


@given(st.lists(st.sampled_from(["a", "b", "new", "bad", None, ""]), max_size=30), st.booleans(), st.booleans())
def test_each_row_lands_waits_or_is_rejected_exactly_once(
    values: list[str | None], to_main: bool, creates: bool
) -> None:
    targets = {"a": "n.a", "b": "n.a"}
    found, errors, divide = divided(
        values, targets=targets, to_main=to_main, creates=creates, allow=("*",), refused={"bad": "no"}
    )
    landed = [row for rows in found.values() for row in rows]
    waiting = [row for row, value in enumerate(values) if value in divide.values]
    assert sorted([*landed, *errors, *waiting]) == [*range(len(values))]


def layout_of(schema: pa.Schema, **defaults: Any) -> Any:
    return SimpleNamespace(
        arrow_schema=schema, defaults={name: pa.chunked_array([[value]]) for name, value in defaults.items()}
    )


@pytest.mark.parametrize("required", [True, False])
def test_a_missing_value_gets_the_other_tables_default(required: bool) -> None:
    rows = pa.table({"a": pa.array([1, None])})
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("c", pa.string(), nullable=not required)])
    found = fit_rows(rows, layout_of(schema, a=7, c="x"))
    assert found.to_pylist() == [{"a": 1, "c": "x"}, {"a": 7, "c": "x"}]
    alike = fit_rows(found, layout_of(found.schema, a=7))
    assert alike.to_pylist() == found.to_pylist()


def test_a_row_fits_a_table_whose_columns_differ() -> None:
    rows = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]})
    schema = pa.schema([pa.field("c", pa.string()), pa.field("a", pa.int64())])
    assert fit_rows(rows, layout_of(schema)).to_pylist() == [{"c": None, "a": 1}]


@pytest.mark.parametrize("values", [[], ["a"]])
def test_even_a_few_rows_are_divided_among_routed_tables(values: list[str]) -> None:
    found, _, _ = divided(values, targets={"a": "n.a"})
    assert found == ({"n.a": [0]} if values else {})


def test_a_null_struct_with_a_null_required_field_fits_a_table_with_other_field_ids() -> None:
    inner = pa.field("a", pa.int64(), nullable=False)
    struct = pa.StructArray.from_arrays([pa.array([None, 1])], fields=[inner], mask=pa.array([True, False]))
    rows = pa.table({"one": struct, "many": pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), struct)})
    with_ids = pa.schema([field.with_metadata({"PARQUET:field_id": "7"}) for field in rows.schema])
    expected = [{"one": None, "many": []}, {"one": {"a": 1}, "many": [None, {"a": 1}]}]
    assert fit_rows(rows, layout_of(with_ids)).to_pylist() == expected
