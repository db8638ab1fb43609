"""Reads single JSON records: the reference implementation.

It also reads each record about which the compiled loop is not certain, and creates all error classes and texts. Records
are strict JSON (RFC 8259), except for NaN, Infinity and Inf. A field of the schema may occur once; other fields only
need valid syntax.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Optional

import msgspec
from pyiceberg import types as iceberg

from frazil.ingest.formats.json.keys import DuplicateKeyFinder
from frazil.ingest.formats.json.rest import Path, column_parts, is_rest, rest_of, rest_structs
from frazil.ingest.formats.json.text import (
    RecordError,
    encode_special_numbers,
    malformed_text,
    may_be_special,
    strip_message,
)
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, JSON_IN_TEXT, LISTED, OF_REST, Units, inner_types
from frazil.ingest.formats.json.values import (
    MISSING,
    OUT_OF_RANGE,
    TYPE_MISMATCH,
    InvalidValue,
    describe,
    find_conversion,
    number_as_sent,
)

Row = list[Any]
Parsed = tuple[Any, ...]
"""One value per column, before the conversions that the parser does not support."""

_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_HUGE_EXPONENT = re.compile(rb"[eE]\+?30[0-9]")
_MINUS_ZERO = re.compile(rb"[\s:,\[]-0[\s,}\]]")
_EXPECTED_VALUES: dict[type[iceberg.IcebergType], str] = {
    iceberg.StructType: "an object",
    iceberg.MapType: "an object",
    iceberg.ListType: "an array",
    iceberg.BooleanType: "true or false",
    iceberg.IntegerType: "a whole number",
    iceberg.LongType: "a whole number",
    iceberg.FloatType: "a number",
    iceberg.DoubleType: "a number",
}
_FLOATS = (iceberg.FloatType, iceberg.DoubleType)
_NUMBERS = (iceberg.IntegerType, iceberg.LongType, *_FLOATS, iceberg.TimestampType, iceberg.TimestamptzType)
_RAW_UNITS = ("s", AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST)
_NO_KEY = secrets.token_hex()
"""Field name of `rest` columns in the parser's types; random, so no record contains it."""
_INDEX = re.compile(r"\[[0-9]")
_RECEIVED_KINDS = {"str": "a string", "int": "a number", "float": "a number", "bool": "a boolean", "array": "an array"}
_MESSAGE_PATTERN = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


class _Number(str):
    __slots__ = ()


class _Entry(NamedTuple):
    """Finds the map entry that caused a parser's error: the first entry whose value fails with the same `message`."""

    decoders: list[Callable[[bytes], Any]]
    message: str

    def find_in(self, raw: bytes) -> bytes:
        for part in _decode_members(raw).values():
            for decode in self.decoders:
                try:
                    decode(part)
                except msgspec.ValidationError as error:
                    if str(error) == self.message:
                        return part
        raise LookupError(self.message)


class _Element(int):
    __slots__ = ()


Step = str | int | _Entry


def _step_name(step: Step) -> str:
    if isinstance(step, _Entry):
        return "value"
    return "element" if isinstance(step, int) and not isinstance(step, _Element) else str(step)


class _ErrorTemplate(NamedTuple):
    """An error text with a quoted value: `before`, the value at `keys`, `after`.

    `otherwise` replaces the text if the value cannot be quoted. For NaN and infinities, the text is `special` and the
    value.
    """

    error_class: str
    before: str
    keys: list[Step]
    otherwise: str = ""
    after: str = ""
    special: str = ""


