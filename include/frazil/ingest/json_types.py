"""Which Arrow type JSON text is read as for each Iceberg type, and how that becomes the table's own type.

PyArrow's JSON reader knows numbers, strings, lists and structs. What it cannot read (dates, times, UUIDs, bytes) or
reads less freely than people write it (timestamps) is read as a string and converted here, a column at a time.
Every function raises `pyarrow.ArrowInvalid` when any value of its column cannot be converted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg

from frazil.errors import SpecError

READ_DIRECTLY: dict[type[iceberg.IcebergType], pa.DataType] = {
    iceberg.BooleanType: pa.bool_(),
    iceberg.IntegerType: pa.int32(),
    iceberg.LongType: pa.int64(),
    iceberg.DoubleType: pa.float64(),
    iceberg.StringType: pa.large_string(),
}
READ_AS_STRING = (
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.UUIDType,
    iceberg.FixedType,
    iceberg.BinaryType,
)
SECONDS = pa.decimal128(38, 18)
"""Epoch seconds on the wire: they may have a fraction, and a double would lose microseconds."""

ZONE = r"[T ].*(?:Z|[+-][0-9:]+)$"
DAY_ALONE = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})$"
FRACTION_BEYOND_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"

Units = Mapping[int, str]
"""Field id of a timestamp column to `s`, `ms`, `us` or `ns`: it arrives as a number since the epoch."""


def check_supported(schema: iceberg.StructType, *, where: str = "schema") -> None:
    """Refuse, before anything is read, the types that JSON records cannot fill. Raises SpecError."""
    for field in schema.fields:
        _check(field.field_type, f"{where}.{field.name}")


def _check(kind: iceberg.IcebergType, where: str) -> None:
    match kind:
        case iceberg.StructType():
            check_supported(kind, where=where)
        case iceberg.ListType():
            _check(kind.element_type, f"{where}.element")
        case iceberg.MapType():
            if not isinstance(kind.key_type, iceberg.StringType):
                raise SpecError(
                    f"{where}: a JSON object's keys are strings, so the map's key must be string, not {kind.key_type}"
                )
            _check(kind.value_type, f"{where}.value")
        case _ if not isinstance(kind, (*READ_DIRECTLY, *READ_AS_STRING, iceberg.FloatType, iceberg.DecimalType)):
            raise SpecError(f"{where}: format json cannot fill a column of type {kind}; declare another type")


def wire_type(kind: iceberg.IcebergType, units: Units, field_id: int = -1) -> pa.DataType:  # noqa: PLR0911 - a table
    """The Arrow type that the JSON reader is asked for; everything may be null there."""
    match kind:
        case iceberg.StructType():
            return pa.struct([(f.name, wire_type(f.field_type, units, f.field_id)) for f in kind.fields])
        case iceberg.ListType():
            return pa.list_(wire_type(kind.element_type, units))
        case iceberg.MapType():
            return pa.list_(pa.struct([("key", pa.large_string()), ("value", wire_type(kind.value_type, units))]))
        case iceberg.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case iceberg.FloatType():
            return pa.float64()
    if field_id in units:
        return SECONDS if units[field_id] == "s" else pa.int64()
    return READ_DIRECTLY.get(type(kind), pa.large_string())


def from_wire(
    array: pa.Array, kind: iceberg.IcebergType, target: pa.DataType, units: Units, field_id: int = -1
) -> pa.Array:
    """A column as read to a column as the table has it: same length, same order, same nulls."""
    if array.type == target:
        return array
    match kind:
        case iceberg.StructType():
            parts = [
                from_wire(part, field.field_type, target.field(i).type, units, field.field_id)
                for i, (part, field) in enumerate(zip(array.flatten(), kind.fields, strict=True))
            ]
            return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null())
        case iceberg.ListType():
            elements = from_wire(array.values, kind.element_type, target.value_type, units)
            offsets = array.offsets.cast(pa.int64())
            return pa.LargeListArray.from_arrays(offsets, elements, type=target, mask=array.is_null())
        case iceberg.MapType():
            keys, values = array.values.flatten()
            values = from_wire(values, kind.value_type, target.item_type, units)
            return pa.MapArray.from_arrays(array.offsets, keys, values, type=target, mask=array.is_null())
    if field_id in units:
        return from_epoch(array, units[field_id]).cast(target)
    return _leaf(array, kind, target)


def _leaf(array: pa.Array, kind: iceberg.IcebergType, target: pa.DataType) -> pa.Array:
    match kind:
        case iceberg.FloatType():
            return to_float32(array)
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            return to_timestamp(array).cast(target)
        case iceberg.TimeType():
            return to_time(array)
        case iceberg.UUIDType():
            return pa.ExtensionArray.from_storage(target, to_uuid_bytes(array))
        case iceberg.FixedType() | iceberg.BinaryType():
            return to_bytes(array, target)
    return array.cast(pa.string()).cast(target)


def to_float32(doubles: pa.Array) -> pa.Array:
    """Nearest single-precision value; a finite number that would become infinite is refused."""
    floats = doubles.cast(pa.float32(), safe=False)
    if pc.any(pc.and_not(pc.is_inf(floats), pc.is_inf(doubles))).as_py():
        raise pa.ArrowInvalid("a number is too big for float")
    return floats


def to_timestamp(strings: pa.Array) -> pa.Array:
    """ISO 8601 to microseconds, UTC: with `Z`, an offset, or neither (which is taken as UTC).

    A fraction finer than microseconds is cut off. A `timestamp` without zone keeps the UTC wall clock.
    """
    utc = pa.timestamp("us", "UTC")
    for kind in (utc, pa.timestamp("us")):
        try:
            return strings.cast(kind).cast(utc)
        except pa.ArrowInvalid:
            continue
    timed = pc.replace_substring_regex(pc.utf8_upper(strings), DAY_ALONE, r"\1T00:00")
    shorter = pc.replace_substring_regex(timed, FRACTION_BEYOND_MICROSECONDS, r"\1")
    utc_mark, nothing = (pa.scalar(text, shorter.type) for text in ("Z", ""))
    zoned = pc.if_else(
        pc.match_substring_regex(shorter, ZONE), shorter, pc.binary_join_element_wise(shorter, utc_mark, nothing)
    )
    return zoned.cast(utc)


def to_time(strings: pa.Array) -> pa.Array:
    """`hh:mm:ss.ffffff` to a time of day; Arrow casts no string to a time, but it does to a timestamp."""
    day, nothing = (pa.scalar(text, strings.type) for text in ("1970-01-01T", ""))
    shorter = pc.replace_substring_regex(strings, FRACTION_BEYOND_MICROSECONDS, r"\1")
    stamps = pc.binary_join_element_wise(day, shorter, nothing).cast(pa.timestamp("us"))
    return stamps.cast(pa.int64()).cast(pa.time64("us"))


def from_epoch(numbers: pa.Array, unit: str) -> pa.Array:
    """Numbers since the epoch to microseconds, UTC; finer ones are cut off (toward zero)."""
    match unit:
        case "s":
            micros = numbers.cast(pa.decimal128(38, 6), safe=False)
            digits = pa.Array.from_buffers(pa.decimal128(38, 0), len(micros), micros.buffers(), offset=micros.offset)
            whole = digits.cast(pa.int64())
        case "ms":
            whole = pc.multiply_checked(numbers, 1000)
        case "us":
            whole = numbers
        case _:
            whole = pc.divide(numbers, 1000)
    return whole.cast(pa.timestamp("us", "UTC"))


def to_uuid_bytes(strings: pa.Array) -> pa.Array:
    """Text with or without hyphens to the 16 bytes of a UUID."""
    plain = pc.replace_substring(strings, "-", "")
    if not pc.all(pc.match_substring_regex(plain, "^[0-9a-fA-F]{32}$"), min_count=0).as_py():
        raise pa.ArrowInvalid("a string is no UUID")
    return pa.array([None if text is None else bytes.fromhex(text) for text in plain.to_pylist()], pa.binary(16))


def to_bytes(strings: pa.Array, target: pa.DataType) -> pa.Array:
    """Base64 (RFC 4648, with padding) to bytes; a fixed column's must have its length."""
    try:
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in strings.to_pylist()]
    except (binascii.Error, ValueError) as error:
        raise pa.ArrowInvalid(f"a string is not base64: {error}") from error
    return pa.array(decoded, target)
