"""One JSON record at a time: the row that it makes, or why it makes none.

This is the reference. Whatever the bulk path is not sure of comes here, and only from here come error classes and
texts, so that a record's fate, value, class and text are functions of its bytes and the schema alone.

A record is strict JSON (RFC 8259), except that numbers may be NaN, Infinity and Inf. A field that the schema names may
be there once; all others are ignored, but for their syntax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Optional

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.json_text import STRING, Refused, stripped
from frazil.ingest.json_types import Units
from frazil.ingest.json_values import MISSING, NOT_A_NUMBER, Wrong, leaf, named

Row = list[Any]
"""One value per column, as `pyarrow.array` takes them."""

_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_STRINGS = re.compile(b"(" + STRING.pattern + b")", re.DOTALL)
_MINUS_ZERO = re.compile(rb"[\s:,\[]-0[\s,}\]]")
_KEY = re.compile(b"(" + STRING.pattern + rb")[ \t\r\n]*:")
_PLAIN_NAME = re.compile(r"[^\"/\\\x00-\x1f\x7f-\U0010ffff]+")
_TIMESTAMPS = (iceberg.TimestampType, iceberg.TimestamptzType)
_NEEDED: dict[type[iceberg.IcebergType], str] = {
    iceberg.StructType: "an object",
    iceberg.MapType: "an object",
    iceberg.ListType: "an array",
    iceberg.BooleanType: "true or false",
    iceberg.IntegerType: "a whole number",
    iceberg.LongType: "a whole number",
    iceberg.FloatType: "a number",
    iceberg.DoubleType: "a number",
}
_NUMBERS = (iceberg.IntegerType, iceberg.LongType, iceberg.FloatType, iceberg.DoubleType, *_TIMESTAMPS)
_STRINGS_IN_BULK = (
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.UUIDType,
    iceberg.FixedType,
    iceberg.BinaryType,
    iceberg.FloatType,
)
_FLOATS = (iceberg.FloatType, iceberg.DoubleType)
_GOT = {"str": "a string", "int": "a number", "float": "a number", "bool": "a boolean", "array": "an array"}
_MESSAGE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


class _Number(str):
    """A number's own digits."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written: keys given twice are both here."""


class _Said(NamedTuple):
    """A refusal by the parser: the text before the value, the steps to it, what it is called if not found, the rest."""

    error_class: str
    before: str
    keys: list[str | int]
    otherwise: str = ""
    after: str = ""


