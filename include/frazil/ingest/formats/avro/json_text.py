"""Converts Avro values to JSON text. Bytes become base64, and dates and times ISO 8601. A union becomes its value."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, localcontext

import numpy as np

from frazil.ingest.formats.avro.schema import AvroType

MAX_EMPTY_ELEMENTS = 64
"""Maximum number of elements without bytes (such as nulls) in a value, in addition to one per byte."""
_MICROSECONDS = {"millis": 1000, "micros": 1}
_EPOCH = date(1970, 1, 1).toordinal()
_ERA_DAYS = 146_097


class InvalidAvroValue(Exception):
    """The bytes are not a valid value of the Avro type."""


@dataclass(slots=True)
class _OpenContainer:
    element: AvroType
    is_map: bool
    left: int = 0
    began: bool = False


def json_text(data: bytes, written: AvroType) -> str:
    """Return a value as JSON text. Raises InvalidAvroValue."""
    try:
        return _write(ValueReader(data), written)
    except (IndexError, ValueError, KeyError, struct.error, OverflowError) as error:
        raise InvalidAvroValue(str(error)) from None


def _write(reader: ValueReader, written: AvroType) -> str:  # noqa: PLR0912 - one for each kind of type
    out: list[str] = []
    todo: list[AvroType | _OpenContainer | str] = [written]  # a stack, because values may be nested 500 deep
    elements = len(reader.data) + MAX_EMPTY_ELEMENTS
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, _OpenContainer):
            if not item.left and not item.began:
                out.append("{" if item.is_map else "[")
            item.left = item.left or reader.read_block_count()
            if not item.left:
                out.append("}" if item.is_map else "]")
                continue
            out.append("," if item.began else "")
            item.left, item.began, elements = item.left - 1, True, elements - 1
            if elements < 0:
                raise InvalidAvroValue("a block has more elements than bytes")
            todo += [item, item.element]
            if item.is_map:
                out.append(_quote_text(reader.read_blob().decode()) + ":")
        elif item.kind == "union":
            todo.append(item.parts[reader.index(len(item.parts))])
        elif item.kind == "record":
            out.append("{")
            todo.append("}")
            for i, (names, part) in reversed([*enumerate(zip(item.fields, item.parts, strict=True))]):
                todo += [part, f"{',' if i else ''}{_quote_text(names[0])}:"]
        elif item.kind in ("array", "map"):
            todo.append(_OpenContainer(item.parts[0], item.kind == "map"))
        else:
            out.append(_SCALARS[item.kind](reader, item))
    if reader.at != len(reader.data):
        raise InvalidAvroValue("the value has bytes after its end")
    return "".join(out)


class ValueReader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read_varint(self) -> int:
        value = shift = 0
        while True:
            octet = self.data[self.at]
            self.at += 1
            value |= (octet & 127) << shift
            if octet < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def index(self, count: int) -> int:
        value = self.read_varint()
        if not 0 <= value < count:
            raise InvalidAvroValue("no such branch or symbol")
        return value

    def read_block_count(self) -> int:
        count = self.read_varint()
        if count < 0:
            self.read_varint()  # skip the block's size in bytes
        return abs(count)

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise InvalidAvroValue("the value ends early")
        self.at += size
        return self.data[self.at - size : self.at]

    def read_blob(self) -> bytes:
        return self.take(self.read_varint())


def _quote_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number_text(form: Callable[[float], object], value: float) -> str:
    return (
        str(form(value)) if math.isfinite(value) else '"NaN"' if math.isnan(value) else f'"{"-" * (value < 0)}Infinity"'
    )


def _read_integer(reader: ValueReader, written: AvroType) -> str:
    value, logical = reader.read_varint(), written.logical
    if logical == "date":
        return f'"{_date_text(value)}"'
    if logical.startswith("time-"):
        return f'"{_time_text(value * _MICROSECONDS[logical.rpartition("-")[2]] * 1000)}"'
    if logical:
        nanos = value * 1000 * _MICROSECONDS.get(logical.rpartition("-")[2], 0) or value
        days, day_nanos = divmod(nanos, 86_400 * 10**9)
        return f'"{_date_text(days)}T{_time_text(day_nanos)}{"" if logical.startswith("local") else "Z"}"'
    return str(value)


def _date_text(days: int) -> str:
    eras, day = divmod(days + _EPOCH - 1, _ERA_DAYS)
    day_in_era = date.fromordinal(day + 1)
    return f"{day_in_era.year + 400 * eras:04}-{day_in_era.month:02}-{day_in_era.day:02}"


def _time_text(nanos: int) -> str:
    seconds, fraction = divmod(nanos, 10**9)
    digits = f"{fraction:09}".rstrip("0")
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{clock}.{digits}" if digits else clock


def _bytes_text(data: bytes, written: AvroType) -> str:
    if written.logical != "decimal":
        return f'"{b64encode(data).decode()}"'
    number = int.from_bytes(data, "big", signed=True)
    with localcontext(prec=max(1, len(str(number)))):
        return f"{Decimal(number).scaleb(-written.scale):f}"


_SCALARS: dict[str, Callable[[ValueReader, AvroType], str]] = {
    "null": lambda _, __: "null",
    "boolean": lambda reader, _: ("false", "true")[reader.take(1)[0]],
    "int": _read_integer,
    "long": _read_integer,
    "float": lambda reader, _: _number_text(np.float32, *struct.unpack("<f", reader.take(4))),
    "double": lambda reader, _: _number_text(repr, *struct.unpack("<d", reader.take(8))),
    "string": lambda reader, _: _quote_text(reader.read_blob().decode()),
    "bytes": lambda reader, written: _bytes_text(reader.read_blob(), written),
    "fixed": lambda reader, written: _bytes_text(reader.take(written.size), written),
    "enum": lambda reader, written: _quote_text(written.symbols[reader.index(len(written.symbols))]),
}
