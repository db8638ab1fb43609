"""Column changes by other users, derived from a table's schemas: renamed, dropped, replaced, widened."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from frazil.table.evolution import Addition, Conflict, Difference, Promotion, find_differences

TEXT = StringType()


def schema(*columns: tuple[int, str, IcebergType], required: Sequence[str] = ()) -> Schema:
    return Schema(*(NestedField(i, name, kind, required=name in required) for i, name, kind in columns))


def found(declared: Schema, *schemas: Schema) -> tuple[Difference, ...]:
    """The last schema is the table's."""
    names = [field.name for field in declared.fields]
    return find_differences(declared, schemas[-1], schemas, user_columns=names)


def reported(declared: Schema, *schemas: Schema) -> dict[str, str]:
    differing = found(declared, *schemas)
    assert all(isinstance(one, Conflict) for one in differing), differing
    return {".".join(one.path): one.message for one in differing if isinstance(one, Conflict)}


AB = schema((1, "a", TEXT), (2, "b", TEXT))


def test_a_renamed_column_is_reported_with_its_new_name_and_the_remedies() -> None:
    assert reported(AB, AB, schema((1, "x", TEXT), (2, "b", TEXT))) == {
        "a": "was renamed to x in the table; rename it back, declare x if records use that name, or add a new "
        "optional column a to the table"
    }


def test_a_required_column_that_was_renamed_is_reported_once() -> None:
    declared = schema((1, "a", TEXT), (2, "b", TEXT), required=["a"])
    said = reported(declared, declared, schema((1, "x", TEXT), (2, "b", TEXT), required=["x"]))
    assert list(said) == ["a"]
    assert said["a"].endswith("to the table and declare it without 'not null'")


def test_a_column_that_was_dropped_is_not_added_again() -> None:
    assert reported(AB, AB, schema((2, "b", TEXT))) == {
        "a": "was dropped from the table; remove it from the declaration, or add it to the table again, as an optional "
        "string"
    }


def test_conflicts_of_frazils_own_columns_do_not_suggest_another_declaration() -> None:
    now = schema((1, "x", TEXT))
    said = [d.message for d in find_differences(AB, now, [AB, now]) if isinstance(d, Conflict)]
    assert len(said) == 2
    assert not any("declar" in message for message in said)


@pytest.mark.parametrize(
    "now",
    [
        schema((3, "a", TEXT), (2, "b", TEXT)),
        schema((1, "x", TEXT), (2, "b", TEXT), (3, "a", TEXT)),
        schema((1, "a", TEXT), (2, "b", TEXT), (3, "c", TEXT)),
        schema((2, "b", TEXT), (1, "a", TEXT)),
    ],
    ids=["dropped and added again", "renamed and a new one added", "one more", "another order"],
)
def test_a_schema_that_still_has_a_column_of_each_name_is_compatible(now: Schema) -> None:
    assert found(AB, AB, now) == ()


def test_a_name_that_no_schema_ever_had_is_new() -> None:
    assert found(schema((1, "a", TEXT), (2, "c", TEXT)), AB, AB) == (Addition(("c",), TEXT, None),)


def test_columns_whose_names_were_exchanged_are_both_reported() -> None:
    steps = [AB, schema((1, "t", TEXT), (2, "b", TEXT)), schema((1, "t", TEXT), (2, "a", TEXT))]
    said = reported(AB, *steps, schema((1, "b", TEXT), (2, "a", TEXT)))
    assert said.keys() == {"a", "b"}
    assert said["a"].startswith("is not the same column as before: the earlier column was renamed to b in the table")
    assert "frazil.accepted-schema to 0" in said["a"]


def test_a_reused_column_name_is_reported_while_the_table_still_has_the_first_column() -> None:
    before = schema((1, "a", TEXT), (2, "foreign", TEXT))
    given_away = schema((1, "old_a", TEXT), (2, "a", TEXT))
    declared = schema((1, "a", TEXT))
    assert "renamed to old_a" in reported(declared, before, given_away)["a"]
    assert found(declared, before, given_away, schema((2, "a", TEXT))) == ()
    assert find_differences(declared, given_away, [given_away], user_columns=["a"]) == (), "a person accepted it"


