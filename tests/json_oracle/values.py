"""Converts single JSON values of primitive types. A conversion takes a value's JSON text, and returns a value that
Arrow accepts. It raises `InvalidValue`.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import SPECIALS, decode_special_numbers, describe
from frazil.ingest.formats.json.types import JSON_IN_TEXT

MISSING = "required, and missing or null"
TYPE_MISMATCH, OUT_OF_RANGE = "TypeMismatch", "OutOfRange"
_MAX_DIGITS = 38
_INT32, INT64 = range(-(2**31), 2**31), range(-(2**63), 2**63)
_MAX_INTEGER_LENGTH = 21
"""Characters after which an integer has more than 64 bits."""

SPECIAL_NUMBERS = {number: float(name) for name, number in SPECIALS.items()}
"""The NaN and infinities that the numbers in `SPECIALS` represent."""

# Each pattern can match a text in at most one way, so that a long text cannot make it slow.
_NUMBER = re.compile(rb"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]+))?")
_INTEGER = re.compile(rb"-?[0-9]+")
_NUMBER_STARTS = b"-0123456789"
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME_PATTERN = r"([0-9]{2})(?:(:?)([0-9]{2})(?:\%d([0-9]{2})(?:\.([0-9]+))?)?)?"
_TIME = re.compile(_TIME_PATTERN % 2)
_TIME_AND_ZONE = re.compile(rf"[Tt ]{_TIME_PATTERN % 2}(Z|z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?")
_USUAL_TIME = re.compile("([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])")
_UUID = re.compile("(?:-*[0-9a-fA-F]){32}-*")
_EPOCH = date(1970, 1, 1).toordinal()
_decode_string = msgspec.json.Decoder(str).decode


class InvalidValue(Exception):
    """A value that does not fit its column."""

    error_class = TYPE_MISMATCH

    def __init__(self, text: str) -> None:
        self.text = text
        if text == MISSING:
            self.error_class = "MissingRequired"


class OutOfRange(InvalidValue):
    error_class = OUT_OF_RANGE

    def __init__(self, text: str, wider: str = "") -> None:
        """`wider` is the type that the column needs to hold the value, if it can get one."""
        super().__init__(text)
        self.wider = wider


def find_conversion(kind: iceberg.IcebergType, unit: str | None) -> Callable[[bytes], Any]:  # noqa: PLR0911 - a table
    """Return the conversion for the JSON texts of a primitive type's values, except `null`."""

    def of_string(convert: Callable[[str], Any]) -> Callable[[bytes], Any]:
        return lambda text: convert(_read_string(text, kind))

    match kind:
        case iceberg.BooleanType():
            return _read_boolean
        case iceberg.IntegerType():
            return lambda text: _read_integer(text, "int", _INT32)
        case iceberg.LongType():
            return lambda text: _read_integer(text, "long", INT64)
        case iceberg.FloatType() | iceberg.DoubleType():
            return lambda text: _read_double(text, kind)
        case iceberg.DecimalType(precision=precision, scale=scale):
            return decimal_converter(precision, scale)
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            return of_string(lambda text: parse_timestamp(text, kind)) if unit is None else epoch_converter(unit)
        case iceberg.DateType():
            return of_string(parse_date)
        case iceberg.TimeType():
            return of_string(parse_time)
        case iceberg.UUIDType():
            return of_string(parse_uuid)
        case iceberg.FixedType(root=length):
            return of_string(lambda text: decode_base64(text, length))
        case iceberg.BinaryType():
            return of_string(decode_base64)
    if unit is None:
        return lambda text: _read_string(text, kind)
    return _string_or_json_text if unit == JSON_IN_TEXT else _to_json_text


def mismatch(text: bytes, needed: str, kind: object = None) -> InvalidValue:
    return InvalidValue(
        f"expected {needed}{f' ({kind})' if kind else ''}, got {describe(decode_special_numbers(text))}"
    )


def _to_json_text(text: bytes) -> str:
    return decode_special_numbers(text).decode()


def _string_or_json_text(text: bytes) -> str:
    return _decode_string(text) if text.startswith(b'"') else _to_json_text(text)


