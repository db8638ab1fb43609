"""Rows split by partition value and sorted, compared with PyIceberg's scalar transforms."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

from frazil.ingest.partitioning import sort_rows, split_by_partition

SCHEMA = Schema(
    t.NestedField(1, "row", t.LongType(), required=True),
    t.NestedField(2, "int", t.IntegerType()),
    t.NestedField(3, "long", t.LongType()),
    t.NestedField(4, "decimal", t.DecimalType(9, 2)),
    t.NestedField(5, "date", t.DateType()),
    t.NestedField(6, "timestamp", t.TimestampType()),
    t.NestedField(7, "timestamptz", t.TimestamptzType()),
    t.NestedField(8, "string", t.StringType()),
    t.NestedField(9, "uuid", t.UUIDType()),
    t.NestedField(10, "fixed", t.FixedType(2)),
    t.NestedField(11, "binary", t.BinaryType()),
    t.NestedField(12, "double", t.DoubleType()),
    t.NestedField(13, "boolean", t.BooleanType()),
    t.NestedField(14, "time", t.TimeType()),
    t.NestedField(15, "inner", t.StructType(t.NestedField(16, "at", t.TimestamptzType()))),
)
ARROW = schema_to_pyarrow(SCHEMA, include_field_ids=True)

_times = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)) | st.sampled_from([datetime.min, datetime.max])  # noqa: DTZ001, DTZ901 - wall clocks
_values: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "decimal": st.decimals(Decimal("-9999999.98"), Decimal("9999999.99"), places=2),
    "date": st.dates(date(1900, 1, 1), date(2100, 1, 1)) | st.sampled_from([date.min, date.max]),
    "timestamp": _times,
    "timestamptz": _times.map(lambda moment: moment.replace(tzinfo=UTC)),
    "string": st.text(st.characters(codec="utf-8"), max_size=4),
    "uuid": st.binary(min_size=16, max_size=16),
    "fixed": st.binary(min_size=2, max_size=2),
    "binary": st.binary(max_size=4),
    "double": st.sampled_from([0.0, 1.5, -2.5, math.nan, math.inf, -math.inf]),
    "boolean": st.booleans(),
    "time": st.times(),
    "inner": _times.map(lambda moment: {"at": moment.replace(tzinfo=UTC)}),
}


def rows_of(column: str) -> st.SearchStrategy[list[Any]]:
    """Few distinct values, so that partitions have several rows; nulls among them."""
    few = st.lists(_values[column], min_size=1, max_size=4)
    return few.flatmap(lambda pool: st.lists(st.sampled_from([None, *pool]), max_size=12))


def table_of(column: str, values: list[Any]) -> pa.Table:
    columns: dict[str, list[Any]] = {"row": list(range(len(values))), column: values}
    absent = [None] * len(values)
    arrays = [
        pa.ExtensionArray.from_storage(f.type, pa.array(columns.get(f.name, absent), f.type.storage_type))
        if isinstance(f.type, pa.ExtensionType)
        else pa.array(columns.get(f.name, absent), f.type)
        for f in ARROW
    ]
    return pa.Table.from_arrays(arrays, schema=ARROW)


TRANSFORMS: list[tr.Transform[Any, Any]] = [
    tr.IdentityTransform(),
    tr.BucketTransform(4),
    tr.TruncateTransform(2),
    tr.YearTransform(),
    tr.MonthTransform(),
    tr.DayTransform(),
    tr.HourTransform(),
    tr.VoidTransform(),
]
SOURCES = [name for name in _values if name != "inner"]
CASES = [(tr_, c) for tr_ in TRANSFORMS for c in SOURCES if tr_.can_transform(SCHEMA.find_type(c))]


def expected_value(transform: tr.Transform[Any, Any], column: str, value: Any) -> Any:
    result = transform.transform(SCHEMA.find_type(column))(value) if value is not None else None
    return "nan" if isinstance(result, float) and math.isnan(result) else result


def comparable(value: Any) -> Any:
    """NaN is not equal to itself: a word is."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("transform", "column"), CASES, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_the_parts_together_are_the_input_and_each_row_has_its_partition_value(
    transform: tr.Transform[Any, Any], column: str, data: st.DataObject
) -> None:
    values = data.draw(rows_of(column))
    source = SCHEMA.find_field(column)
    spec = PartitionSpec(PartitionField(source.field_id, 1000, transform, "p"))
    parts = list(split_by_partition(table_of(column, values), SCHEMA, spec))
    seen = [(row, comparable(part.values[0])) for part in parts for row in part.rows["row"].to_pylist()]
    assert sorted(seen, key=lambda pair: pair[0]) == [
        (row, expected_value(transform, column, value)) for row, value in enumerate(values)
    ]
    keys = [comparable(part.values[0]) for part in parts]
    assert len(keys) == len(set(keys))
    assert all(part.rows["row"].to_pylist() == sorted(part.rows["row"].to_pylist()) for part in parts)


