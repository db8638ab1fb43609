"""Finds the format of a sample's records, and decodes the records. Proposes an upsert stream for Debezium's events."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from frazil.errors import SpecError
from frazil.infer.columns import ProposedColumn, propose_columns
from frazil.infer.registered_schemas import RegisteredSchemas
from frazil.infer.sample import Sample, collect_statistics
from frazil.spec.formats import POSITION, AvroFormat, CsvFormat, Envelope, JsonFormat, Key, ValueFormat, parse_format
from frazil.spec.upsert import UNKEYABLE_TYPES

MIN_FORMAT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Encoding:
    format: ValueFormat
    records: tuple[dict[str, Any], ...]
    """The decoded values of the records; empty for a format that is not decoded here."""


def find_encoding(sample: Sample, written: RegisteredSchemas | None = None) -> Encoding:
    """Return the format that most values fit. `written` has the topic's schemas from a registry.

    Raises SpecError if no record has a value, or the format is not supported or needs a registry that was not given.
    """
    if written is not None and written.is_framed and written.type != "JSON":
        if written.type != "AVRO":
            raise SpecError(
                f"the schemas of {sample.topic} are of type {written.type}, which infer does not support; write the "
                "file by hand"
            )
        return Encoding(AvroFormat(registry=written.registry), ())
    values = [record.value for record in sample.records if record.value]
    if not values and written is not None:
        return Encoding(JsonFormat(framing="confluent", registry=written.registry), ())
    if not values:
        raise SpecError(
            f"the topic {sample.topic} has no record with a value to infer from; produce some, or write the file "
            "by hand"
        )
    needed = MIN_FORMAT_SHARE * len(values)
    for plain, parts in (
        ("json", values),
        ({"type": "json", "framing": "confluent"}, [v[5:] for v in values if v[0] == 0 and len(v) > 5]),
    ):
        objects = [document for part in parts if (document := _parse_object(part)) is not None]
        if len(objects) >= needed:
            found_format = parse_format(plain)
            if isinstance(found_format, JsonFormat) and written is not None and written.type == "JSON":
                found_format = found_format.model_copy(update={"registry": written.registry})
            return Encoding(found_format, tuple(objects))
    several = [lines for value in values if (lines := _parse_objects(value)) is not None]
    if len(several) >= needed:
        return Encoding(
            parse_format({"type": "json", "lines": True}), tuple(line for lines in several for line in lines)
        )
    framed = [value for value in values if value[0] == 0 and len(value) > 5]
    ids = Counter(int.from_bytes(value[1:5]) for value in framed)
    if len(framed) >= needed and len(ids) <= len(framed) / 2:
        raise SpecError(
            f"the records of {sample.topic} begin with a zero byte and a schema id ({ids.most_common(1)[0][0]}). No "
            "registry was given, or it does not have this id: name the registry with --registry"
        )
    texts = [text for value in values if (text := _decode_text(value)) is not None]
    if len(texts) >= needed:
        return _parse_lines(texts) or Encoding(parse_format("string"), tuple({"value": text} for text in texts))
    return Encoding(parse_format("bytes"), ())


def _parse_object(value: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _parse_objects(value: bytes) -> list[dict[str, Any]] | None:
    documents = [_parse_object(line) for line in value.split(b"\n") if line.strip()]
    return [document for document in documents if document is not None] if documents and None not in documents else None


def _decode_text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.rstrip("\r\n").isprintable() or "\t" in text else None


def _parse_lines(texts: Sequence[str]) -> Encoding | None:
    """Parse delimited lines, if more than 90% of them have the same number of fields, at least two."""
    for delimiter in ",;\t|":
        try:
            lines = [next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter), []) for text in texts]
        except csv.Error:
            continue
        fields, count = Counter(map(len, lines)).most_common(1)[0]
        if fields > 1 and count > 0.9 * len(texts):
            names = tuple(f"c{i}" for i in range(1, fields + 1))
            records = tuple(
                dict(zip(names, map(_parse_scalar, line), strict=True)) for line in lines if len(line) == fields
            )
            return Encoding(CsvFormat(columns=names, delimiter=delimiter), records)
    return None


def _parse_scalar(field: str) -> object:
    if not field:
        return None
    if field.lower() in {"true", "false"}:
        return field.lower() == "true"
    for number in (int, float):
        try:
            return number(field)
        except ValueError:
            continue
    return field


ENVELOPE_KEYS = frozenset({"before", "after", "source", "op"})
_OPERATIONS = frozenset("crudtm")
_POSITION_FIELDS = ({"lsn"}, {"file", "pos"})
"""Fields of `source` with the position in the source's log, for PostgreSQL and for MySQL."""
_PLACEHOLDER = Envelope().unavailable


