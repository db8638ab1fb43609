"""Builds filters of Iceberg's Java API that select exactly the files of given partitions, by terms of the spec such as
`day(ts) = 16070`. SQL cannot express `bucket` and `truncate`, and a range of values would select neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import DecimalType, IcebergType, TimestampType, TimestamptzType, TimeType, UUIDType

from frazil.partitions.windows import EPOCH

_TEXT_TYPES = (DecimalType, UUIDType)


def build_partition_filter(
    jvm: Any, partitions: Sequence[tuple[object, ...]], *, spec: PartitionSpec, schema: Schema
) -> Any:
    """Build a Java `Expression` that selects partitions of one spec by their values in manifests."""
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    each = (
        reduce(
            getattr(expressions, "and"),
            (_equal(jvm, field, value, schema) for field, value in zip(spec.fields, values, strict=True)),
            expressions.alwaysTrue(),
        )
        for values in partitions
    )
    return reduce(getattr(expressions, "or"), each, expressions.alwaysFalse())


def _equal(jvm: Any, field: PartitionField, value: object, schema: Schema) -> Any:
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    column, transform = expressions.ref(schema.find_column_name(field.source_id)), field.transform
    if isinstance(transform, VoidTransform):
        return expressions.alwaysTrue()
    if isinstance(transform, TruncateTransform) and isinstance(value, str | bytes):
        return _begins_with(expressions, column, value, width=transform.width)
    term = column
    if not isinstance(transform, IdentityTransform):
        made = jvm.org.apache.iceberg.transforms.Transforms.fromString(str(transform))
        term = expressions.transform(column.name(), made)
    if value is None:
        return expressions.isNull(term)
    if isinstance(value, float) and math.isnan(value):
        return expressions.isNaN(term)
    keeps_type = isinstance(transform, IdentityTransform | TruncateTransform)
    return expressions.equal(term, to_literal(value, schema.find_type(field.source_id)) if keeps_type else value)


def _begins_with(expressions: Any, column: Any, value: str | bytes, *, width: int) -> Any:
    """Compare a truncated value as a prefix: Iceberg 1.12 would compare it with a file's full bounds."""
    if len(value) < width:  # a shorter value was not truncated
        return expressions.equal(column, value)
    if isinstance(value, str):
        return expressions.startsWith(column, value)
    lowest, rest = expressions.greaterThanOrEqual(column, value), value.rstrip(b"\xff")
    if not rest:
        return lowest
    return getattr(expressions, "and")(lowest, expressions.lessThan(column, rest[:-1] + bytes([rest[-1] + 1])))


def to_literal(value: Any, kind: IcebergType) -> object:
    """Convert a value for Iceberg's literals. Times become text: py4j would send one near 1970 as an `Integer`."""
    if isinstance(kind, TimestampType | TimestamptzType) and isinstance(value, int):
        moment = EPOCH + timedelta(microseconds=value)
        return (moment if isinstance(kind, TimestamptzType) else moment.replace(tzinfo=None)).isoformat()
    if isinstance(kind, TimeType) and isinstance(value, int):
        return (EPOCH + timedelta(microseconds=value)).time().isoformat()
    return str(value) if isinstance(kind, _TEXT_TYPES) else value