class RecordReader:
    """Reads single records of one schema."""

    def __init__(self, schema: iceberg.StructType, units: Units) -> None:
        self._schema, self._units = schema, units
        self._strict = _Parser(schema, units, raw_floats=False)
        self._special = _Parser(schema, units, raw_floats=True)
        self._twice = _TwiceGiven(schema)
        self._said: dict[str, _Said] = {}
        self._floats = [i for i, field in enumerate(schema.fields) if isinstance(field.field_type, _FLOATS)]
        self._nested_floats = any(isinstance(kind, _FLOATS) for f in schema.fields for kind in _inner(f.field_type))

    def __call__(self, value: bytes | None) -> Row:
        """Raises Refused."""
        text = stripped(value)
        try:
            row = self._row(text)
            path = self._twice(text)
        except Wrong as wrong:
            error_class = "MissingRequired" if wrong.text == MISSING else "TypeMismatch"
            raise Refused(error_class, f"{wrong.path}: {wrong.text}") from None
        except msgspec.ValidationError as error:
            raise self._refused(text, str(error)) from None
        except msgspec.DecodeError as error:
            raise Refused("InvalidJson", str(error)) from None
        if path is not None:
            raise Refused("TypeMismatch", f"{path}: given twice")
        return row

    def passes(self, text: bytes) -> bool:
        """Whether a stripped text looks sound, sooner than by reading it: what passes may be refused all the same."""
        try:
            self._strict.check(text)
        except (msgspec.DecodeError, Wrong):
            return False
        return not self._twice.may_have(text)

    def _row(self, text: bytes) -> Row:
        try:
            row = self._strict(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if b"NaN" not in text and b"Inf" not in text:
                raise
            text = _without_specials(text)
            try:
                return self._special(text)
            except msgspec.ValidationError as error:
                raise self._refused(text, str(error)) from None
        if self._nested_floats or (self._floats and 0.0 in [row[i] for i in self._floats]):
            return self._special(text) if _MINUS_ZERO.search(text) else row  # the parser takes the sign from a -0
        return row

    def _refused(self, text: bytes, message: str) -> Refused:
        """What the parser says of a value, in our words."""
        if (said := self._said.get(message)) is None:
            said = self._understood(message)
            if "[" not in message:  # else it holds an index, and there is no end of them
                self._said[message] = said
        if said.error_class == "MissingRequired":
            return Refused(said.error_class, said.before)
        value = _value_at(text, said.keys)
        return Refused(said.error_class, said.before + (said.otherwise if value is None else value) + said.after)

    def _understood(self, message: str) -> _Said:
        found = _MESSAGE.fullmatch(message)
        assert found is not None
        what, path = found[1], found[2] or ""
        if what.startswith("Object missing required field `"):
            path += "." + what.split("`", 1)[1][:-1]
        kind, unit, keys = self._followed(path)
        name = ".".join(key if isinstance(key, str) else "element" for key in keys)
        if what.startswith("Object missing") or what.endswith(", got `null`"):
            return _Said("MissingRequired", f"{name}: {MISSING}", keys)
        if isinstance(kind, _NUMBERS) and ("out of range" in what or what.startswith("Expected `int` ")):
            return _Said("TypeMismatch", f"{name}: ", keys, "the number", f" is too big for {unit or kind}")
        needed = "a whole number" if unit else _NEEDED.get(type(kind), "a string")
        what_for = f" ({unit or kind})" if kind.is_primitive else ""
        got = _GOT.get(what.split("`")[-2] if "`" in what else "int", "an object")
        return _Said("TypeMismatch", f"{name}: {needed}{what_for} is needed, this is ", keys, got)

    def _followed(self, path: str) -> tuple[iceberg.IcebergType, str | None, list[str | int]]:
        """A parser's path, such as `.a.b[3].c`, through the schema: the type that it ends at, its unit, and its steps.

        An entry of a map has no key there (`[...]`): its step is -1.
        """
        kind: Any = self._schema
        unit: str | None = None
        keys: list[str | int] = []
        while path:
            if isinstance(kind, iceberg.StructType):
                fits = [f for f in kind.fields if re.match(re.escape(f".{f.name}") + r"(?=[.\[]|$)", path)]
                field = max(fits, key=lambda f: len(f.name))
                kind, unit, path = field.field_type, self._units.get(field.field_id), path[1 + len(field.name) :]
                keys.append(field.name)
            else:
                step, _, path = path[1:].partition("]")
                kind = kind.element_type if isinstance(kind, iceberg.ListType) else kind.value_type
                keys.append(-1 if step == "..." else int(step))
        return kind, unit and f"time in {unit}", keys


class _Parser:
    """Bytes to a row by one typed parse and the conversions that its types cannot do."""

    def __init__(self, schema: iceberg.StructType, units: Units, *, raw_floats: bool) -> None:
        self._decode = msgspec.json.Decoder(_struct_type(schema, units, raw_floats)).decode
        converters = [_converter(f, units, raw_floats) for f in schema.fields]
        self._converters = [
            (i, field.name, convert)
            for i, (field, convert) in enumerate(zip(schema.fields, converters, strict=True))
            if convert is not None
        ]
        self._parsed_in_bulk = [
            (i, name, convert)
            for i, name, convert in self._converters
            if not isinstance(schema.fields[i].field_type, _STRINGS_IN_BULK) or schema.fields[i].field_id in units
        ]

    def __call__(self, text: bytes) -> Row:
        """Raises msgspec.DecodeError and Wrong."""
        return self._complete(text, self._converters)

    def check(self, text: bytes) -> None:
        """What the bulk parser would choke on, in part: it takes any string for a time or for bytes."""
        self._complete(text, self._parsed_in_bulk)

    def _complete(self, text: bytes, converters: Sequence[tuple[int, str, Callable[[Any], Any]]]) -> Row:
        row = list(msgspec.structs.astuple(self._decode(text)))
        for i, name, convert in converters:
            if (value := row[i]) is not None:
                try:
                    row[i] = convert(value)
                except Wrong as wrong:
                    raise wrong.within(name) from None
        return row


def _type(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Any:
    """A field's type for the parser. `Raw` takes a null too: there is no optional one."""
    kind = _bare_type(field, units, raw_floats)
    return kind if field.required or kind is msgspec.Raw else Optional[kind]  # noqa: UP045 - a type made here


def _bare_type(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Any:  # noqa: PLR0911 - a table
    match kind := field.field_type:
        case iceberg.StructType():
            return _struct_type(kind, units, raw_floats)
        case iceberg.ListType():
            return list[_type(kind.element_field, units, raw_floats)]  # type: ignore[misc]  # a type made here
        case iceberg.MapType():
            return dict[str, _type(kind.value_field, units, raw_floats)]  # type: ignore[misc]  # as above
        case iceberg.BooleanType():
            return bool
        case iceberg.IntegerType():
            return _INT
        case iceberg.LongType():
            return _LONG
        case iceberg.FloatType() | iceberg.DoubleType():
            return msgspec.Raw if raw_floats else float
        case iceberg.DecimalType():
            return msgspec.Raw
    if field.field_id in units:
        return msgspec.Raw if units[field.field_id] == "s" else _LONG
    return str


def _struct_type(schema: iceberg.StructType, units: Units, raw_floats: bool) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for i, field in enumerate(schema.fields):
        kind = _type(field, units, raw_floats)
        fields.append((f"f{i}", kind) if field.required else (f"f{i}", kind, None))
    names = {f"f{i}": field.name for i, field in enumerate(schema.fields)}
    return msgspec.defstruct("Record", fields, rename=names, kw_only=True, gc=False)


def _converter(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Callable[[Any], Any] | None:
    """What is left to do with a parsed value that is not None; None where nothing is."""
    match kind := field.field_type:
        case iceberg.StructType():
            return _struct_converter(kind, units, raw_floats)
        case iceberg.ListType():
            element = _converter(kind.element_field, units, raw_floats)
            return None if element is None else _elements(element)
        case iceberg.MapType():
            values = _elements(_converter(kind.value_field, units, raw_floats) or _unchanged)
            return lambda parsed: list(zip(parsed, values(parsed.values()), strict=True))
    convert = leaf(kind, units.get(field.field_id), raw_floats=raw_floats)
    if convert is None or field.required or _bare_type(field, units, raw_floats) is not msgspec.Raw:
        return convert
    given = convert
    return lambda raw: None if bytes(raw) == b"null" else given(raw)


def _unchanged(value: Any) -> Any:
    return value


def _elements(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def converted(values: Any) -> list[Any]:
        try:
            return [None if value is None else convert(value) for value in values]
        except Wrong as wrong:
            raise wrong.within("element") from None

    return converted


def _struct_converter(schema: iceberg.StructType, units: Units, raw_floats: bool) -> Callable[[Any], dict[str, Any]]:
    fields = [(f.name, _converter(f, units, raw_floats) or _unchanged) for f in schema.fields]

    def converted(parsed: msgspec.Struct) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for (name, convert), value in zip(fields, msgspec.structs.astuple(parsed), strict=True):
            try:
                row[name] = None if value is None else convert(value)
            except Wrong as wrong:
                raise wrong.within(name) from None
        return row

    return converted


def _without_specials(text: bytes) -> bytes:
    """NaN and the infinities, outside strings, as the numbers that stand for them here."""
    if b"NaN" not in text and b"Inf" not in text:
        return text
    parts = _STRINGS.split(text) if b"\\" in text else text.split(b'"')
    parts[::2] = [_named_numbers(part) if b"N" in part or b"I" in part else part for part in parts[::2]]
    return (b"" if b"\\" in text else b'"').join(parts)


def _named_numbers(text: bytes) -> bytes:
    text = text.replace(b"-NaN", b"NaN").replace(b"NaN", b" 1e9990001 ").replace(b"Infinity", b"Inf")
    return text.replace(b"-Inf", b" -1e9990002 ").replace(b"Inf", b" 1e9990002 ")


class _TwiceGiven:
    """Finds a field of the schema, or a map's key, that a record gives twice: the parser keeps the last in silence."""

    def __init__(self, schema: iceberg.StructType) -> None:
        self._schema = schema
        self._decode = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_int=str, parse_float=str, parse_constant=str
        ).decode
        names = list(_names(schema))
        plain = len(set(names)) == len(names) and all(map(_PLAIN_NAME.fullmatch, names))
        countable = plain and not any(map(_has_entries, _inner(schema)))
        self._quoted = [f'"{name}"'.encode() for name in names] if countable else None
        self._flat = names == [field.name for field in schema.fields]

    def __call__(self, text: bytes) -> str | None:
        """The path of what is given twice. The text is a record that the parser takes."""
        if self._quoted is not None:
            if not self.may_have(text):
                return None
            if self._flat and b"\\" not in text and text.count(b"{") == 1:
                often = (quoted for quoted in self._quoted if text.count(quoted) > 1)
                return next(
                    (q[1:-1].decode() for q in often if len(re.findall(re.escape(q) + rb"[ \t\r\n]*:", text)) > 1), None
                )
        return _twice(self._decode(_without_specials(text).decode()), self._schema)

    def may_have(self, text: bytes) -> bool:
        """False where no field can be given twice; where the schema's names say nothing, also if one can."""
        if self._quoted is None:
            return False
        count = text.count
        for quoted in self._quoted:
            if count(quoted) > 1:
                return True
        return b"\\u00" in text and any(b"\\u00" in key[1] for key in _KEY.finditer(text))


def _twice(value: Any, kind: iceberg.IcebergType) -> str | None:
    """The walk over what is written; missing and ignored parts are passed over."""
    parts: Iterator[tuple[str, Any, iceberg.IcebergType]]
    match kind:
        case iceberg.StructType() if isinstance(value, _Pairs):
            fields = {field.name: field.field_type for field in kind.fields}
            known = [(key, part) for key, part in value if key in fields]
            if repeated := _repeated([key for key, _ in known]):
                return repeated
            parts = ((key, part, fields[key]) for key, part in known)
        case iceberg.MapType() if isinstance(value, _Pairs):
            if repeated := _repeated([key for key, _ in value]):
                return f"key {repeated[:64]!r}"
            parts = (("element", part, kind.value_type) for _, part in value)
        case iceberg.ListType() if isinstance(value, list):
            parts = (("element", part, kind.element_type) for part in value)
        case _:
            return None
    return next((f"{name}.{path}" for name, part, inner in parts if (path := _twice(part, inner))), None)


def _repeated(keys: list[str]) -> str | None:
    return None if len(set(keys)) == len(keys) else next(a for a, b in pairwise(sorted(keys)) if a == b)


def _has_entries(kind: iceberg.IcebergType) -> bool:
    """Whether it repeats its fields' names by right, or has names that no schema knows."""
    repeats = isinstance(kind, iceberg.ListType) and any(isinstance(part, iceberg.StructType) for part in _inner(kind))
    return repeats or isinstance(kind, iceberg.MapType)


def _names(kind: iceberg.IcebergType) -> Iterator[str]:
    if isinstance(kind, iceberg.StructType):
        for field in kind.fields:
            yield field.name
            yield from _names(field.field_type)


def _inner(kind: iceberg.IcebergType) -> Iterator[iceberg.IcebergType]:
    """The types inside a type, itself left out."""
    match kind:
        case iceberg.StructType():
            parts = [field.field_type for field in kind.fields]
        case iceberg.ListType():
            parts = [kind.element_type]
        case iceberg.MapType():
            parts = [kind.value_type]
        case _:
            parts = []
    for part in parts:
        yield part
        yield from _inner(part)


_untyped = msgspec.json.Decoder(float_hook=_Number).decode


def _value_at(text: bytes, keys: list[str | int]) -> str | None:
    """The value that a path leads to, in words; None where it cannot be said."""
    try:
        try:
            value = _untyped(text)
        except msgspec.ValidationError:  # a whole number of thousands of digits
            return None
        except msgspec.DecodeError:
            value = _untyped(_without_specials(text))
        for key in keys:
            value = value[key]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
    if isinstance(value, _Number):
        special = NOT_A_NUMBER.get(value.encode())
        return f"the number {value[:64] if special is None else special}"
    return named(value)
