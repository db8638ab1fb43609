"""Translates a declared stream to PyIceberg's schema, partition spec and sort order. Defines the dead-letter schema.
Reads the former names of a table's columns: rows staged for the default table may have older names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from itertools import count
from typing import Any

from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

from frazil.errors import SchemaIncompatible
from frazil.pyiceberg_fixes import VariantType
from frazil.spec import types
from frazil.spec.column import COORDINATES, LINE_COLUMN, REQUIRED_COORDINATES
from frazil.spec.layout import Term, parse_sort_term, parse_term
from frazil.spec.model import StreamSpec

FIRST_PARTITION_FIELD_ID = 1000
"""First field id of partition fields, as in the Iceberg specification ("Partition Specs")."""


_COORDINATE_DOCS = {
    "kafka_topic": "Topic of the Kafka record",
    "kafka_partition": "Partition of the Kafka record",
    "kafka_offset": "Offset of the Kafka record",
    "kafka_timestamp": "Timestamp of the Kafka record",
}


class _FieldIds:
    """Assigns field ids as Iceberg does: all fields of one level before the fields nested in them."""

    def __init__(self) -> None:
        self._ids = count(1)

    def convert(self, declared: types.Type) -> iceberg.IcebergType:
        if isinstance(declared, types.Primitive):
            return iceberg.IcebergType.model_validate(str(declared))
        if isinstance(declared, types.Struct):
            return iceberg.StructType(*self.fields([(f.name, f.type, f.required, None) for f in declared.fields]))
        if isinstance(declared, types.List):
            element_id = next(self._ids)
            return iceberg.ListType(element_id, self.convert(declared.element), element_required=False)
        key_id, value_id = next(self._ids), next(self._ids)
        return iceberg.MapType(
            key_id, self.convert(declared.key), value_id, self.convert(declared.value), value_required=False
        )

    def fields(self, declared: list[tuple[str, types.Type, bool, str | None]]) -> list[iceberg.NestedField]:
        ids = [next(self._ids) for _ in declared]
        return [
            iceberg.NestedField(field_id, name, self.convert(field_type), required=required, doc=doc)
            for field_id, (name, field_type, required, doc) in zip(ids, declared, strict=True)
        ]


def iceberg_type(text: str) -> iceberg.IcebergType:
    """Return Iceberg's type for a declared type, with new field ids. Raises ValueError."""
    return _FieldIds().convert(types.parse_type(text))


def table_schema(spec: StreamSpec) -> Schema:
    """Return the table's declared schema. The key of an upsert stream becomes Iceberg's identifier fields."""
    declared = [(c.name, types.parse_type(c.type), c.required, c.doc) for c in spec.columns]
    if spec.coordinates:
        declared += [
            (name, kind, name in REQUIRED_COORDINATES, _COORDINATE_DOCS[name]) for name, kind in COORDINATES.items()
        ]
        if spec.has_lines:
            declared.append(
                (LINE_COLUMN, types.Primitive("int"), False, "Number of the row within its Kafka record, from 0")
            )
    fields = _FieldIds().fields(declared)
    key = [field.field_id for field in fields if field.name in spec.key]
    return Schema(*fields, schema_id=0, identifier_field_ids=key)


def records_schema(spec: StreamSpec) -> Schema:
    return Schema(
        *_FieldIds().fields([(c.name, types.parse_type(c.type), c.required, c.doc) for c in spec.record_columns])
    )


def partition_spec(spec: StreamSpec, schema: Schema) -> PartitionSpec:
    """Return the declared partitioning, with field ids of `schema`. Partition fields have Spark's names."""
    terms = enumerate(map(parse_term, spec.partition_by), FIRST_PARTITION_FIELD_ID)
    fields = [
        PartitionField(schema.find_field(term.column).field_id, field_id, _build_transform(term), term.field_name)
        for field_id, term in terms
    ]
    return PartitionSpec(*fields, spec_id=0)