def test_splitting_a_table_with_one_partition_value_copies_nothing() -> None:
    table = table_of("date", [date(2026, 1, 2)] * 5)
    spec = PartitionSpec(PartitionField(5, 1000, tr.MonthTransform(), "m"))
    (part,) = split_by_partition(table, SCHEMA, spec)
    assert part.rows is table


def test_an_unpartitioned_table_is_one_part() -> None:
    table = table_of("int", [1, 2, None])
    (part,) = split_by_partition(table, SCHEMA, PartitionSpec())
    assert part.values == ()
    assert part.rows is table


def test_several_fields_partition_together_and_one_may_be_nested() -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=h) for h in (0, 30, 1, 0)]
    table = table_of("inner", [{"at": m} for m in moments])
    spec = PartitionSpec(
        PartitionField(16, 1000, tr.DayTransform(), "d"), PartitionField(1, 1001, tr.TruncateTransform(2), "r")
    )
    parts = [(part.values, part.rows["row"].to_pylist()) for part in split_by_partition(table, SCHEMA, spec)]
    first, second = (
        (moments[0] - datetime(1970, 1, 1, tzinfo=UTC)).days,
        (moments[1] - datetime(1970, 1, 1, tzinfo=UTC)).days,
    )
    assert sorted(parts) == [((first, 0), [0]), ((first, 2), [2, 3]), ((second, 0), [1])]


def order_key(value: Any, *, nulls_first: bool, descending: bool) -> tuple[int, Any]:
    """Return one key's sort order by Iceberg's rules: NaN is the largest number; nulls are where the term puts them."""
    if value is None:
        return (0 if nulls_first else 2, 0)
    number = (1, 0.0) if math.isnan(value) else (0, value)
    return (1, tuple(-part for part in number) if descending else number)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.none(), _values["double"]), max_size=15), st.booleans(), st.booleans())
def test_rows_sort_by_direction_with_nulls_and_nans_in_their_place(
    values: list[float | None], descending: bool, nulls_first: bool
) -> None:
    order = SortOrder(
        SortField(
            12,
            tr.IdentityTransform(),
            SortDirection.DESC if descending else SortDirection.ASC,
            NullOrder.NULLS_FIRST if nulls_first else NullOrder.NULLS_LAST,
        ),
        order_id=1,
    )
    ordered = sort_rows(table_of("double", values), SCHEMA, order)["row"].to_pylist()
    keys = [order_key(values[row], nulls_first=nulls_first, descending=descending) for row in ordered]
    assert sorted(ordered) == list(range(len(values)))
    assert keys == sorted(keys)


@pytest.mark.parametrize("column", SOURCES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_type_can_be_a_sort_key(column: str, data: st.DataObject) -> None:
    values = data.draw(rows_of(column))
    order = SortOrder(SortField(SCHEMA.find_field(column).field_id, tr.IdentityTransform()), order_id=1)
    ordered = sort_rows(table_of(column, values), SCHEMA, order)["row"].to_pylist()
    present = [comparable(values[row]) for row in ordered if values[row] is not None]
    nulls = len(values) - len(present)
    assert [values[row] for row in ordered[:nulls]] == [None] * nulls
    assert present == sorted(present, key=lambda value: (value == "nan", 0 if value == "nan" else value))