@dataclass(frozen=True, slots=True)
class UpsertTable:
    """The columns and key of a table whose rows the records change."""

    columns: tuple[ProposedColumn, ...]
    """A column for each field, then the columns that the envelope or the key fills. Key columns are required."""
    key: tuple[str, ...]
    event_time: str | None
    """The event time; for change events, the commit time in the source. None if not all records have one."""
    is_guess: bool = False
    """Whether `key` is a guess, because the record keys cannot be used."""
    metadata: Mapping[str, str] | None = None
    """The envelope's field for each column that the envelope fills; None without an envelope."""
    order_by: str | None = None
    """The position in the source's log; None if not all events have one."""
    whole_key: Key | None = None
    """The setting of the column that stores the whole record key; None if its fields fill the key columns."""


def derive_captured_table(sample: Sample, encoding: Encoding) -> UpsertTable | None:
    """Return the source's table if most records are Debezium events in JSON, and a column can be a key."""
    if not isinstance(encoding.format, JsonFormat) or encoding.format.lines:
        return None
    events = [event for event in map(unwrap_event, encoding.records) if _is_event(event)]
    if not events or len(events) < MIN_FORMAT_SHARE * len(encoding.records):
        return None
    rows = [{name: v for name, v in e["after"].items() if v != _PLACEHOLDER} for e in events if e.get("after")]
    columns = propose_columns(collect_statistics(rows), timestamps_ms=sample.timestamps_ms)
    candidates = [column.name for column in columns if _is_keyable(column)]
    combinations = Counter(tuple(found) for record in sample.records if (found := _parse_key(record.key)))
    limit = combinations.most_common(1)[0][0] if combinations else ()
    key = limit if set(limit) <= set(candidates) else ()
    guessed = key or tuple(name for name in candidates if name.lower() == "id") or tuple(candidates[:1])
    if not guessed:
        return None
    of_rows = tuple(
        replace(c, required=True, remark="") if c.name in guessed else replace(c, required=False) for c in columns
    )
    return _add_metadata_columns(of_rows, guessed, [event["source"] for event in events], is_guess=not key)


def _add_metadata_columns(
    columns: tuple[ProposedColumn, ...], key: tuple[str, ...], sources: Sequence[Mapping[str, Any]], *, is_guess: bool
) -> UpsertTable:
    names = {column.name.lower() for column in columns}
    position, committed_at = (_unused_name(name, names) for name in ("place", "committed_at"))
    metadata: dict[str, str] = {}
    added = []
    if all(any(all(source.get(name) is not None for name in log) for log in _POSITION_FIELDS) for source in sources):
        metadata[position] = POSITION
        added.append(ProposedColumn(position, "string", remark="later events in the source's log have greater values"))
    if all(type(source.get("ts_ms")) is int for source in sources):
        metadata[committed_at] = "source.ts_ms"
        added.append(ProposedColumn(committed_at, "timestamptz", unit="ms"))
    return UpsertTable(
        (*columns, *added),
        key,
        is_guess=is_guess,
        metadata=metadata,
        order_by=position if position in metadata else None,
        event_time=committed_at if committed_at in metadata else None,
    )