def test_a_column_that_was_renamed_with_its_declaration_fits() -> None:
    declared = schema((1, "x", TEXT), (2, "b", TEXT))
    assert found(declared, AB, declared) == ()


def test_a_name_that_differs_only_in_case_is_reported() -> None:
    upper = schema((1, "A", TEXT), (2, "b", TEXT))
    assert reported(AB, AB, upper)["a"].startswith("was renamed to A in the table")
    same = "engines ignore case and replace special characters"
    assert reported(AB, upper)["a"] == f"is called A in the table, and {same}; declare A"


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda kind: kind, "n"),
        (lambda kind: ListType(50, kind, element_required=False), "n.element"),
        (lambda kind: MapType(51, TEXT, 50, kind, value_required=False), "n.value"),
    ],
    ids=["struct", "list", "map"],
)
def test_nested_fields_are_reported_as_columns_are(wrap: object, path: str) -> None:
    def nested(*fields: tuple[int, str]) -> Schema:
        inside = StructType(*(NestedField(i, name, TEXT, required=False) for i, name in fields))
        return schema((10, "n", wrap(inside)))  # type: ignore[operator]

    was = nested((11, "a"), (12, "b"))
    assert f"was renamed to {path}.x in the table" in reported(was, was, nested((11, "x"), (12, "b")))[f"{path}.a"]
    assert "was dropped" in reported(was, was, nested((12, "b")))[f"{path}.a"]
    assert [d.path[-1] for d in found(nested((11, "a"), (13, "new")), was, was)] == ["new"]


def test_a_column_name_is_matched_only_at_its_own_nesting_level() -> None:
    """A column `a` is nothing to a struct's field of that name."""
    struct = StructType(NestedField(11, "a", TEXT, required=False))
    was, now = schema((10, "s", struct), (1, "b", TEXT)), schema((10, "s", struct), (1, "b", TEXT))
    assert found(schema((1, "a", TEXT)), was, now) == (Addition(("a",), TEXT, None),)


def test_a_column_widened_by_another_program_fits_but_one_that_was_never_narrower_does_not() -> None:
    narrow, wide = schema((1, "n", IntegerType())), schema((1, "n", LongType()))
    assert found(narrow, narrow, wide) == ()
    assert "is declared int, but is long" in reported(narrow, wide)["n"]
    assert found(wide, narrow) == (Promotion(("n",), LongType()),)
    cents, more = schema((1, "d", DecimalType(5, 2))), schema((1, "d", DecimalType(9, 2)))
    assert found(cents, cents, more) == ()


NAMES = "abcd"


@given(st.lists(st.tuples(st.sampled_from(["rename", "drop", "add"]), st.integers(0, 9)), max_size=8))
def test_a_declared_column_never_fills_a_column_that_had_another_name(steps: list[tuple[str, int]]) -> None:
    """Whatever others did, no value goes to a column that had another name while this one's is still there."""
    ids, history = itertools.count(10), [AB]
    columns = {1: "a", 2: "b"}
    for step, n in steps:
        free = [name for name in NAMES if name not in columns.values()]
        if step == "add" and free:
            columns[next(ids)] = free[n % len(free)]
        elif step == "drop" and columns:
            del columns[list(columns)[n % len(columns)]]
        elif step == "rename" and columns and free:
            columns[list(columns)[n % len(columns)]] = free[n % len(free)]
        history.append(schema(*((i, name, TEXT) for i, name in columns.items())))
    refused = reported(AB, *history)
    for first, name in ((1, "a"), (2, "b")):
        now = next((i for i, called in columns.items() if called == name), None)
        bore = {s.find_column_name(now) for s in history} - {None} if now else set()
        others = {i for s in history for i in columns if i != now and s.find_column_name(i) == name}
        assert (name in refused) == (now is None or bool(bore - {name} and others)), (first, columns, refused)