def _read_string(text: bytes, kind: iceberg.IcebergType) -> str:
    if not text.startswith(b'"'):
        raise mismatch(text, "a string", None if isinstance(kind, iceberg.StringType) else kind)
    return _decode_string(text)


def _read_boolean(text: bytes) -> bool:
    if text not in (b"true", b"false"):
        raise mismatch(text, "true or false", "boolean")
    return text == b"true"


def _read_integer(text: bytes, kind: str, within: range) -> int:
    """Read an integer. `kind` names its type in messages."""
    if _INTEGER.fullmatch(text) is None:
        raise mismatch(text, "a whole number", kind)
    value = int(text[:_MAX_INTEGER_LENGTH])
    if value not in within:
        raise OutOfRange(f"the number {text[:64].decode()} is too big for {kind}", "long" if value in INT64 else "")
    return value


def _read_double(text: bytes, kind: iceberg.IcebergType) -> float:
    if (special := SPECIAL_NUMBERS.get(text)) is not None:
        return special
    if text[0] not in _NUMBER_STARTS:
        raise mismatch(text, "a number", kind)
    value = float(text)
    if math.isinf(value):
        raise OutOfRange(f"the number {text[:64].decode()} is too big for {kind}")
    if isinstance(kind, iceberg.FloatType):
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise OutOfRange(f"{value} is too big for float", "double") from None
    return value


def _split_number(text: bytes) -> tuple[bytes, bytes, int, bytes]:
    """Split a number, or a string with one, into sign, digits without outer zeros, power of ten, and text."""
    given = text
    if text.startswith(b'"'):
        text = _decode_string(text).encode()
    if given[0] not in _NUMBER_STARTS + b'"' or (found := _NUMBER.fullmatch(text)) is None:
        raise mismatch(given, "a number")
    sign, whole, fraction, alone, exponent = found.groups(b"")
    fraction += alone
    digits = (whole + fraction).lstrip(b"0")
    significant = digits.rstrip(b"0")
    if not significant:
        return b"", b"0", 0, text
    shift = exponent.lstrip(b"+-0") or b"0"
    far = 10**9 if len(shift) > 9 else int(shift)
    power = (-far if exponent.startswith(b"-") else far) - len(fraction) + len(digits) - len(significant)
    return sign, significant, power, text


def number_as_sent(text: bytes) -> str:
    return decode_special_numbers(text)[:64].decode()


