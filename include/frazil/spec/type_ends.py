"""The ends of types of numbers and moments, and filters of rows that respect them.

Iceberg's and Python's calendars have the years 1 to 9999.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    TimestampType,
    TimestamptzType,
)

_EPOCH = date(1970, 1, 1).toordinal()
DAYS = (date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH)
MICROSECONDS = (DAYS[0] * 86_400_000_000, (DAYS[1] + 1) * 86_400_000_000 - 1)


def ends_of(kind: IcebergType) -> tuple[int, int] | None:
    """Return the least and the greatest value of a type of numbers or moments; of a decimal, without its point."""
    match kind:
        case IntegerType():
            return -(2**31), 2**31 - 1
        case LongType():
            return -(2**63), 2**63 - 1
        case DecimalType():
            return 1 - 10**kind.precision, 10**kind.precision - 1
        case DateType():
            return DAYS
        case TimestampType() | TimestamptzType():
            return MICROSECONDS
    return None


def rows_between(field: NestedField, lowest: Any, greatest: Any) -> BooleanExpression:
    """Return the filter of rows with values between two, without an end that every value keeps to.

    PyIceberg projects a filter on partitions by the value beyond its end, and raises where no such value exists.
    """
    first, last = ends_of(field.field_type) or (None, None)
    found: BooleanExpression = AlwaysTrue()
    if first is None or _unscaled(lowest) > first:
        found = GreaterThanOrEqual(term=field.name, value=lowest)
    if last is None or _unscaled(greatest) < last:
        found = And(found, LessThanOrEqual(term=field.name, value=greatest))
    return found


def _unscaled(value: Any) -> Any:
    """A decimal without its point, as `ends_of` has it; any other value as it is."""
    if not isinstance(value, Decimal):
        return value
    sign, digits, _ = value.as_tuple()
    return (-1) ** sign * int("".join(map(str, digits)))