def sort_order(spec: StreamSpec, schema: Schema) -> SortOrder:
    """Return the declared sort order, with field ids of `schema`. Its id is 0 if the table is unsorted."""
    terms = [parse_sort_term(text) for text in spec.sort_by]
    fields = [
        SortField(
            source_id=schema.find_field(sort.term.column).field_id,
            transform=_build_transform(sort.term),
            direction=SortDirection(sort.direction),
            null_order=NullOrder(f"nulls-{sort.nulls}"),
        )
        for sort in terms
    ]
    return SortOrder(*fields, order_id=1) if fields else SortOrder(order_id=0)


def _build_transform(term: Term) -> transforms.Transform[Any, Any]:
    return transforms.parse_transform(f"{term.transform}[{term.width}]" if term.width else term.transform)


_TEXT, _BYTES, _INT, _MOMENT = map(iceberg_type, ("string", "binary", "int", "timestamptz"))
_HEADER = iceberg.StructType(
    iceberg.NestedField(18, "name", _TEXT, required=False), iceberg.NestedField(19, "value", _BYTES, required=False)
)
_REQUIRED_IN_DEAD_LETTERS = frozenset({*REQUIRED_COORDINATES, "error_class", "error", "rejected_at"})
DEAD_LETTER_SCHEMA = Schema(
    *(
        iceberg.NestedField(field_id, name, kind, required=name in _REQUIRED_IN_DEAD_LETTERS, doc=doc)
        for field_id, name, kind, doc in (
            (1, "kafka_topic", _TEXT, "Topic of the record"),
            (2, "kafka_partition", _INT, "Partition of the record"),
            (3, "kafka_offset", iceberg.LongType(), "Offset of the record"),
            (4, "topic_id", _TEXT, "Kafka's id of the topic, which changes if the topic is recreated"),
            (5, "kafka_timestamp", _MOMENT, "Timestamp of the record"),
            (6, "key", _BYTES, "The key's bytes, unchanged"),
            (7, "value", _BYTES, "The value's bytes, unchanged"),
            (8, "error_class", _TEXT, "Class of the error, to count by"),
            (9, "error", _TEXT, "Message of the error"),
            (10, "rejected_at", _MOMENT, "When frazil rejected the record"),
            (11, "stream", _TEXT, "Stream that rejected the record; several may share the table"),
            (12, "headers", iceberg.ListType(17, _HEADER, False), "The headers in order; null if the record has none"),
            (13, "replays", _INT, "Number of replays that failed"),
            (14, "discarded_at", _MOMENT, "When an operator discarded it"),
            (15, "discarded_by", _TEXT, "Who discarded it"),
            (16, "discard_reason", _TEXT, "Why it was discarded"),
        )
    ),
    schema_id=0,
)

DEAD_LETTER_PARTITION_SPEC = PartitionSpec(
    PartitionField(10, FIRST_PARTITION_FIELD_ID, transforms.DayTransform(), "rejected_at_day"), spec_id=0
)


