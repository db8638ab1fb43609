"""Many JSON records to Arrow at once: for each a row, or the word that this path is not sure of it.

What it returns as a row is what `json_record` would return, value for value; a property test holds the two together.
Of a string that is no time, no UUID or no base64 it says what `json_record` would say, for nothing else is wrong with
such a record; any other record that it is not sure of is read by itself. What the parser refuses, it refuses for all
records together (`UNREADABLE`); what a conversion refuses is known by the row.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.types import Units, inner
from frazil.ingest.formats.json.values import Wrong, leaf

Unsure = NDArray[np.bool_] | None
"""By row, or None where all are sure."""

Wrongs = dict[int, str]
"""By row, what is wrong with it, where nothing else can be."""

UNREADABLE = (ValueError, OverflowError)
"""What the reader and the conversions raise for values that they cannot take (ArrowInvalid is a ValueError)."""

_READ_DIRECTLY: dict[type[iceberg.IcebergType], pa.DataType] = {
    iceberg.BooleanType: pa.bool_(),
    iceberg.IntegerType: pa.int64(),
    iceberg.LongType: pa.int64(),
    iceberg.FloatType: pa.float64(),
    iceberg.DoubleType: pa.float64(),
}
_UTC = pa.timestamp("us", "UTC")
_STRING = pa.large_string()
_STRINGS = (
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.UUIDType,
    iceberg.FixedType,
    iceberg.BinaryType,
)
"""Types whose values arrive as strings that may be wrong."""
_FLOATS = (iceberg.FloatType, iceberg.DoubleType)
_MAYBE_TOO_BIG = r"[0-9][eE]\+?0*[1-9][0-9]|[0-9]{30}"
"""Fewer digits and a smaller exponent are at most 10^38, which any float holds."""
_MAYBE_TOO_FINE = r"[:,\[\s]-?[0-9]+(?:\.[0-9]+)?[eE]-0*(?:[2-9][0-9]|[0-9]{3})|[0-9]{19}[eE]-"
"""A number begins behind one of four; one UUID in ten has `e-41` or the like inside its string."""
_MINUS, _E = b"-e"
_SECONDS = pa.decimal128(26, 12)
"""Epoch seconds may have a fraction, and a double would lose microseconds."""

_DAY = (
    r"[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]+)?)?|[0-5][0-9](?:[0-5][0-9](?:\.[0-9]+)?)?)?"
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_SURE_DATE = f"^(?:{_DAY})$"
_SURE_TIME = f"^{_CLOCK}$"
_SURE_TIMESTAMP = f"^(?:{_DAY})(?:[Tt ]{_CLOCK}{_ZONE}?)?$"
"""29 February is in no pattern: such a day, beside one that is none, is looked at singly."""

_WITH_ZONE = r"[T ].*(?:Z|[+-][0-9:]+)$"
_DAY_ALONE = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})$"
_BEYOND_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"


class BulkReader:
    """Reads joined records of one schema."""

    def __init__(self, schema: iceberg.StructType, arrow_schema: pa.Schema, units: Units) -> None:
        self._schema, self._arrow_schema, self._units = schema, arrow_schema, units
        wire = pa.schema([(f.name, _wire(f.field_type, units, f.field_id)) for f in schema.fields])
        self._has_decimals = any(isinstance(kind, iceberg.DecimalType) for kind in inner(schema))
        self._parse_options = pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore")

    def __call__(self, text: bytes, count: int) -> tuple[pa.Table, Unsure, Wrongs]:
        """`count` joined messages to as many rows, of which those that are wrong or not sure hold anything.

        Raises one of UNREADABLE when the parser refuses any of them.
        """
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        read = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parse_options)
        if read.num_rows != count:
            raise pa.ArrowInvalid("a message holds more than one JSON value")
        columns: list[pa.Array] = []
        unsure = _with_small_exponents(text) if self._has_decimals else None
        wrong: Wrongs = {}
        for column, field, target in zip(read.columns, self._schema.fields, self._arrow_schema, strict=True):
            given = column.combine_chunks()
            array, doubtful = _converted(given, field, target.type, self._units)
            if doubtful is not None and isinstance(field.field_type, _FLOATS):
                doubtful &= ~_said_infinite(array, text)
            elif doubtful is not None and isinstance(field.field_type, _STRINGS) and given.type == _STRING:
                array, doubtful = _singly(given, field, array, doubtful, wrong)
            columns.append(array)
            unsure = _either(unsure, doubtful)
        if unsure is not None:
            wrong = {row: why for row, why in wrong.items() if not unsure[row]}
        return pa.Table.from_arrays(columns, schema=self._arrow_schema), unsure, wrong


def can_read(kind: iceberg.IcebergType) -> bool:
    """Whether Arrow's reader can: it knows no maps."""
    match kind:
        case iceberg.StructType():
            return all(can_read(field.field_type) for field in kind.fields)
        case iceberg.ListType():
            return can_read(kind.element_type)
    return not isinstance(kind, iceberg.MapType)


