"""Translates a declared stream to PyIceberg's schema, partition spec and sort order. Defines the dead-letter schema."""

from __future__ import annotations

from itertools import count
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.spec import types
from frazil.spec.coordinates import COORDINATES, LINE, REQUIRED_COORDINATES
from frazil.spec.layout import Term, parse_sort_term, parse_term
from frazil.spec.model import StreamSpec

FIRST_PARTITION_FIELD_ID = 1000
"""Iceberg specification, "Partition Specs"."""

_PRIMITIVES: dict[str, type[Any]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "date": DateType,
    "time": TimeType,
    "timestamp": TimestampType,
    "timestamptz": TimestamptzType,
    "string": StringType,
    "uuid": UUIDType,
    "binary": BinaryType,
    "decimal": DecimalType,
    "fixed": FixedType,
}
_TRANSFORMS: dict[str, type[Any]] = {
    "identity": IdentityTransform,
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
    "void": VoidTransform,
}
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

    def convert(self, declared: types.Type) -> IcebergType:
        if isinstance(declared, types.Primitive):
            primitive: IcebergType = _PRIMITIVES[declared.name](*declared.arguments)
            return primitive
        if isinstance(declared, types.Struct):
            return StructType(*self.fields([(f.name, f.type, f.required, None) for f in declared.fields]))
        if isinstance(declared, types.List):
            element_id = next(self._ids)
            return ListType(element_id, self.convert(declared.element), element_required=False)
        key_id, value_id = next(self._ids), next(self._ids)
        return MapType(key_id, self.convert(declared.key), value_id, self.convert(declared.value), value_required=False)

    def fields(self, declared: list[tuple[str, types.Type, bool, str | None]]) -> list[NestedField]:
        """Convert declared fields: name, type, required, doc."""
        ids = [next(self._ids) for _ in declared]
        return [
            NestedField(field_id, name, self.convert(field_type), required=required, doc=doc)
            for field_id, (name, field_type, required, doc) in zip(ids, declared, strict=True)
        ]


def table_schema(spec: StreamSpec) -> Schema:
    """Return the declared columns in order, and the Kafka coordinates. Field ids start at 1.

    The key of an upsert stream becomes Iceberg's identifier fields.
    """
    declared = [(c.name, types.parse_type(c.type), c.required, c.doc) for c in spec.columns]
    if spec.coordinates:
        declared += [
            (name, kind, name in REQUIRED_COORDINATES, _COORDINATE_DOCS[name]) for name, kind in COORDINATES.items()
        ]
        if spec.has_lines:
            declared.append((LINE, types.Primitive("int"), False, "Number of the row within its Kafka record, from 0"))
    fields = _FieldIds().fields(declared)
    key = [field.field_id for field in fields if field.name in spec.key]
    return Schema(*fields, schema_id=0, identifier_field_ids=key)


def records_schema(spec: StreamSpec) -> Schema:
    """Return the schema of the stream's records before any transform. Field ids start at 1."""
    return Schema(
        *_FieldIds().fields([(c.name, types.parse_type(c.type), c.required, c.doc) for c in spec.record_columns])
    )


def partition_spec(spec: StreamSpec, of: Schema) -> PartitionSpec:
    """Return the declared partitioning of the schema `of`. Partition fields have Spark's names."""
    terms = [parse_term(text) for text in spec.partition_by]
    fields = [
        PartitionField(
            source_id=of.find_field(term.column).field_id,
            field_id=FIRST_PARTITION_FIELD_ID + index,
            transform=_build_transform(term),
            name=term.field_name,
        )
        for index, term in enumerate(terms)
    ]
    return PartitionSpec(*fields, spec_id=0)


def sort_order(spec: StreamSpec, of: Schema) -> SortOrder:
    """Return the declared sort order of the schema `of`; id 0 if it is unsorted."""
    terms = [parse_sort_term(text) for text in spec.sort_by]
    fields = [
        SortField(
            source_id=of.find_field(sort.term.column).field_id,
            transform=_build_transform(sort.term),
            direction=SortDirection(sort.direction),
            null_order=NullOrder(f"nulls-{sort.nulls}"),
        )
        for sort in terms
    ]
    return SortOrder(*fields, order_id=1) if fields else SortOrder(order_id=0)


def _build_transform(term: Term) -> Transform[Any, Any]:
    arguments = (term.width,) if term.width else ()
    transform: Transform[Any, Any] = _TRANSFORMS[term.transform](*arguments)
    return transform


DEAD_LETTER_SCHEMA = Schema(
    NestedField(1, "kafka_topic", StringType(), required=True, doc="Topic of the record"),
    NestedField(2, "kafka_partition", IntegerType(), required=True, doc="Partition of the record"),
    NestedField(3, "kafka_offset", LongType(), required=True, doc="Offset of the record"),
    NestedField(
        4,
        "topic_id",
        StringType(),
        required=False,
        doc="Kafka's id of the topic, which changes if the topic is recreated",
    ),
    NestedField(5, "kafka_timestamp", TimestamptzType(), required=False, doc="Timestamp of the record"),
    NestedField(6, "key", BinaryType(), required=False, doc="The key's bytes, unchanged"),
    NestedField(7, "value", BinaryType(), required=False, doc="The value's bytes, unchanged"),
    NestedField(8, "error_class", StringType(), required=True, doc="Class of the error, to count by"),
    NestedField(9, "error", StringType(), required=True, doc="Message of the error"),
    NestedField(10, "rejected_at", TimestamptzType(), required=True, doc="When frazil rejected the record"),
    NestedField(
        11, "stream", StringType(), required=False, doc="Stream that rejected the record; several may share the table"
    ),
    NestedField(
        12,
        "headers",
        ListType(
            17,
            StructType(
                NestedField(18, "name", StringType(), required=False),
                NestedField(19, "value", BinaryType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
        doc="The headers in their order; null if the record has none",
    ),
    NestedField(13, "replays", IntegerType(), required=False, doc="Number of replays that failed"),
    NestedField(14, "discarded_at", TimestamptzType(), required=False, doc="When an operator discarded it"),
    NestedField(15, "discarded_by", StringType(), required=False, doc="Who discarded it"),
    NestedField(16, "discard_reason", StringType(), required=False, doc="Why it was discarded"),
    schema_id=0,
)

DEAD_LETTER_PARTITION_SPEC = PartitionSpec(
    PartitionField(source_id=10, field_id=FIRST_PARTITION_FIELD_ID, transform=DayTransform(), name="rejected_at_day"),
    spec_id=0,
)


def format_type(kind: IcebergType) -> str:
    """Format a type as in a declaration: the inverse of `frazil.spec.types.parse_type`."""
    match kind:
        case StructType():
            fields = (f"{f.name}: {format_type(f.field_type)}{' not null' if f.required else ''}" for f in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ListType():
            return f"list<{format_type(kind.element_type)}>"
        case MapType():
            return f"map<{format_type(kind.key_type)}, {format_type(kind.value_type)}>"
    return str(kind)


def format_declaration(field: NestedField) -> str:
    """Format a column as an entry of `schema` in YAML, valid in block style and within braces."""
    text = format_type(field.field_type) + (" not null" if field.required else "")
    return f"{field.name}: {text!r}" if set(text) & set(",:[]") else f"{field.name}: {text}"