class RecordReader:
    def __init__(self, schema: iceberg.StructType, units: Units, hidden: Collection[Path] = ()) -> None:
        """`hidden` has the lower-case paths of fields that a `rest` column omits."""
        self._rests = [
            (path, name, column_parts(kind, units, hidden)) for path, kind, name in rest_structs(schema, units)
        ]
        self._columns = {field.name: i for i, field in enumerate(schema.fields)}
        self._schema, self._units = schema, units
        self._strict = _Parser(schema, units, raw_floats=False)
        self._special = _Parser(schema, units, raw_floats=True)
        self._twice = DuplicateKeyFinder(without_rest(schema, units) if self._rests else schema)
        self._templates: dict[str, _ErrorTemplate] = {}
        self._decoders: dict[int, list[Callable[[bytes], Any]]] = {}
        self._floats = [i for i, field in enumerate(schema.fields) if isinstance(field.field_type, _FLOATS)]
        self._has_floats = any(isinstance(kind, _FLOATS) for kind in inner_types(schema))
        self._nested_floats = any(
            isinstance(kind, _FLOATS) for f in schema.fields for kind in inner_types(f.field_type)
        )

    def __call__(self, value: bytes | None) -> Row | RecordError:
        return self.read_all([value])[0]

    def read_all(self, values: Sequence[bytes | None]) -> list[Row | RecordError]:
        texts = [*map(_strip_or_error, values)]
        special = iter(may_be_special([text for text in texts if isinstance(text, bytes)]))
        return [text if isinstance(text, RecordError) else self._read(text, next(special)) for text in texts]

    def _read(self, text: bytes, special: bool) -> Row | RecordError:
        try:
            return self._read_text(text, special)
        except RecursionError:
            # Python adds the parser's depth to the caller's frames. A new thread has no frames yet.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._read_text, text, special).result()

    def _read_text(self, text: bytes, special: bool) -> Row | RecordError:
        try:
            row = self._row(text, special)
            return row if isinstance(row, RecordError) or not self._rests else self._add_rest(row, text)
        except InvalidValue as wrong:
            return RecordError(wrong.error_class, f"{wrong.path}: {wrong.text}")
        except msgspec.ValidationError as error:
            return self._translate_error(text, str(error))
        except msgspec.DecodeError as error:
            return RecordError("InvalidJson", malformed_text(text, str(error)))

    def _row(self, text: bytes, special: bool) -> Row | RecordError:
        if special:
            plain = encode_special_numbers(text)
            # Near the largest double the parser is very slow.
            if plain != text or (self._has_floats and _HUGE_EXPONENT.search(text)):
                return self._special_row(plain)
        parsed = self._strict.parse(text)
        if (path := self._twice(text, parsed)) is not None:
            return _duplicate_key_error(path)
        zeros = self._nested_floats or (self._floats and 0.0 in [parsed[i] for i in self._floats])
        if zeros and _MINUS_ZERO.search(text):
            return self._special_row(text)  # the parser drops the sign of -0
        return self._strict.row(parsed)

    def _add_rest(self, row: Row, text: bytes) -> Row:
        for path, name, part in self._rests:
            found: Any = row
            for level, step in enumerate(path):
                found = None if found is None else found[step if level else self._columns[step]]
            if (at := found) is not None and part is not None:
                at[name if path else self._columns[name]] = rest_of(text, part, path)
        return row

    def _special_row(self, text: bytes) -> Row | RecordError:
        try:
            parsed = self._special.parse(text)
        except msgspec.ValidationError as error:
            return self._translate_error(text, str(error))
        path = self._twice(text, parsed)
        return self._special.row(parsed) if path is None else _duplicate_key_error(path)

    def _translate_error(self, text: bytes, message: str) -> RecordError:
        """Return the error for the parser's message. A duplicate key takes precedence."""
        if (path := self._twice.find_in_rejected(text)) is not None:
            return _duplicate_key_error(path)
        if (template := self._templates.get(message)) is None:
            template = self._make_template(message)
            if _INDEX.search(message) is None:  # the number of messages with an index is unlimited
                self._templates[message] = template
        if template.error_class == "MissingRequired":
            return RecordError(template.error_class, template.before)
        value = quote_value(text, template.keys)
        if template.special and value in _SPECIAL:
            return RecordError(TYPE_MISMATCH, template.special + value)
        return RecordError(
            template.error_class, template.before + (template.otherwise if value is None else value) + template.after
        )

    def _make_template(self, message: str) -> _ErrorTemplate:
        found = _MESSAGE_PATTERN.fullmatch(message)
        assert found is not None
        what, path = found[1], found[2] or ""
        if what.startswith("Object missing required field `"):
            path += "." + what.split("`", 1)[1][:-1]
        kind, unit, keys = self._resolve(path, what)
        name = ".".join(map(_step_name, keys))
        if what.startswith("Object missing") or what.endswith(", got `null`"):
            return _ErrorTemplate("MissingRequired", f"{name}: {MISSING}", keys)
        if unit == LISTED:
            return _ErrorTemplate(TYPE_MISMATCH, f"{name}: expected an array, got ", keys, _received_kind(what))
        unit = unit and f"time in {unit}"
        needed = "a whole number" if unit else _EXPECTED_VALUES.get(type(kind), "a string")
        what_for = f" ({unit or kind})" if kind.is_primitive and needed != f"a {kind}" else ""
        mismatch = f"{name}: expected {needed}{what_for}, got "
        if isinstance(kind, _NUMBERS) and ("out of range" in what or what.startswith("Expected `int` ")):
            return _ErrorTemplate(
                OUT_OF_RANGE, f"{name}: ", keys, "the number", f" is too big for {unit or kind}", mismatch
            )
        return _ErrorTemplate(TYPE_MISMATCH, mismatch, keys, _received_kind(what))

    def _resolve(self, path: str, what: str) -> tuple[iceberg.IcebergType, str | None, list[Step]]:
        """Resolve a path in msgspec's message, such as `.a.b[3].c`. Messages omit map keys, which are found later."""
        kind: Any = self._schema
        unit: str | None = None
        keys: list[Step] = []
        while path:
            if isinstance(kind, iceberg.StructType) and path.startswith("["):
                index, _, path = path[1:].partition("]")
                field = next(f for f in kind.fields if f.name == index)
                kind, unit = field.field_type, self._units.get(field.field_id)
                keys.append(_Element(index))
            elif isinstance(kind, iceberg.StructType):
                fits = [f for f in kind.fields if re.match(re.escape(f".{f.name}") + r"(?=[.\[]|$)", path)]
                field = max(fits, key=lambda f: len(f.name))
                kind, unit, path = field.field_type, self._units.get(field.field_id), path[1 + len(field.name) :]
                keys.append(field.name)
            else:
                step, _, path = path[1:].partition("]")
                if isinstance(kind, iceberg.MapType):
                    message = f"{what} - at `${path}`" if path else what
                    keys.append(_Entry(self._entry_decoders(kind.value_field), message))
                    kind = kind.value_type
                else:
                    keys.append(int(step))
                    kind = kind.element_type
        return kind, unit, keys

    def _entry_decoders(self, entry: iceberg.NestedField) -> list[Callable[[bytes], Any]]:
        """Return two parsers of a map's values: one that parses floats, and one that leaves them raw."""
        if (found := self._decoders.get(entry.field_id)) is None:
            kinds = [_parser_type(entry, self._units, raw_floats) for raw_floats in (False, True)]
            found = self._decoders[entry.field_id] = [msgspec.json.Decoder(kind).decode for kind in kinds]
        return found