def format_type(kind: iceberg.IcebergType) -> str:
    """Format a type as in a declaration: the inverse of `frazil.spec.types.parse_type`."""
    match kind:
        case iceberg.StructType():
            fields = (f"{f.name}: {format_type(f.field_type)}{' not null' if f.required else ''}" for f in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case iceberg.ListType():
            return f"list<{format_type(kind.element_type)}>"
        case iceberg.MapType():
            return f"map<{format_type(kind.key_type)}, {format_type(kind.value_type)}>"
    return str(kind)


def format_declaration(field: iceberg.NestedField) -> str:
    """Format a column as an entry of `schema` in YAML, valid in block style and within braces."""
    text = format_type(field.field_type) + (" not null" if field.required else "")
    return f"{field.name}: {text!r}" if set(text) & set(",:[]") else f"{field.name}: {text}"


_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
DATE_LIMITS_DAYS = (date.min.toordinal() - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL)
"""The first and the last day that Python can represent, in days since 1970."""
TIMESTAMP_LIMITS_US = (DATE_LIMITS_DAYS[0] * 86_400_000_000, (DATE_LIMITS_DAYS[1] + 1) * 86_400_000_000 - 1)
"""The first and the last moment that Python can represent, in microseconds since 1970."""


def find_limits(kind: iceberg.IcebergType) -> tuple[int, int] | None:
    """Return a type's lowest and greatest value; None if it has no limits.

    Decimals are integers without the decimal point. Dates are days, and timestamps microseconds, since 1970.
    """
    match kind:
        case iceberg.IntegerType():
            return -(2**31), 2**31 - 1
        case iceberg.LongType():
            return -(2**63), 2**63 - 1
        case iceberg.DecimalType():
            return 1 - 10**kind.precision, 10**kind.precision - 1
        case iceberg.DateType():
            return DATE_LIMITS_DAYS
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            return TIMESTAMP_LIMITS_US
    return None


def filter_between(field: iceberg.NestedField, lowest: Any, greatest: Any) -> BooleanExpression:
    """Return a range filter. Omits a bound equal to the type's limit: PyIceberg would compute the value beyond it."""
    first, last = find_limits(field.field_type) or (None, None)
    row_filter: BooleanExpression = AlwaysTrue()
    if first is None or _to_unscaled(lowest) > first:
        row_filter = GreaterThanOrEqual(term=field.name, value=lowest)
    if last is None or _to_unscaled(greatest) < last:
        row_filter = And(row_filter, LessThanOrEqual(term=field.name, value=greatest))
    return row_filter


def _to_unscaled(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    sign, digits, _ = value.as_tuple()
    return (-1) ** sign * int("".join(map(str, digits)))


FORMER_COLUMNS_PROPERTY = "frazil.former-columns"
"""Table property: JSON that maps each former name to its renamed column's field id, or to null for a dropped column."""

FormerColumns = Mapping[str, int | None]


def parse_former_columns(properties: Mapping[str, str]) -> FormerColumns:
    """Parse the table property. Raises SchemaIncompatible if a manual edit made it invalid."""
    text = properties.get(FORMER_COLUMNS_PROPERTY, "{}")
    try:
        columns = json.loads(text)
        if all(field is None or type(field) is int for field in columns.values()):
            return dict(columns)
    except (ValueError, AttributeError):
        pass
    raise SchemaIncompatible(
        f"the table property {FORMER_COLUMNS_PROPERTY} is {text[:200]!r}, which is not a JSON mapping of names to "
        "field ids: remove it"
    )


def find_current_name(existing: Schema, field_id: int | None) -> str | None:
    return next((field.name for field in existing.fields if field.field_id == field_id), None)


def find_names_in_rows(
    routed: Schema, routed_former: FormerColumns, main: Schema, main_former: FormerColumns
) -> dict[str, set[str]]:
    """Map each column of a routed table (`routed`) to its other names in rows of the default table (`main`)."""
    ids = {**main_former, **{field.name: field.field_id for field in main.fields}}
    columns = {field.name for field in routed.fields}
    result = {}
    for field in routed.fields:
        names = {field.name, *(name for name, field_id in routed_former.items() if field_id == field.field_id)}
        of_main = {ids.get(name) for name in names} - {None}
        result[field.name] = (names | {name for name, field_id in ids.items() if field_id in of_main}) - columns
    return {name: names for name, names in result.items() if names}


def variant_columns(schema: Schema) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields if isinstance(field.field_type, VariantType))


def check_variants(schema: Schema) -> None:
    """Raise SchemaIncompatible for a variant inside another type."""
    columns = {field.field_id for field in schema.fields}
    for i in sorted(schema.field_ids - columns):
        if isinstance(schema.find_type(i), VariantType):
            raise SchemaIncompatible(
                f"the column {schema.find_column_name(i)} is a variant inside another type, which frazil cannot "
                "write. Drop the column, or make the whole column a variant"
            )
