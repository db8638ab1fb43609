"""Explains the errors that the compiled loop (`rows`) finds in JSON records.

Some values are valid, but the loop is not certain of them: numbers with many digits, and long strings with escapes.
These are written in a form that the loop reads.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.text import describe
from frazil.ingest.formats.json.types import LISTED

TYPE_MISMATCH, OUT_OF_RANGE = "TypeMismatch", "OutOfRange"
MISSING = "required, and missing or null"
_MAX_DIGITS = 38
_MAX_INTEGER_LENGTH = 21
"""Characters after which an integer has more than 64 bits."""
_INT64 = range(-(2**63), 2**63)
_MAX_MICROS_DIGITS = 26
_MAX_FLOAT = float.fromhex("0x1.ffffffp127")
"""The smallest double that rounds to an infinite float."""

# Each pattern can match a text in at most one way, so that a long text cannot make it slow.
_NUMBER = re.compile(rb"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]+))?")
_INTEGER = re.compile(rb"-?[0-9]+")
_NUMBER_STARTS, _SPECIAL_STARTS = b"-0123456789NI", (b"N", b"I")
_decode_string = msgspec.json.Decoder(str).decode


class Reason(NamedTuple):
    """Why a value does not fit its column. `wider` is the type that the column needs to hold it, if it can get one."""

    error_class: str
    error: str
    wider: str = ""


Check = Callable[[bytes], Reason | bytes]
"""Explains why the JSON text of a value is not valid, or returns the valid value in a form that the loop reads."""


def find_check(kind: iceberg.IcebergType, unit: str | None) -> Check:  # noqa: PLR0911 - a table
    match kind:
        case iceberg.ListType():
            return lambda text: _mismatch(text, "an array")
        case iceberg.StructType() | iceberg.MapType():
            return lambda text: _mismatch(text, "an array" if unit == LISTED else "an object")
        case iceberg.BooleanType():
            return lambda text: _mismatch(text, "true or false", "boolean")
        case iceberg.IntegerType() | iceberg.LongType():
            return partial(_check_integer, kind=str(kind), wider="long")
        case iceberg.FloatType() | iceberg.DoubleType():
            return partial(_check_double, kind=kind)
        case iceberg.DecimalType(precision=precision, scale=scale):
            return partial(_check_decimal, precision=precision, scale=scale)
        case iceberg.TimestampType() | iceberg.TimestamptzType() if unit is not None:
            return _check_seconds if unit == "s" else partial(_check_integer, kind=f"time in {unit}", unit=unit)
        case iceberg.BinaryType() | iceberg.FixedType():
            return partial(_check_text, kind=kind, name="valid base64")
    return partial(_check_text, kind=kind, name=f"a valid {kind}")


def _mismatch(text: bytes, needed: str, kind: object = None) -> Reason:
    return Reason(TYPE_MISMATCH, f"expected {needed}{f' ({kind})' if kind else ''}, got {describe(text)}")


def _check_integer(text: bytes, *, kind: str, wider: str = "", unit: str = "") -> Reason:
    if _INTEGER.fullmatch(text) is None:
        return _mismatch(text, "a whole number", kind)
    fits = int(text[:_MAX_INTEGER_LENGTH]) in _INT64
    if fits and unit:
        return Reason(OUT_OF_RANGE, f"{text.decode()} is too big for a time in {unit}")
    return Reason(OUT_OF_RANGE, f"the number {text[:64].decode()} is too big for {kind}", wider if fits else "")


def _check_double(text: bytes, *, kind: iceberg.IcebergType) -> Reason | bytes:
    if text[0] not in _NUMBER_STARTS:
        return _mismatch(text, "a number", kind)
    value = float(text)
    if math.isinf(value):
        return Reason(OUT_OF_RANGE, f"the number {text[:64].decode()} is too big for {kind}")
    if isinstance(kind, iceberg.FloatType) and abs(value) >= _MAX_FLOAT:
        return Reason(OUT_OF_RANGE, f"{value} is too big for float", "double")
    return repr(value).encode()


def _split_number(text: bytes) -> tuple[bytes, bytes, int] | None:
    """Split a number into sign, digits without outer zeros, and power of ten."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, alone, exponent = match.groups(b"")
    fraction += alone
    digits = (whole + fraction).lstrip(b"0")
    significant = digits.rstrip(b"0")
    if not significant:
        return b"", b"0", 0
    shift = exponent.lstrip(b"+-0") or b"0"
    far = 10**9 if len(shift) > 9 else int(shift)
    power = (-far if exponent.startswith(b"-") else far) - len(fraction) + len(digits) - len(significant)
    return sign.strip(b"+"), significant, power


def _number_text(text: bytes) -> bytes:
    return _decode_string(text).encode() if text.startswith(b'"') else text


def _check_decimal(text: bytes, *, precision: int, scale: int) -> Reason | bytes:
    number = _number_text(text)
    error = f"{number[:64].decode()} does not fit decimal({precision}, {scale})"
    if text.lstrip(b"-")[:1] in _SPECIAL_STARTS:
        return Reason(TYPE_MISMATCH, error)
    if (parts := _split_number(number)) is None:
        return _mismatch(text, "a number")
    sign, digits, power = parts
    whole = max(0, len(digits) + power)
    if digits != b"0" and power < -scale:
        return Reason(TYPE_MISMATCH, error)
    if digits != b"0" and whole + scale > precision:
        fits = number == text and whole + scale <= _MAX_DIGITS
        return Reason(OUT_OF_RANGE, error, f"decimal({whole + scale}, {scale})" if fits else "")
    return b"%s%se%d" % (sign, digits, power)


def _check_seconds(text: bytes) -> Reason | bytes:
    number = _number_text(text)
    if text.lstrip(b"-")[:1] in _SPECIAL_STARTS:
        return Reason(TYPE_MISMATCH, f"expected a finite number (time in s), got {text.decode()}")
    if (parts := _split_number(number)) is None:
        return _mismatch(text, "a number")
    sign, digits, power = parts
    too_big = Reason(OUT_OF_RANGE, f"{number[:64].decode()} is too big for a time in s")
    shift = power + 6
    if len(digits) + shift > _MAX_MICROS_DIGITS:
        return too_big
    micros = int(digits) * 10**shift if shift >= 0 else int(digits[:shift] or b"0")
    if sign == b"-":
        micros = -micros - (shift < 0 and digits[shift:].strip(b"0") != b"")
    if micros not in _INT64:
        return too_big
    return b"%s%d.%06d" % (sign, *divmod(abs(micros), 10**6))


def _check_text(text: bytes, *, kind: iceberg.IcebergType, name: str) -> Reason | bytes:
    if not text.startswith(b'"'):
        return _mismatch(text, "a string", None if isinstance(kind, iceberg.StringType) else kind)
    content = _decode_string(text)
    plain = msgspec.json.encode(content)
    if plain != text and b"\\" not in plain:
        return plain
    if isinstance(kind, iceberg.BinaryType | iceberg.FixedType):
        try:
            value = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            pass
        else:
            if isinstance(kind, iceberg.FixedType) and len(value) != len(kind):
                return Reason(TYPE_MISMATCH, f"{len(value)} bytes are not {kind}")
            return b'"%s"' % base64.b64encode(value)  # without superfluous padding
    return Reason(TYPE_MISMATCH, f"{content[:64]!r} is not {name}")
