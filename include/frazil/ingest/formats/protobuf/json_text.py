"""Fills the columns of JSON text from Protobuf messages, using Protobuf's JSON mapping and the schema's field names.
Protobuf's own library parses the messages again for these columns, which the compiled loop leaves null or empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import Error, MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from pyiceberg import types as iceberg

from frazil.ingest.arrow_values import child_arrays, combine_chunks, with_children
from frazil.ingest.formats.json.rest import Entries, Fields, FilledPart, Path, column_parts, is_rest, rest_of
from frazil.ingest.formats.json.types import AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST, Units, inner_fields
from frazil.ingest.formats.protobuf.program import WRAPPERS, is_map


class _FieldValue(NamedTuple):
    """A field of a message. If `value` is set, one value of the field's list or map."""

    message: Message
    field: FieldDescriptor
    value: Any = None


class JsonTexts:
    """Fills columns of JSON text from Protobuf messages. An instance is false if the schema has no such columns."""

    def __init__(self, schema: iceberg.StructType, units: Units, hidden: Collection[Path] = ()) -> None:
        """`hidden` has the lower-case paths of fields that a `rest` column omits."""
        self._schema = schema
        self._number_ids = {i for i, unit in units.items() if unit == AS_TEXT}
        self._json_ids = {i for i, unit in units.items() if unit in (AS_JSON, AS_TEXT, JSON_IN_TEXT, OF_REST)}
        self._rest = next((field.name for field in schema.fields if is_rest(field, units)), None)
        self._parts = column_parts(schema, units, hidden)
        self._message_parts: dict[Descriptor, FilledPart | None] = {}
        self.faults: dict[int, str] = {}
        """Reasons, by row of the last call, why a value cannot become JSON text."""
        self.missing: dict[int, str] = {}
        """The full name of a missing required value, by row of the last call."""

    def __bool__(self) -> bool:
        return any(map(self._has_json, self._schema.fields))

    def __call__(self, rows: pa.Table, records: Sequence[bytes], written: Sequence[Descriptor]) -> pa.Table:
        """Fill in the JSON texts. Row i comes from `records[i]`, a message of type `written[i]`."""
        self.faults, self.missing = {}, {}
        messages: list[Message | None] = []
        for row, (record, kind) in enumerate(zip(records, written, strict=True)):
            try:
                messages.append(GetMessageClass(kind).FromString(record))
            except DecodeError as error:
                self.faults[row] = str(error)
                messages.append(None)
        for i, field in enumerate(self._schema.fields):
            if field.name == self._rest:
                rest_texts = [
                    None if message is None else self._rest_text(row, message) for row, message in enumerate(messages)
                ]
                rows = rows.set_column(i, rows.schema.field(i), pa.array(rest_texts, rows.schema.field(i).type))
            elif self._has_json(field):
                parts = [None if message is None else _find_field(message, field.name) for message in messages]
                array = self._fill_array(combine_chunks(rows.column(i)), field, parts, range(len(parts)), field.name)
                rows = rows.set_column(i, rows.schema.field(i), array)
        return rows

    def _rest_text(self, row: int, message: Message) -> str | None:
        """Return the JSON text of the fields that fill no column; None without such fields, or on an error."""
        if message.DESCRIPTOR not in self._message_parts:
            self._message_parts[message.DESCRIPTOR] = _fit_to_message(self._parts, message.DESCRIPTOR)
        part = self._message_parts[message.DESCRIPTOR]
        assert part is not None
        try:
            left = rest_of(_to_json(_to_dict(message)).encode(), part)
            return None if left is None else left.decode()
        except (Error, TypeError, ValueError) as error:
            self.faults.setdefault(row, f"{self._rest}: a field has no JSON text: {error}")
            return None

    def _has_json(self, field: iceberg.NestedField) -> bool:
        return field.field_id in self._json_ids or any(map(self._has_json, inner_fields(field.field_type)))

    def _fill_array(
        self,
        array: pa.Array,
        field: iceberg.NestedField,
        parts: Sequence[_FieldValue | None],
        rows: Sequence[int],
        path: str,
    ) -> pa.Array:
        """Return the array with JSON texts filled in. Entry i is `parts[i]` of the record `rows[i]`."""
        if not field.field_type.is_primitive:  # a field of another type leaves null
            parts = [
                part if is_valid else None for part, is_valid in zip(parts, array.is_valid().to_pylist(), strict=True)
            ]
        match kind := field.field_type:
            case iceberg.StructType():
                children = []
                for i, inner in enumerate(kind.fields):
                    child = array.field(i)
                    if self._has_json(inner):
                        within = [None if part is None else _subfield(part, inner.name) for part in parts]
                        # Required fields of a null struct do not count as missing.
                        present_rows = [row if part is not None else -1 for row, part in zip(rows, parts, strict=True)]
                        child = self._fill_array(child, inner, within, present_rows, f"{path}.{inner.name}")
                    children.append(child)
                return with_children(array, children, array.type)
            case iceberg.ListType() | iceberg.MapType():
                inside, entry_rows = self._parts_inside(array, kind, parts, rows, path)
                *others, entries = child_arrays(array)
                inner = inner_fields(kind)[-1]
                filled = self._fill_array(entries, inner, inside, entry_rows, f"{path}.{inner.name}")
                return with_children(array, [*others, filled], array.type)
        texts = []
        for part, row in zip(parts, rows, strict=True):
            text = None
            if part is None:
                if field.required and row >= 0:
                    self.missing.setdefault(row, path)
            else:
                try:
                    text = _number_text(part) if field.field_id in self._number_ids else None
                    text = text or _json_text(part)
                except (Error, TypeError, ValueError) as error:
                    self.faults.setdefault(row, f"{path}: the value has no JSON text: {error}")
            texts.append("" if text is None and field.required else text)
        return pa.array(texts, array.type)

    def _parts_inside(
        self,
        array: pa.Array,
        kind: iceberg.ListType | iceberg.MapType,
        parts: Sequence[_FieldValue | None],
        rows: Sequence[int],
        path: str,
    ) -> tuple[list[_FieldValue | None], list[int]]:
        """Return the parts of all entries of lists or maps, and their rows."""
        inside: list[_FieldValue | None] = []
        entry_rows, keys, starts = [], _entry_keys(array, kind), array.offsets.to_pylist()
        for n, (part, row) in enumerate(zip(parts, rows, strict=True)):
            if part is not None:
                entry_keys = keys[starts[n] : starts[n + 1]]
                if is_map(part.field) and None in entry_keys:
                    self.faults.setdefault(row, f"{path}: JSON text in the entries of a map needs the field key")
                    inside += [None] * len(entry_keys)
                else:
                    inside += [part._replace(value=value) for value in _field_values(part, entry_keys, kind)]
                entry_rows += [row] * len(entry_keys)
        return inside, entry_rows


