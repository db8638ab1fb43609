"""Why one JSON record cannot be decoded, in words: the slow look at records of a chunk that failed as a whole.

It names only what the fast path refuses for certain. A record that it lets pass may still be refused there (a day
that no month has, a key given twice); what it names is never accepted there, so a record's fate does not depend on
its neighbours. A property test holds the two together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

from pyiceberg import types as iceberg

from frazil.ingest.json_types import Units

Wrong = tuple[str, str]
"""The path of a field inside a value (empty: the value itself), and what is wrong with it."""

Check = Callable[[Any], Wrong | None]
"""A parsed JSON value that is not null to what is wrong with it, or None."""

MISSING = "required, and missing or null"

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)?"
_TIMESTAMP = re.compile(rf"\d{{4}}-\d\d-\d\d(?:[T ]\d\d(?::?\d\d(?::?\d\d(?:\.\d*)?)?)?{_ZONE})?", re.IGNORECASE)
_TIME = re.compile(r"\d\d(?::?\d\d(?::?\d\d(?:\.\d*)?)?)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_UUID = re.compile(r"(?:-*[0-9a-fA-F]){32}-*")

_PATTERNS: dict[type[iceberg.IcebergType], re.Pattern[str]] = {
    iceberg.DateType: _DATE,
    iceberg.TimeType: _TIME,
    iceberg.TimestampType: _TIMESTAMP,
    iceberg.TimestamptzType: _TIMESTAMP,
    iceberg.UUIDType: _UUID,
}


def record_check(schema: iceberg.StructType, units: Units) -> Callable[[bytes], tuple[str, str] | None]:
    """A function from a record's bytes (one JSON object, it is thought) to (error class, text), or None."""
    check = _struct(schema, units)

    def reason(value: bytes) -> tuple[str, str] | None:
        try:
            parsed = json.loads(value, parse_float=Decimal)
        except json.JSONDecodeError as error:
            if b"Inf" in value or b"NaN" in value:
                return None  # the reader knows more spellings of these than Python
            return "InvalidJson", f"{error.msg} at character {error.pos}"
        except (ValueError, RecursionError, ArithmeticError):
            return None
        if not isinstance(parsed, dict):
            return "NotAnObject", f"a JSON object is needed, this is {_name(parsed)}"
        wrong = check(parsed)
        if wrong is None:
            return None
        path, text = wrong
        return ("MissingRequired" if text == MISSING else "TypeMismatch"), f"{path}: {text}"

    return reason


def _struct(kind: iceberg.StructType, units: Units) -> Check:
    fields = [(f.name, f.required, _check(f.field_type, units, f.field_id)) for f in kind.fields]

    def check(value: Any) -> Wrong | None:
        if not isinstance(value, dict):
            return "", f"an object is needed, this is {_name(value)}"
        for name, required, inner in fields:
            part = value.get(name)
            if part is None:
                if required:
                    return name, MISSING
            elif (wrong := inner(part)) is not None:
                return _within(name, wrong)
        return None

    return check


def _elements(name: str, container: type[list[Any]] | type[dict[str, Any]], element: Check, required: bool) -> Check:
    def check(value: Any) -> Wrong | None:
        if not isinstance(value, container):
            return "", f"{name} is needed, this is {_name(value)}"
        for part in value.values() if isinstance(value, dict) else value:
            if part is None:
                if required:
                    return "element", MISSING
            elif (wrong := element(part)) is not None:
                return _within("element", wrong)
        return None

    return check


def _within(name: str, wrong: Wrong) -> Wrong:
    path, text = wrong
    return f"{name}.{path}" if path else name, text


def _check(kind: iceberg.IcebergType, units: Units, field_id: int = -1) -> Check:  # noqa: PLR0911 - a table
    match kind:
        case iceberg.StructType():
            return _struct(kind, units)
        case iceberg.ListType():
            return _elements("an array", list, _check(kind.element_type, units), kind.element_required)
        case iceberg.MapType():
            return _elements("an object", dict, _check(kind.value_type, units), kind.value_required)
        case iceberg.BooleanType():
            return _kind("true or false", bool, never=())
        case iceberg.IntegerType():
            return _whole(32, "int")
        case iceberg.LongType():
            return _whole(64, "long")
        case iceberg.FloatType() | iceberg.DoubleType():
            return _kind("a number", (int, float, Decimal), never=bool)
        case iceberg.DecimalType():
            return _decimal(kind.precision, kind.scale)
    if field_id in units:
        return _decimal(38, 18) if units[field_id] == "s" else _whole(64, f"time in {units[field_id]}")
    return _text(kind)


def _kind(name: str, kinds: type | tuple[type, ...], *, never: type | tuple[()]) -> Check:
    def check(value: Any) -> Wrong | None:
        if isinstance(value, kinds) and not isinstance(value, never):
            return None
        return "", f"{name} is needed, this is {_name(value)}"

    return check


def _whole(bits: int, name: str) -> Check:
    limit = 1 << (bits - 1)

    def check(value: Any) -> Wrong | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "", f"a whole number ({name}) is needed, this is {_name(value)}"
        return None if -limit <= value < limit else ("", f"{value} is too big for {name}")

    return check


def _decimal(precision: int, scale: int) -> Check:
    def check(value: Any) -> Wrong | None:
        if isinstance(value, bool | dict | list):
            return "", f"a number is needed, this is {_name(value)}"
        try:
            number = Decimal(value)
            with localcontext(prec=max(precision, len(number.as_tuple().digits)) + scale + 2):
                unscaled = number.scaleb(scale)
                fits = unscaled == unscaled.to_integral_value() and abs(unscaled) < Decimal(10) ** precision
        except (ArithmeticError, ValueError):
            return None
        return None if fits else ("", f"{value} does not fit decimal({precision}, {scale})")

    return check


def _text(kind: iceberg.IcebergType) -> Check:
    pattern = _PATTERNS.get(type(kind))

    def check(value: Any) -> Wrong | None:
        if not isinstance(value, str):
            return "", f"a string ({kind}) is needed, this is {_name(value)}"
        if pattern is not None and pattern.fullmatch(value) is None:
            return "", f"{value[:64]!r} is no {kind}"
        return None

    return check


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return f"the string {value[:64]!r}"
        case dict():
            return "an object"
        case list():
            return "an array"
    return f"the number {str(value)[:64]}"