def _received_kind(message: str) -> str:
    return _RECEIVED_KINDS.get(message.split("`")[-2] if "`" in message else "int", "an object")


def without_rest(schema: iceberg.StructType, units: Units) -> iceberg.StructType:
    fields = []
    for field in schema.fields:
        if isinstance(field.field_type, iceberg.StructType):
            fields.append(field.model_copy(update={"field_type": without_rest(field.field_type, units)}))
        elif not is_rest(field, units):
            fields.append(field)
    return iceberg.StructType(*fields)


def quote_value(text: bytes, keys: Sequence[Step]) -> str | None:
    """Return the value at a path in a record, quoted for a message; None if it cannot be quoted."""
    try:
        raw = _read_field(text, str(keys[0]))
        for key in keys[1:]:
            if isinstance(key, _Entry):
                raw = key.find_in(raw)
            else:
                raw = _decode_elements(raw)[key] if isinstance(key, int) else _decode_members(raw)[key]
        value = _decode_untyped(raw)
    except (msgspec.DecodeError, LookupError, TypeError):  # also an integer of thousands of digits
        return None
    if isinstance(value, _Number):
        return f"the number {number_as_sent(value.encode())}"
    return describe(value)


def field_names_at(text: bytes, path: Sequence[str]) -> Collection[str]:
    raw = _read_field(text, path[0])
    for name in path[1:]:
        raw = _decode_members(raw)[name]
    return _decode_members(raw).keys()


def field_names(value: bytes | None) -> Collection[str]:
    """Return the field names of a record; empty if it cannot be parsed."""
    try:
        return _decode_members(encode_special_numbers(strip_message(value))).keys()
    except (RecordError, msgspec.DecodeError, RecursionError):
        return ()


def _read_field(text: bytes, name: str) -> Any:
    part = _field_decoder(name)
    try:
        return part(text).part
    except msgspec.DecodeError:
        return part(encode_special_numbers(text)).part


def _strip_or_error(value: bytes | None) -> bytes | RecordError:
    try:
        return strip_message(value)
    except RecordError as refused:
        return refused


def _duplicate_key_error(path: str) -> RecordError:
    return RecordError(TYPE_MISMATCH, f"{path}: given twice")


@lru_cache(maxsize=4096)
def _field_decoder(name: str) -> Callable[[bytes], Any]:
    part = msgspec.defstruct("Part", [("part", msgspec.Raw, None)], rename={"part": name}, gc=False)
    return msgspec.json.Decoder(part).decode