def _wire(kind: iceberg.IcebergType, units: Units, field_id: int = -1) -> pa.DataType:
    """The Arrow type that the JSON reader is asked for; everything may be null there."""
    match kind:
        case iceberg.StructType():
            return pa.struct([(f.name, _wire(f.field_type, units, f.field_id)) for f in kind.fields])
        case iceberg.ListType():
            return pa.list_(_wire(kind.element_type, units))
        case iceberg.DecimalType(precision=precision, scale=scale):
            # Arrow counts a number's digits before it moves the point, which may then overflow in silence: only with
            # so few digits can it not. They are more than fit, and `_to_decimal` looks.
            wide = precision + scale > 38
            return pa.decimal256(76 - scale, scale) if wide else pa.decimal128(38 - scale, scale)
    if field_id in units:
        return _SECONDS if units[field_id] == "s" else pa.int64()
    return _READ_DIRECTLY.get(type(kind), _STRING)


def _with_small_exponents(text: bytes) -> Unsure:
    """Rows with numbers that are perhaps too fine for Arrow: it makes zeros of some decimals by 10^-39 and below."""
    octets = np.frombuffer(text, np.uint8)
    before_minus = octets[np.flatnonzero(octets == _MINUS) - 1]
    if not ((before_minus | 0x20) == _E).any():
        return None
    fine = pc.match_substring_regex(pa.array(text.split(b"\n"), pa.large_binary()), _MAYBE_TOO_FINE)
    return fine.to_numpy(zero_copy_only=False) if fine.true_count else None


def _said_infinite(numbers: pa.Array, text: bytes) -> NDArray[np.bool_]:
    """Rows that are infinite, and whose text has no number that may be too big: they say so."""
    infinite: NDArray[np.bool_] = np.isinf(numbers.to_numpy(zero_copy_only=False))
    too_big = pc.match_substring_regex(pa.array(text.split(b"\n"), pa.large_binary()), _MAYBE_TOO_BIG)
    said: NDArray[np.bool_] = infinite & ~too_big.to_numpy(zero_copy_only=False)
    return said


def _singly(
    strings: pa.Array, field: iceberg.NestedField, array: pa.Array, doubtful: NDArray[np.bool_], wrong: Wrongs
) -> tuple[pa.Array, Unsure]:
    """The column with its doubtful strings converted one by one; which rows are wrong is added to `wrong`.

    A row whose only fault is such a string is known whole: with another string there it would be a row.
    """
    convert = leaf(field.field_type, None, raw_floats=False)
    assert convert is not None
    unsure = np.zeros(len(strings), np.bool_)
    right: list[tuple[int, object]] = []
    rows = np.flatnonzero(doubtful).tolist()
    for row, text in zip(rows, strings.filter(pa.array(doubtful)).to_pylist(), strict=True):
        try:
            if text is None:  # and required
                unsure[row] = True
            else:
                right.append((row, convert(text)))
        except Wrong as why:
            wrong.setdefault(row, f"{field.name}: {why.text}")
    if right:
        storage = pa.int32() if pa.types.is_date(array.type) else pa.int64()
        where = np.zeros(len(strings), np.bool_)
        where[[row for row, _ in right]] = True
        values = pa.array([value for _, value in right], storage)
        array = pc.replace_with_mask(array.view(storage), pa.array(where), values).view(array.type)
    return array, unsure if unsure.any() else None


def _either(one: Unsure, other: Unsure) -> Unsure:
    return other if one is None else one if other is None else one | other


def _converted(
    array: pa.Array, field: iceberg.NestedField, target: pa.DataType, units: Units
) -> tuple[pa.Array, Unsure]:
    """A column as read to a column as the table has it; rows in doubt also where a required value is null."""
    unsure = array.is_null().to_numpy(zero_copy_only=False) if field.required and array.null_count else None
    converted, doubtful = _from_wire(array, field.field_type, target, units, field.field_id)
    return converted, _either(unsure, doubtful)


