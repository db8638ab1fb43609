"""The column changes that a table accepts of those that records suggest."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from frazil.ingest.schema_drift import SchemaDrift, find_new_fields, type_of_value
from frazil.table.evolution import Addition, Change, Promotion, Relaxation, plan_growth

INNER = StructType(NestedField(10, "a", StringType()))
TABLE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", LongType(), required=True),
    NestedField(3, "note", StringType()),
    NestedField(4, "count", IntegerType()),
    NestedField(5, "fare", DecimalType(9, 2)),
    NestedField(6, "place", INNER),
    NestedField(7, "stops", ListType(11, StructType(NestedField(12, "a", FloatType())), element_required=False)),
    NestedField(
        8, "tags", MapType(13, StringType(), 14, StructType(NestedField(15, "a", StringType())), value_required=False)
    ),
)


PARTITION_NAMES = {"at_day", "place.at_day"}
SAME_NAMES = [
    ("took_µs", "took_μs"),  # the micro sign and the Greek letter
    ("size", "ſize"),
    ("i", "ı"),
    ("i", "İ"),
    ("İ", "i\u0307"),
    ("part Ⅷ", "part ⅷ"),  # cased, but not letters
    ("1h", "_1h"),
    ("a-b", "a_x2Db"),
    ("a😀", "a_xd83d_xde00"),
    ("a\u0307", "a_x307"),
]
"""Pairs of names that Spark finds ambiguous, or that Iceberg writes as one name to Parquet."""


def requested(*changes: Change, former: tuple[Schema, ...] = (), limit: int = 500) -> tuple[list[Change], list[str]]:
    found = plan_growth(TABLE, former, changes, max_columns=limit, fixed={"at"}, partition_names=PARTITION_NAMES)
    return [*found.changes], [f"{'.'.join(refusal.path)} {refusal.reason}" for refusal in found.refused]


def new(*path: str, kind: IcebergType | None = None) -> Addition:
    return Addition(path, kind or StringType(), None)


@pytest.mark.parametrize("path", [("gate",), ("place", "b"), ("stops", "element", "b"), ("tags", "value", "b")])
def test_a_new_field_is_added_at_every_level(path: tuple[str, ...]):
    assert requested(new(*path)) == ([new(*path)], [])


@pytest.mark.parametrize("path", [("note",), ("place", "a"), ("gone", "b"), ("note", "b"), ("stops", "b")])
def test_requested_columns_that_exist_by_now_or_have_become_impossible_are_ignored(path: tuple[str, ...]):
    assert requested(new(*path)) == ([], [])


def test_names_in_another_case_are_refused_at_every_level():
    changes, refused = requested(new("Note"), new("place", "A"), new("Gate"), new("gate"))
    assert changes == [new("Gate")]
    assert [sentence.split(" ")[0] for sentence in refused] == ["Note", "gate", "place.A"]
    assert refused[0] == (
        "Note has the same name as the column note, because engines ignore case and replace special characters. Its "
        "values are not stored; rename the field"
    )


@pytest.mark.parametrize(("name", "other"), SAME_NAMES)
def test_names_that_an_engine_takes_for_the_same_are_refused_at_every_level(name: str, other: str) -> None:
    changes, refused = requested(*(new(*place, one) for place in ((), ("place",)) for one in (name, other)))
    first, second = sorted((name, other))
    assert {change.path for change in changes} == {(first,), ("place", first)}
    assert {sentence.split(" has the same name as ")[0] for sentence in refused} == {second, f"place.{second}"}


def test_the_name_of_a_column_that_frazil_may_add_later_is_refused():
    assert requested(new("Kafka_line"), new("place", "kafka_line")) == (
        [new("place", "kafka_line")],
        ["Kafka_line has the name of a column that frazil adds"],
    )


def test_no_column_gets_the_name_of_a_partition_field():
    """See trinodb/trino#22351 and apache/iceberg-python#2272."""
    changes, refused = requested(new("at_day"), new("place", "at_day"), new("stops", "element", "at_day"), new("day"))
    assert changes == [new("day"), new("stops", "element", "at_day")]
    assert [reason.split(" ")[0] for reason in refused] == ["at_day", "place.at_day"]
    assert all("has the name of a partition field of the table" in reason for reason in refused)


def test_no_column_gets_the_name_of_one_of_icebergs_own():
    changes, refused = requested(
        new("_file"), new("_Row_id"), new("_change_type"), new("place", "_file"), new("_other")
    )
    assert changes == [new("_other"), new("place", "_file")]
    assert [reason.split(" ")[0] for reason in refused] == ["_Row_id", "_change_type", "_file"]
    assert all("has the name of one of Iceberg's metadata columns" in reason for reason in refused)


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        (("place.a",), None),
        (("stops.element.a",), None),
        (("tags.value",), None),
        (("stops", "element", "b"), ("stops.element.b",)),
        (("x.y",), ("x",)),
    ],
)
def test_a_dotted_field_name_that_collides_with_a_nested_path_is_ignored(
    path: tuple[str, ...], beside: tuple[str, ...] | None
):
    """PyIceberg and Iceberg refuse a schema with both."""
    other = new(*beside, kind=StructType(NestedField(1, "y", LongType()))) if beside == ("x",) else None
    other = other or (new(*beside) if beside else None)
    changes, refused = requested(*filter(None, (other, new(*path))), new("dots.are.fine"))
    assert new("dots.are.fine") in changes
    assert len(changes) == 1 + bool(beside)
    (reason,) = refused
    assert "would have the full name of another field" in reason


def test_a_column_that_was_dropped_or_renamed_does_not_come_back():
    before = Schema(NestedField(1, "key", LongType()), NestedField(20, "gone", StringType()))
    changes, refused = requested(new("gone"), new("key"), new("other"), former=(before,))
    assert changes == [new("other")]
    assert refused[0].startswith("gone was dropped from the table")
    assert refused[1].startswith("key was renamed to id in the table")


def test_a_structs_fields_count_towards_the_maximum_number_of_columns():
    two = StructType(NestedField(1, "x", LongType()), NestedField(2, "y", LongType()))
    changes, refused = requested(new("a"), new("b", kind=two), new("c"), limit=16)
    assert changes == [new("a"), new("c")]
    assert refused == ["b would be column 18 of the table, but evolution.max-columns is 16"]


def test_evolution_only_widens_types():
    wider = Promotion(("count",), LongType()), Promotion(("fare",), DecimalType(11, 2))
    nested = Promotion(("stops", "element", "a"), DoubleType())
    no = Promotion(("fare",), DecimalType(8, 2)), Promotion(("fare",), DecimalType(11, 3))
    other = Promotion(("note",), LongType()), Promotion(("id",), LongType()), Promotion(("gone",), LongType())
    assert requested(*wider, nested, *no, *other) == ([*wider, nested], [])


def test_columns_become_optional_but_for_those_that_are_fixed():
    assert requested(Relaxation(("id",)), Relaxation(("at",)), Relaxation(("note",))) == ([Relaxation(("id",))], [])


@pytest.mark.parametrize(("name", "other"), SAME_NAMES)
def test_of_a_new_structs_fields_with_the_same_name_for_engines_one_is_kept(name: str, other: str) -> None:
    first, second = sorted((name, other))
    kept, refused = find_new_fields(SchemaDrift(new={("took",): type_of_value({name: 1, other: 2})}))
    assert isinstance(kept.type, StructType)
    assert [field.name for field in kept.type.fields] == [first]
    assert refused.path == ("took", second)
    assert f"the same name as {first}," in refused.problem