def _fit_to_message(part: FilledPart | None, message: Descriptor | None) -> FilledPart | None:
    """Return the parts of a message's JSON that fill columns; None for the whole message.

    The JSON of a well-known message, such as Timestamp, does not have its fields: it is left whole, unless columns have
    all fields.
    """
    if not isinstance(part, Fields) or message is None:
        return part
    if message.file.name.startswith("google/protobuf/"):
        return None if part.hidden or {field.name for field in message.fields} <= part.taken.keys() else Fields({})
    fields = message.fields_by_name
    return replace(part, taken={name: _fit_to_field(inner, fields.get(name)) for name, inner in part.taken.items()})


def _fit_to_field(part: FilledPart | None, field: FieldDescriptor | None) -> FilledPart | None:
    if part is None or field is None:
        return part
    if isinstance(part, Fields):
        return _fit_to_message(part, field.message_type)
    each: FilledPart | None = part.each
    message = field.message_type
    if is_map(field):
        message = message.fields_by_name["value"].message_type
        if isinstance(each, Fields) and not part.is_map:  # a list column of entries: in JSON, the map is an object
            each = None if each.hidden else each.taken.get("value", Fields({}))
    each = _fit_to_message(each, message)
    return None if each is None else Entries(each, is_map=is_map(field))


def _field_value(part: _FieldValue) -> Any:
    return getattr(part.message, part.field.name)


def _entry_keys(array: pa.Array, kind: iceberg.ListType | iceberg.MapType) -> list[Any]:
    """Return the keys of all entries of a map, or of a list that may have them; None for entries without keys."""
    if isinstance(kind, iceberg.MapType):
        return array.keys.to_pylist()  # type: ignore[no-any-return]
    names = [field.name for field in inner_fields(kind.element_type)]
    return array.values.field(names.index("key")).to_pylist() if "key" in names else [None] * len(array.values)


def _field_values(part: _FieldValue, keys: Sequence[Any], kind: iceberg.IcebergType) -> Sequence[Any]:
    """Return the elements of a list, or the values (in a list column, the entries) of a map with these keys."""
    values = _field_value(part)
    if not is_map(part.field):
        return values  # type: ignore[no-any-return]
    typed_keys = [int(key) if isinstance(key, Decimal) else key for key in keys]
    if isinstance(kind, iceberg.MapType):
        return [values[key] for key in typed_keys]
    entry = GetMessageClass(part.field.message_type)
    return [entry(key=key, value=values[key]) for key in typed_keys]


def _find_field(message: Message, name: str) -> _FieldValue | None:
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (not field.is_repeated and field.has_presence and not message.HasField(name)):
        return None
    return _FieldValue(message, field)


def _subfield(part: _FieldValue, name: str) -> _FieldValue | None:
    message = _field_value(part) if part.value is None else part.value
    return _find_field(message, name)


def _number_text(part: _FieldValue) -> str | None:
    """Return a number as JSON without quotes; None if it is not a number. Protobuf's mapping quotes 64-bit integers."""
    value = _field_value(part)
    if isinstance(value, Message) and value.DESCRIPTOR.full_name in WRAPPERS:
        part = _FieldValue(value, value.DESCRIPTOR.fields[0])
        value = _field_value(part)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and part.field.enum_type is None
    return json.dumps(value) if is_number else None


def _json_text(part: _FieldValue) -> str:
    value = part.value if part.value is not None or part.field.is_repeated else _field_value(part)
    if isinstance(value, Message):
        content = _to_dict(value)
    elif part.value is not None:
        return json.dumps(value, ensure_ascii=False)  # a string
    else:
        copy: Any = type(part.message)()
        if part.field.is_repeated:
            getattr(copy, part.field.name).MergeFrom(_field_value(part))
            of_empty: Callable[[], Any] = dict if is_map(part.field) else list
            content = _to_dict(copy).get(part.field.name, of_empty())
        else:
            setattr(copy, part.field.name, value)
            content = _to_dict(copy, always_print_fields_with_no_presence=True)[part.field.name]
    return _to_json(content)


def _to_dict(message: Message, **options: bool) -> dict[str, Any]:
    """Return the message as JSON. The pool has the messages that an `Any` may contain."""
    pool = message.DESCRIPTOR.file.pool
    content: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool, **options)
    return content


def _to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
