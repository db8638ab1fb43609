"""A declared stream as PyIceberg's schema, partition spec and sort order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.spec import iceberg
from frazil.spec.load import load_stream
from frazil.spec.types import PRIMITIVE_NAMES

Declare = Callable[..., Path]


def test_columns_keep_their_order_and_coordinates_come_last(declare: Declare) -> None:
    schema = iceberg.table_schema(
        load_stream(declare(schema={"departed": {"type": "timestamptz", "doc": "when"}, "b": "int not null"}))
    )
    assert schema.fields == (
        NestedField(1, "departed", TimestamptzType(), required=False, doc="when"),
        NestedField(2, "b", IntegerType(), required=True),
        NestedField(3, "kafka_topic", StringType(), required=True, doc="Topic of the Kafka record"),
        NestedField(4, "kafka_partition", IntegerType(), required=True, doc="Partition of the Kafka record"),
        NestedField(5, "kafka_offset", LongType(), required=True, doc="Offset of the Kafka record"),
        NestedField(6, "kafka_timestamp", TimestamptzType(), required=False, doc="Timestamp of the Kafka record"),
    )


def test_coordinates_can_be_switched_off(declare: Declare) -> None:
    assert iceberg.table_schema(load_stream(declare(coordinates=False))).column_names == [
        "carrier",
        "departed",
        "delay",
    ]


def test_nested_fields_have_ids_of_their_own(declare: Declare) -> None:
    nested = "map<string, list<struct<a: int not null, b: decimal(9, 2)>>>"
    schema = iceberg.table_schema(
        load_stream(declare(schema={"n": nested, "departed": "timestamptz"}, coordinates=False))
    )
    assert str(schema.find_type("n")) == ("map<string, list<struct<6: a: required int, 7: b: optional decimal(9, 2)>>>")
    assert sorted(schema._lazy_id_to_name) == list(range(1, 8))


@pytest.mark.parametrize("name", [*PRIMITIVE_NAMES, "decimal(9, 2)", "fixed[4]"])
def test_primitive_types_parse_as_in_pyiceberg(declare: Declare, name: str) -> None:
    schema = iceberg.table_schema(load_stream(declare(schema={"x": name, "departed": "timestamptz"})))
    assert schema.find_type("x") == IcebergType.handle_primitive_type(name, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "long not null",
        "decimal(8, 2)",
        "fixed[2]",
        "list<struct<a: long not null, b: string>>",
        "map<string, map<string, list<timestamptz>>>",
    ],
)
def test_a_column_is_shown_as_it_would_be_declared(declare: Declare, text: str) -> None:
    def column(declared: dict[str, str]) -> NestedField:
        return iceberg.table_schema(load_stream(declare(schema={**declared, "departed": "timestamptz"}))).find_field(
            "a"
        )

    line = iceberg.format_declaration(field := column({"a": text}))
    assert yaml.safe_load(line) == yaml.safe_load(f"{{{line}}}") == {"a": text}
    assert column(yaml.safe_load(line)) == field


def test_partitioning_is_named_as_spark_names_it(declare: Declare) -> None:
    spec = load_stream(
        declare(
            partition_by=[
                "day(departed)",
                "bucket(16, carrier)",
                "truncate(2, delay)",
                "delay",
                "void(carrier)",
                "hour(kafka_timestamp)",
            ]
        )
    )
    schema = iceberg.table_schema(spec)
    fields = iceberg.partition_spec(spec, schema).fields
    assert [(f.name, str(f.transform), f.source_id, f.field_id) for f in fields] == [
        ("departed_day", "day", 2, 1000),
        ("carrier_bucket", "bucket[16]", 1, 1001),
        ("delay_trunc", "truncate[2]", 3, 1002),
        ("delay", "identity", 3, 1003),
        ("carrier_null", "void", 1, 1004),
        ("kafka_timestamp_hour", "hour", 7, 1005),
    ]


def test_a_partition_source_may_stand_in_a_struct(declare: Declare) -> None:
    columns = {"departed": "timestamptz", "payload": "struct<at: timestamptz, id: long>"}
    spec = load_stream(declare(schema=columns, partition_by=["day(payload.at)"]))
    schema = iceberg.table_schema(spec)
    assert iceberg.partition_spec(spec, schema).fields[0].source_id == schema.find_field("payload.at").field_id


def test_a_sort_order_follows_iceberg(declare: Declare) -> None:
    spec = load_stream(declare(sort_by=["carrier", "delay desc nulls first", "bucket(4, delay)"]))
    fields = iceberg.sort_order(spec, iceberg.table_schema(spec)).fields
    assert [(str(f.transform), f.source_id, f.direction.value, f.null_order.value) for f in fields] == [
        ("identity", 1, "asc", "nulls-first"),
        ("identity", 3, "desc", "nulls-first"),
        ("bucket[4]", 3, "asc", "nulls-first"),
    ]


def test_a_stream_without_sort_by_gets_the_unsorted_order(declare: Declare) -> None:
    spec = load_stream(declare())
    assert iceberg.sort_order(spec, iceberg.table_schema(spec)).order_id == 0
    assert iceberg.partition_spec(spec, iceberg.table_schema(spec)).is_unpartitioned()


def test_dead_letters_are_partitioned_by_the_day_they_were_rejected() -> None:
    schema: Schema = iceberg.DEAD_LETTER_SCHEMA
    required = [field.name for field in schema.fields if field.required]
    assert required == ["kafka_topic", "kafka_partition", "kafka_offset", "error_class", "error", "rejected_at"]
    (field,) = iceberg.DEAD_LETTER_PARTITION_SPEC.fields
    assert (schema.find_column_name(field.source_id), str(field.transform)) == ("rejected_at", "day")