def decimal_converter(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    """Return a function that converts numbers to decimals, and raises InvalidValue instead of rounding."""
    usual = None
    if precision > scale > 0:  # matches most numbers
        usual = re.compile(rb"-?[0-9]{1,%d}(?:\.[0-9]{1,%d})?" % (precision - scale, scale))

    def converted(text: bytes) -> Decimal:
        if usual is not None and usual.fullmatch(text):
            return Decimal(text.decode())
        sign, digits, power, number = _split_number(text)
        whole = max(0, len(digits) + power)
        if digits != b"0" and (power < -scale or whole + scale > precision):
            error = f"{number_as_sent(number)} does not fit decimal({precision}, {scale})"
            if power < -scale or number in SPECIAL_NUMBERS:
                raise InvalidValue(error)
            fits = number == text and whole + scale <= _MAX_DIGITS
            raise OutOfRange(error, f"decimal({whole + scale}, {scale})" if fits else "")
        return Decimal(f"{sign.decode()}{digits.decode()}e{power}")

    return converted


def epoch_converter(unit: str) -> Callable[[bytes], int]:
    """Return a function that converts numbers since the epoch to microseconds, rounded down."""
    name = f"time in {unit}"
    match unit:
        case "s":
            return _convert_seconds
        case "ms":
            return lambda text: _check_int64(_read_integer(text, name, INT64) * 1000, text.decode(), "ms")
        case "us":
            return lambda text: _read_integer(text, name, INT64)
    return lambda text: _read_integer(text, name, INT64) // 1000


def _convert_seconds(text: bytes) -> int:
    sign, digits, power, text = _split_number(text)
    if len(digits) + power > 20:
        if text in SPECIAL_NUMBERS:
            raise InvalidValue(f"expected a finite number (time in s), got {number_as_sent(text)}")
        raise OutOfRange(f"{text[:64].decode()} is too big for a time in s")
    shift = power + 6
    micros = int(digits) * 10**shift if shift >= 0 else int(digits[:shift] or b"0")
    if sign == b"-":
        rounds = shift < 0 and digits[shift:].strip(b"0") != b""
        micros = -micros - rounds
    return _check_int64(micros, text.decode(), "s")


def _check_int64(micros: int, text: str, unit: str) -> int:
    if micros not in INT64:
        raise OutOfRange(f"{text[:64]} is too big for a time in {unit}")
    return micros


def parse_date(text: str) -> int:
    """Convert an ISO 8601 date to days since the epoch. Year 0 is valid. A `Z` after the date is ignored."""
    if (found := _days_since_epoch(text.removesuffix("Z"))) is None:
        raise _invalid_value(text, "date")
    return found


@lru_cache(maxsize=4096)
def _days_since_epoch(text: str) -> int | None:
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    try:
        if year == 0:  # Python's calendar begins with year 1; 400 years always have 146,097 days
            return date(400, month, day).toordinal() - 146_097 - _EPOCH
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


def parse_time(text: str) -> int:
    """Convert an ISO 8601 time to microseconds since midnight. Finer fractions are truncated; a `Z` is ignored."""
    found = _TIME.fullmatch(text.removesuffix("Z"))
    if found is None:
        raise _invalid_value(text, "time")
    hour, _, minute, second, fraction = found.groups()
    return _time_micros(text, "time", hour, minute, second, fraction)


def parse_timestamp(text: str, kind: iceberg.IcebergType) -> int:
    """Convert an ISO 8601 timestamp to microseconds since 1970, truncated. A timestamp without an offset is UTC."""
    if (since := _days_since_epoch(text[:10])) is None:
        raise _invalid_value(text, kind)
    micros = since * 86_400_000_000
    if len(text) == 10:
        return micros
    if text[-1] == "Z" and text[10] == "T" and (usual := _parse_plain_time(text[11:19])) is not None:
        fraction = text[20:-1]
        if len(text) == 20:
            return micros + usual
        if text[19] == "." and fraction.isdigit() and fraction.isascii():
            return micros + usual + int(fraction[:6].ljust(6, "0"))
    found = _TIME_AND_ZONE.fullmatch(text, 10)
    if found is None:
        raise _invalid_value(text, kind)
    hour, _, minute, second, fraction, zone = found.groups()
    micros += _time_micros(text, kind, hour, minute, second, fraction)
    if zone is not None and zone not in "Zz":
        ahead = _time_micros(text, kind, zone[1:3], zone[3:].lstrip(":"), None, None)
        micros += ahead if zone[0] == "-" else -ahead
    return micros


@lru_cache(maxsize=4096)
def _parse_plain_time(text: str) -> int | None:
    """Convert `HH:MM:SS`, the most frequent form; None for other forms."""
    found = _USUAL_TIME.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = map(int, found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def _time_micros(text: str, kind: object, *clock: str | None) -> int:
    """Return the microseconds since midnight. `clock` is hour, minute, second and fraction."""
    hour, minute, second, fraction = clock
    h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
    if h > 23 or m > 59 or s > 59:
        raise _invalid_value(text, kind)
    return ((h * 60 + m) * 60 + s) * 1_000_000 + (int(fraction[:6].ljust(6, "0")) if fraction else 0)


def parse_uuid(text: str) -> bytes:
    if _UUID.fullmatch(text) is None:
        raise _invalid_value(text, "uuid")
    return bytes.fromhex(text.replace("-", ""))


def decode_base64(text: str, length: int | None = None) -> bytes:
    """Decode base64 (RFC 4648, with padding). `length` is the size of a fixed column."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue(f"{text[:64]!r} is not valid base64") from None
    if length is not None and len(found) != length:
        raise InvalidValue(f"{len(found)} bytes are not fixed[{length}]")
    return found


def _invalid_value(text: str, kind: object) -> InvalidValue:
    return InvalidValue(f"{text[:64]!r} is not a valid {kind}")
