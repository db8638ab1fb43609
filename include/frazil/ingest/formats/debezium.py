"""Recognises Debezium's events that change no row, and placeholders for values that the source's log omits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import uuid
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import types as iceberg

from frazil.ingest.arrow_values import to_mask
from frazil.ingest.schema_drift import FoundType, Path, SchemaDrift, StructOf

_TEXT_TYPES = (iceberg.StringType, iceberg.BinaryType, iceberg.UUIDType)
_RECOGNISED_IN_LISTS = (*_TEXT_TYPES, iceberg.IntegerType, iceberg.LongType, iceberg.DateType)


def is_null_ambiguous(kind: iceberg.IcebergType) -> bool:
    """Return whether a null of this type may mean that the log omitted the value."""
    match kind:
        case iceberg.ListType():
            return not isinstance(kind.element_type, _RECOGNISED_IN_LISTS)
        case iceberg.MapType():
            return not isinstance(kind.value_type, iceberg.StringType)
        case iceberg.StructType():
            return any(field.name == "wkb" for field in kind.fields)  # a geometry or geography
    return False


class PlaceholderFinder:
    """Finds placeholders for unchanged values.

    A placeholder's form depends on the type (`UnchangedToastedPlaceholder`, `binary.handling.mode`). For some types,
    Debezium sends null instead.
    """

    def __init__(self, placeholder: str) -> None:
        data = placeholder.encode()
        hash_uuid = uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)
        in_text = b64encode(data).decode(), urlsafe_b64encode(data).decode(), data.hex()
        self._text, self._data, self._uuid = placeholder, data, hash_uuid
        hstore = json.dumps({placeholder: placeholder}, separators=(",", ":"), ensure_ascii=False)
        self._texts = [placeholder, hstore, *in_text]
        self._json_texts = [json.dumps(text, ensure_ascii=False) for text in self._texts]
        self._element_texts = [placeholder, str(hash_uuid), in_text[0]]
        self._numbers = np.frombuffer(data, np.int8).tolist()

    def add_placeholder_field(self, kind: iceberg.StructType, new_id: Callable[[], int]) -> iceberg.StructType:
        """Add a field with the placeholder's name to an hstore column's type, unless JSON would escape the name."""
        if self._text in {field.name for field in kind.fields} or set(self._text) & {*'"\\'} or min(self._text) < " ":
            return kind
        return iceberg.StructType(
            *kind.fields, iceberg.NestedField(new_id(), self._text, iceberg.StringType(), required=False)
        )

    def without_placeholder(self, drift: SchemaDrift) -> SchemaDrift:
        if not drift.new:
            return drift
        new: dict[Path, FoundType] = {}
        for path, found_type in drift.new.items():
            fields = dict(found_type.fields) if isinstance(found_type, StructOf) else {}
            if path[-1] != self._text:
                new[path] = StructOf(fields) if fields.pop(self._text, None) is not None else found_type
        return dataclasses.replace(drift, new=new)

    def __call__(self, values: pa.Array, *, as_json: bool = False) -> tuple[NDArray[np.bool_], pa.Array]:
        """Return a mask of the placeholders in a column, and the column without the field of `add_placeholder_field`.

        `as_json` means that the values are JSON, whatever the column's type.
        """
        if as_json:
            return to_mask(pc.is_in(values, pa.array(self._json_texts, values.type))), values
        if not pa.types.is_struct(values.type):
            return self._placeholder_mask(values), values
        index = values.type.get_field_index(self._text)
        if index < 0 or index != values.type.num_fields - 1:
            return np.zeros(len(values), np.bool_), values
        mask = to_mask(pc.equal(pc.struct_field(values, [index]), self._text))
        fields = [values.type.field(i) for i in range(index)]
        parts = [pc.struct_field(values, [i]) for i in range(index)]
        return mask, pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())

    def _placeholder_mask(self, values: pa.Array) -> NDArray[np.bool_]:
        kind = values.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return to_mask(pc.is_in(values, pa.array(self._texts, kind)))
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return to_mask(pc.equal(values, pa.scalar(self._data, kind)))
        mask = np.zeros(len(values), np.bool_)
        if pa.types.is_map(kind):
            if pa.types.is_string(kind.item_type) or pa.types.is_large_string(kind.item_type):
                keys, items = (pa.array([self._text], part) for part in (kind.key_type, kind.item_type))
                mask |= _equal_lists(values, values.keys, keys) & _equal_lists(values, values.items, items)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            elements = values.values.storage if _is_uuid(kind.value_type) else values.values
            for form in self._list_placeholders(kind.value_type):
                mask |= _equal_lists(values, elements, form)
        return mask

    def _list_placeholders(self, element: pa.DataType) -> Iterator[pa.Array]:
        if pa.types.is_string(element) or pa.types.is_large_string(element):
            yield from (pa.array([text], element) for text in self._element_texts)
        elif pa.types.is_binary(element) or pa.types.is_large_binary(element):
            yield pa.array([self._data], element)
        elif _is_uuid(element):
            yield pa.array([self._uuid.bytes], element.storage_type)
        elif pa.types.is_date(element):
            yield pa.array(self._numbers, pa.int32()).cast(element)
        elif pa.types.is_decimal(element):
            try:
                yield pa.array([Decimal(number) for number in self._numbers], element)
            except (pa.ArrowInvalid, InvalidOperation):
                return  # the type cannot hold the placeholder, so no record has it
        elif pa.types.is_integer(element) or pa.types.is_floating(element):
            yield pa.array(self._numbers, element)


def _equal_lists(lists: pa.Array, elements: pa.Array, expected: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the lists or maps that equal `expected`. `elements` has the elements of all lists."""
    offsets = lists.offsets.to_numpy()
    equal = np.zeros(len(lists), np.bool_)
    rows = np.flatnonzero(to_mask(lists.is_valid()) & (np.diff(offsets) == len(expected)))
    if len(rows):
        candidates = elements.take(pa.array((offsets[rows][:, None] + np.arange(len(expected))).ravel()))
        repeated = expected.take(pa.array(np.tile(np.arange(len(expected)), len(rows))))
        equal[rows] = to_mask(pc.equal(candidates, repeated)).reshape(len(rows), len(expected)).all(axis=1)
    return equal


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