def derive_table_with_deletes(
    sample: Sample, encoding: Encoding, columns: tuple[ProposedColumn, ...], event_time: str | None
) -> UpsertTable | None:
    """Return the table of JSON records that all have a key, if some have no value (tombstones)."""
    keys = [record.key for record in sample.records if record.key is not None]
    if not isinstance(encoding.format, JsonFormat) or encoding.format.lines:
        return None
    if len(keys) < len(sample.records) or not any(record.is_tombstone for record in sample.records):
        return None
    rows = [
        (record.key or b"", unwrap_event(row))
        for record in sample.records
        if record.value and (row := _parse_object(record.value)) is not None
    ]
    names, whole_key = _find_key_fields(keys, rows, columns), None
    if not names:
        column = _find_key_column(keys, rows, columns)
        if column is None:
            name = _unused_name("record_key", {column.name.lower() for column in columns})
            column = ProposedColumn(name, "string" if _are_texts(keys) else "binary")
            columns = (*columns, column)
        formats: dict[str | None, Literal["string", "bytes", "json"]] = {"binary": "bytes", "long": "json"}
        names, whole_key = (column.name,), Key(column=column.name, format=formats.get(column.type, "string"))
    columns = tuple(replace(column, required=column.name in names) for column in columns)
    return UpsertTable(columns, names, event_time, whole_key=whole_key)


def _find_key_fields(
    keys: Sequence[bytes], rows: Sequence[tuple[bytes, Mapping[str, Any]]], columns: Sequence[ProposedColumn]
) -> tuple[str, ...]:
    """Return the fields of all keys, if each row has the values of its key; empty otherwise, because a tombstone would
    then delete another key's row.
    """
    names = tuple(_parse_key(keys[0]) or ())
    if not set(names) <= {column.name for column in columns if column.path is None and _is_keyable(column)}:
        return ()
    parsed = [_parse_key(key) or {} for key in keys]
    if any(tuple(fields) != names or None in fields.values() for fields in parsed):
        return ()
    same = all({name: row.get(name) for name in names} == _parse_key(key) for key, row in rows)
    return names if same else ()


def _find_key_column(
    keys: Sequence[bytes], rows: Sequence[tuple[bytes, Mapping[str, Any]]], columns: Sequence[ProposedColumn]
) -> ProposedColumn | None:
    """Return the column whose value, as text, is the key of each record. It can hold the keys of tombstones, too."""
    types = {"string"} if rows and _are_texts(keys) else set()
    if types and all(re.fullmatch(rb"-?[1-9][0-9]{0,17}|0", key) for key in keys):
        types.add("long")
    plain = (c for c in columns if c.type in types and not (c.path or c.is_cast or c.as_json))
    return next((c for c in plain if all(_is_text_of(row.get(c.name), key) for key, row in rows)), None)


def _are_texts(keys: Sequence[bytes]) -> bool:
    return all(_decode_text(key) is not None for key in keys)


def _is_text_of(value: object, key: bytes) -> bool:
    return value is not None and str(value).encode(errors="surrogatepass") == key


def _is_keyable(column: ProposedColumn) -> bool:
    return column.type is not None and "<" not in column.type and column.type not in UNKEYABLE_TYPES


def unwrap_event(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the payload if Kafka Connect wrapped the value in `{schema, payload}`; otherwise the value itself."""
    payload = value.get("payload")
    return payload if value.keys() == {"schema", "payload"} and isinstance(payload, dict) else value


def _is_event(value: Mapping[str, Any]) -> bool:
    states = [value.get("before"), value.get("after")]
    op = value.get("op")
    is_change = isinstance(op, str) and op in _OPERATIONS and isinstance(value.get("source"), dict)
    return is_change and all(state is None or isinstance(state, dict) for state in states)


def _parse_key(key: bytes | None) -> Mapping[str, Any] | None:
    try:
        key_object = json.loads(key or b"")
    except (ValueError, RecursionError):
        return None
    return unwrap_event(key_object) if isinstance(key_object, dict) else None


def _unused_name(name: str, used: set[str]) -> str:
    return _unused_name(f"source_{name}", used) if name in used else name