class _Parser:
    def __init__(self, schema: iceberg.StructType, units: Units, *, raw_floats: bool) -> None:
        self._decode = msgspec.json.Decoder(_struct_type(schema, units, raw_floats)).decode
        converters = [_converter(f, units, raw_floats) for f in schema.fields]
        self._converters = [
            (i, field.name, convert)
            for i, (field, convert) in enumerate(zip(schema.fields, converters, strict=True))
            if convert is not None
        ]

    def parse(self, text: bytes) -> Parsed:
        return msgspec.structs.astuple(self._decode(text))

    def row(self, parsed: Parsed) -> Row:
        row = [*parsed]
        for i, name, convert in self._converters:
            if (value := row[i]) is not None:
                try:
                    row[i] = convert(value)
                except InvalidValue as wrong:
                    raise wrong.within(name) from None
        return row


def _parser_type(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Any:
    kind = _required_parser_type(field, units, raw_floats)
    return kind if field.required or kind is msgspec.Raw else Optional[kind]  # noqa: UP045 - the type is created at run time


def _required_parser_type(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Any:  # noqa: PLR0911 - a table
    match kind := field.field_type:
        case iceberg.StructType():
            return _struct_type(kind, units, raw_floats, listed=units.get(field.field_id) == LISTED)
        case iceberg.ListType():
            return list[_parser_type(kind.element_field, units, raw_floats)]  # type: ignore[misc]  # a type made here
        case iceberg.MapType():
            return dict[str, _parser_type(kind.value_field, units, raw_floats)]  # type: ignore[misc]  # as above
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
        return msgspec.Raw if units[field.field_id] in _RAW_UNITS else _LONG
    return str


def _struct_type(
    schema: iceberg.StructType, units: Units, raw_floats: bool, *, listed: bool = False
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    if listed:
        kinds = {int(field.name): _parser_type(field, units, raw_floats) for field in schema.fields}
        fields = [(f"f{i}", kinds.get(i, msgspec.Raw), None) for i in range(1 + max(kinds))]
        return msgspec.defstruct("Listed", fields, array_like=True, gc=False)
    for i, field in enumerate(schema.fields):
        kind = _parser_type(field, units, raw_floats)
        fields.append((f"f{i}", kind) if field.required else (f"f{i}", kind, None))
    names = {f"f{i}": _NO_KEY if is_rest(field, units) else field.name for i, field in enumerate(schema.fields)}
    return msgspec.defstruct("Record", fields, rename=names, kw_only=True, gc=False)


def _converter(field: iceberg.NestedField, units: Units, raw_floats: bool) -> Callable[[Any], Any] | None:
    match kind := field.field_type:
        case iceberg.StructType():
            return _struct_converter(kind, units, raw_floats, listed=units.get(field.field_id) == LISTED)
        case iceberg.ListType():
            element = _converter(kind.element_field, units, raw_floats)
            return None if element is None else _element_converter(element, "element")
        case iceberg.MapType():
            values = _element_converter(_converter(kind.value_field, units, raw_floats) or _identity, "value")
            return lambda parsed: list(zip(parsed, values(parsed.values()), strict=True))
    convert = find_conversion(kind, units.get(field.field_id), raw_floats=raw_floats)
    if convert is None or field.required or _required_parser_type(field, units, raw_floats) is not msgspec.Raw:
        return convert
    given = convert
    return lambda raw: None if bytes(raw) == b"null" else given(raw)


def _identity(value: Any) -> Any:
    return value


def _element_converter(convert: Callable[[Any], Any], name: str) -> Callable[[Any], list[Any]]:
    def converted(values: Any) -> list[Any]:
        try:
            return [None if value is None else convert(value) for value in values]
        except InvalidValue as wrong:
            raise wrong.within(name) from None

    return converted


def _struct_converter(
    schema: iceberg.StructType, units: Units, raw_floats: bool, *, listed: bool
) -> Callable[[Any], dict[str, Any]]:
    fields = [(f.name, _converter(f, units, raw_floats) or _identity) for f in schema.fields]
    places = [int(f.name) for f in schema.fields] if listed else range(len(fields))

    def converted(parsed: msgspec.Struct) -> dict[str, Any]:
        row: dict[str, Any] = {}
        parts = msgspec.structs.astuple(parsed)
        for place, (name, convert) in zip(places, fields, strict=True):
            value = parts[place]
            try:
                row[name] = None if value is None else convert(value)
            except InvalidValue as wrong:
                raise wrong.within(name) from None
        return row

    return converted


_SPECIAL = ("the number NaN", "the number Infinity", "the number -Infinity")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_untyped = msgspec.json.Decoder(float_hook=_Number).decode