_SCHEMA_NAMES = re.compile(
    r"io\.debezium\.connector\.(common\.(Heartbeat|TransactionMetadataValue)|\w+\.SchemaChangeValue)"
)
_TRANSACTION_FIELDS = frozenset({"status", "id", "event_count", "data_collections"})
_SCHEMA_CHANGE_FIELDS = frozenset({"source", "databaseName", "schemaName", "ddl", "tableChanges"})
_OPTIONAL_FIELDS = frozenset({"ts_ms"})
"""Fields that an event may omit. Before Debezium 2, only heartbeats had `ts_ms`."""


def is_other_schema(name: str) -> bool:
    return _SCHEMA_NAMES.fullmatch(name) is not None


def changes_no_row(record: bytes) -> bool:
    """Return whether a JSON record is an event that changes no row. The schema may be included."""
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    if value.keys() != {"schema", "payload"}:
        return _has_event_fields(value)
    schema, payload = value["schema"], value["payload"]
    if payload is None:  # a tombstone, as some of Kafka Connect's converters write it (KAFKA-3832)
        return schema is None
    has_schema_name = schema is None or (isinstance(schema, dict) and is_other_schema(str(schema.get("name"))))
    return has_schema_name and isinstance(payload, dict) and _has_event_fields(payload)


def _has_event_fields(value: Mapping[str, Any]) -> bool:
    fields = value.keys()
    if fields == _OPTIONAL_FIELDS:
        return type(value["ts_ms"]) is int
    if fields - _OPTIONAL_FIELDS == _TRANSACTION_FIELDS:
        if not isinstance(value["id"], str):
            return False
        if value["status"] == "BEGIN":
            return value["event_count"] is None and value["data_collections"] is None
        return value["status"] == "END" and type(value["event_count"]) is int
    if fields - _OPTIONAL_FIELDS == _SCHEMA_CHANGE_FIELDS:
        source, changes = value["source"], value["tableChanges"]
        is_event = isinstance(source, dict) and {"version", "connector", "name"} <= source.keys()
        return is_event and isinstance(changes, list)
    return False