def _from_wire(
    array: pa.Array, kind: iceberg.IcebergType, target: pa.DataType, units: Units, field_id: int
) -> tuple[pa.Array, Unsure]:
    match kind:
        case iceberg.StructType():
            return _struct(array, kind, target, units)
        case iceberg.ListType():
            elements, doubtful = _converted(array.values, kind.element_field, target.value_type, units)
            offsets = array.offsets.cast(pa.int64())
            mask = array.is_null()
            unsure = None if doubtful is None else _of_lists(doubtful, offsets.to_numpy())
            return pa.LargeListArray.from_arrays(offsets, elements, type=target, mask=mask), unsure
    return _leaf(array, kind, target, units.get(field_id))


def _struct(array: pa.Array, kind: iceberg.StructType, target: pa.DataType, units: Units) -> tuple[pa.Array, Unsure]:
    parts, unsure = [], None
    for i, (part, field) in enumerate(zip(array.flatten(), kind.fields, strict=True)):
        converted, doubtful = _converted(part, field, target.field(i).type, units)
        parts.append(converted)
        unsure = _either(unsure, doubtful)
    if unsure is not None and array.null_count:
        unsure &= array.is_valid().to_numpy(zero_copy_only=False)
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null()), unsure


def _of_lists(elements: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Lists that hold any of these elements."""
    so_far = np.concatenate([[0], np.cumsum(elements)])
    found: NDArray[np.bool_] = so_far[offsets[1:]] > so_far[offsets[:-1]]
    return found


def _leaf(array: pa.Array, kind: iceberg.IcebergType, target: pa.DataType, unit: str | None) -> tuple[pa.Array, Unsure]:  # noqa: PLR0911 - a table
    if unit is not None:
        return _from_epoch(array, unit, target)
    match kind:
        case iceberg.IntegerType():
            return _or_null(array, lambda some: some.cast(target), lambda: _within(array, -(2**31), 2**31 - 1), target)
        case iceberg.FloatType():
            floats = array.cast(target, safe=False)
            return floats, _infinite(floats)
        case iceberg.DoubleType():
            return array, _infinite(array)
        case iceberg.DecimalType():
            return _to_decimal(array, target)
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            sure = _matches(array, _SURE_TIMESTAMP)
            return _or_null(
                array,
                lambda some: _usual_timestamp(some).cast(target),
                sure,
                target,
                lambda some: _to_timestamp(some).cast(target),
            )
        case iceberg.DateType():
            sure = _matches(array, _SURE_DATE)
            return _or_null(array, lambda some: some.cast(pa.string()).cast(target), sure, target)
        case iceberg.TimeType():
            return _or_null(array, _to_time, _matches(array, _SURE_TIME), target)
        case iceberg.UUIDType():
            return _to_uuid(array, target)
        case iceberg.FixedType() | iceberg.BinaryType():
            return _to_bytes(array, target)
    return array if array.type == target else array.cast(target), None


def _or_null(
    array: pa.Array,
    convert: Callable[[pa.Array], pa.Array],
    sure: Callable[[], pa.Array],
    target: pa.DataType,
    thorough: Callable[[pa.Array], pa.Array] | None = None,
) -> tuple[pa.Array, Unsure]:
    """The column converted; where that fails, null in rows that are not sure, which need not be wrong.

    `thorough`, where given, converts the rows that are sure: `convert` then need not know all that they may be.
    """
    try:
        return convert(array), None
    except UNREADABLE:
        kept = sure()
    unsure = pc.invert(kept).fill_null(False).to_numpy(zero_copy_only=False)
    try:
        return (thorough or convert)(pc.if_else(kept, array, pa.scalar(None, array.type))), unsure
    except UNREADABLE:
        return pa.nulls(len(array), target), array.is_valid().to_numpy(zero_copy_only=False)


def _matches(strings: pa.Array, pattern: str) -> Callable[[], pa.Array]:
    return lambda: pc.match_substring_regex(strings, pattern)


def _within(numbers: pa.Array, least: int, most: int) -> pa.Array:
    return pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))


def _infinite(numbers: pa.Array) -> Unsure:
    """Infinity is written so, or is a number that is too big: the reader makes no difference."""
    infinite: NDArray[np.bool_] = np.isinf(numbers.to_numpy(zero_copy_only=False))
    return infinite if infinite.any() else None


def _to_decimal(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Unsure]:
    def sure() -> pa.Array:
        whole = pa.scalar(10 ** (target.precision - target.scale), pa.decimal256(76, 0))
        return pc.less(pc.abs(array), whole.cast(pa.decimal256(76 - target.scale, 0)))

    return _or_null(array, lambda some: some.cast(target), sure, target)


def _usual_timestamp(strings: pa.Array) -> pa.Array:
    """All with a zone, or all without one."""
    try:
        return strings.cast(_UTC)
    except pa.ArrowInvalid:
        return strings.cast(pa.timestamp("us")).cast(_UTC)


def _to_timestamp(strings: pa.Array) -> pa.Array:
    with suppress(pa.ArrowInvalid):
        return _usual_timestamp(strings)
    timed = pc.replace_substring_regex(pc.utf8_upper(strings), _DAY_ALONE, r"\1T00:00")
    shorter = pc.replace_substring_regex(timed, _BEYOND_MICROSECONDS, r"\1")
    utc_mark, nothing = (pa.scalar(text, shorter.type) for text in ("Z", ""))
    zoned = pc.if_else(
        pc.match_substring_regex(shorter, _WITH_ZONE), shorter, pc.binary_join_element_wise(shorter, utc_mark, nothing)
    )
    return zoned.cast(_UTC)


def _to_time(strings: pa.Array) -> pa.Array:
    """Arrow casts no string to a time, but it does to a timestamp."""
    day, nothing = (pa.scalar(text, strings.type) for text in ("1970-01-01T", ""))
    shorter = pc.replace_substring_regex(strings, _BEYOND_MICROSECONDS, r"\1")
    stamps = pc.binary_join_element_wise(day, shorter, nothing).cast(pa.timestamp("us"))
    return stamps.cast(pa.int64()).cast(pa.time64("us"))


def _from_epoch(numbers: pa.Array, unit: str, target: pa.DataType) -> tuple[pa.Array, Unsure]:
    match unit:
        case "s":
            micros = numbers.cast(pa.decimal128(38, 6), safe=False)
            digits = pa.Array.from_buffers(pa.decimal128(38, 0), len(micros), micros.buffers(), offset=micros.offset)
            limit = pa.scalar(2**63, pa.decimal128(38, 0))
            whole, unsure = _or_null(
                digits, lambda some: some.cast(pa.int64()), lambda: pc.less(pc.abs(digits), limit), pa.int64()
            )
        case "ms":
            whole, unsure = _or_null(
                numbers,
                lambda some: pc.multiply_checked(some, 1000),
                lambda: _within(numbers, -(2**63) // 1000 + 1, 2**63 // 1000),
                pa.int64(),
            )
        case "us":
            whole, unsure = numbers, None
        case _:
            whole, unsure = pc.divide(numbers, 1000), None
    return whole.cast(_UTC).cast(target), unsure


def _to_uuid(strings: pa.Array, target: pa.DataType) -> tuple[pa.Array, Unsure]:
    plain = pc.replace_substring(strings, "-", "")
    sure = pc.match_substring_regex(plain, "^[0-9a-fA-F]{32}$")
    unsure = pc.invert(sure).fill_null(False).to_numpy(zero_copy_only=False)
    texts = pc.if_else(sure, plain, pa.scalar(None, plain.type)).to_pylist() if unsure.any() else plain.to_pylist()
    storage = pa.array([None if text is None else bytes.fromhex(text) for text in texts], pa.binary(16))
    return pa.ExtensionArray.from_storage(target, storage), unsure if unsure.any() else None


def _to_bytes(strings: pa.Array, target: pa.DataType) -> tuple[pa.Array, Unsure]:
    length = target.byte_width if pa.types.is_fixed_size_binary(target) else None
    texts: Sequence[str | None] = strings.to_pylist()
    decoded: list[bytes | None] = []
    unsure = np.zeros(len(texts), np.bool_)
    for i, text in enumerate(texts):
        try:
            value = None if text is None else base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value, unsure[i] = None, True
        if value is not None and length is not None and len(value) != length:
            value, unsure[i] = None, True
        decoded.append(value)
    return pa.array(decoded, target), unsure if unsure.any() else None
