"""The smallest and largest values of number and time types, and row filters within them. The calendars of Iceberg and
Python cover the years 1 to 9999.
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

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
DATE_LIMITS_DAYS = (date.min.toordinal() - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL)
"""In days since 1970."""
TIMESTAMP_LIMITS_US = (DATE_LIMITS_DAYS[0] * 86_400_000_000, (DATE_LIMITS_DAYS[1] + 1) * 86_400_000_000 - 1)
"""In microseconds since 1970."""


def find_limits(kind: IcebergType) -> tuple[int, int] | None:
    """Return the smallest and largest value of a number or time type: of decimals as integers without the decimal
    point, of dates in days, of timestamps in microseconds since 1970.
    """
    match kind:
        case IntegerType():
            return -(2**31), 2**31 - 1
        case LongType():
            return -(2**63), 2**63 - 1
        case DecimalType():
            return 1 - 10**kind.precision, 10**kind.precision - 1
        case DateType():
            return DATE_LIMITS_DAYS
        case TimestampType() | TimestamptzType():
            return TIMESTAMP_LIMITS_US
    return None


def filter_between(field: NestedField, lowest: Any, greatest: Any) -> BooleanExpression:
    """Return a filter for rows with values from `lowest` to `greatest`.

    A bound that all values meet is omitted: PyIceberg would compare partitions with the value beyond it, and raise.
    """
    first, last = find_limits(field.field_type) or (None, None)
    found: BooleanExpression = AlwaysTrue()
    if first is None or _to_unscaled(lowest) > first:
        found = GreaterThanOrEqual(term=field.name, value=lowest)
    if last is None or _to_unscaled(greatest) < last:
        found = And(found, LessThanOrEqual(term=field.name, value=greatest))
    return found


def _to_unscaled(value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    sign, digits, _ = value.as_tuple()
    return (-1) ** sign * int("".join(map(str, digits)))
