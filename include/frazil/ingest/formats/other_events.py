"""Recognises Debezium events that change no row (heartbeats, schema changes, transaction metadata, tombstones). They
are recognised by their schema's name or, in JSON without a schema, by their fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
    named = schema is None or (isinstance(schema, dict) and is_other_schema(str(schema.get("name"))))
    return named and isinstance(payload, dict) and _has_event_fields(payload)


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
