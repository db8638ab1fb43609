"""Columns that users rename, and declarations that still have the old names."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from frazil.errors import SchemaIncompatible
from frazil.spec.iceberg import FORMER_COLUMNS_PROPERTY, parse_former_columns
from frazil.table.renamed_columns import ColumnChanges, find_aliases, find_change_problems, use_current_names

BEFORE = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "a", StringType()), NestedField(3, "gone", StringType())
)
TABLE = Schema(NestedField(1, "id", LongType()), NestedField(2, "b", StringType()), NestedField(4, "new", StringType()))
FORMER = {"a": 2, "gone": None, "older": 2, "id": 4, "strange": 9}


def names(schema: Schema) -> list[str]:
    return [field.name for field in schema.fields]


def test_a_declaration_with_old_column_names_uses_the_current_columns():
    assert names(use_current_names(BEFORE, TABLE, FORMER)) == ["id", "b"]
    assert names(use_current_names(TABLE, TABLE, FORMER)) == ["id", "b", "new"]


def test_a_renamed_column_is_declared_only_once():
    both = Schema(NestedField(1, "a", StringType()), NestedField(2, "b", StringType()))
    assert names(use_current_names(both, TABLE, FORMER)) == ["b"]


def test_the_current_name_of_a_column_is_not_an_alias_of_another():
    assert find_aliases(TABLE, FORMER) == {"a": 2, "older": 2}


@pytest.mark.parametrize("text", ["[]", "{", '{"a": "b"}', '{"a": true}'])
def test_a_manually_edited_property_is_reported_by_name(text: str):
    with pytest.raises(SchemaIncompatible, match=FORMER_COLUMNS_PROPERTY):
        parse_former_columns({FORMER_COLUMNS_PROPERTY: text})


def test_without_the_property_no_column_counts_as_renamed():
    assert parse_former_columns({}) == {}


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        (ColumnChanges({"b": "c", "new": "d"}, ["id"]), []),
        (ColumnChanges({"b": "B"}, []), []),
        (ColumnChanges({"b": "a"}, []), []),
        (ColumnChanges({"none": "c"}, ["nothing"]), ["has no column none", "has no column nothing"]),
        (ColumnChanges({"b": "ID"}, []), ["already has the column id"]),
        (ColumnChanges({"b": "ıd"}, []), ["already has the column id"]),
        (ColumnChanges({"b": "x.y"}, []), ["is not a valid column name"]),
        (ColumnChanges({"b": "_Pos"}, []), ["one of Iceberg's metadata columns"]),
        (ColumnChanges({"b": "gone"}, []), ["was once the name of another column"]),
        (ColumnChanges({"b": "c"}, ["b"]), ["cannot be both renamed and dropped"]),
    ],
)
def test_impossible_column_changes_are_reported_with_the_reason(requested: ColumnChanges, says: list[str]):
    found = find_change_problems(requested, TABLE, [BEFORE], fixed={})
    assert len(found) == len(says)
    assert all(words in sentence for words, sentence in zip(says, found, strict=True))


def test_two_columns_do_not_get_one_name():
    assert find_change_problems(ColumnChanges({"b": "c", "new": "C"}, []), TABLE, [BEFORE], fixed={}) == [
        "C is the new name of two columns"
    ]


def test_no_column_gets_the_name_of_another_columns_partition_field():
    days = PartitionField(TABLE.find_field("b").field_id, 1000, DayTransform(), "b_day")
    values = PartitionField(TABLE.find_field("b").field_id, 1001, IdentityTransform(), "region")

    def problems(old: str, new: str) -> list[str]:
        specs = [PartitionSpec(days, spec_id=0), PartitionSpec(values, spec_id=1)]
        return find_change_problems(ColumnChanges({old: new}, []), TABLE, [BEFORE], fixed={}, specs=specs)

    assert problems("b", "region") == []
    for old, new in (("new", "region"), ("new", "b_day"), ("b", "b_day")):
        assert problems(old, new) == [
            f"{new} has the name of a partition field of the table, so engines would refuse the table"
        ]


def test_a_column_that_the_table_needs_cannot_be_changed():
    found = find_change_problems(ColumnChanges({}, ["new"]), TABLE, [BEFORE], fixed={"new": "it is needed"})
    assert found == ["the column new cannot be changed: it is needed"]
