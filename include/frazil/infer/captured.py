"""Recognises Debezium events in a sample, and proposes the columns and key of an upsert stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frazil.infer.columns import ProposedColumn, propose_columns
from frazil.infer.encoding import MIN_FORMAT_SHARE, Encoding
from frazil.infer.observed import Sample, collect_statistics
from frazil.spec.formats import POSITION, Envelope, JsonFormat
from frazil.spec.upsert import UNKEYABLE_TYPES

ENVELOPE_KEYS = frozenset({"before", "after", "source", "op"})
_OPERATIONS = frozenset("crudtm")
_POSITION_FIELDS = ({"lsn"}, {"file", "pos"})
"""Fields of `source` with the position in the source's log, for PostgreSQL and for MySQL."""
_PLACEHOLDER = Envelope().unavailable


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """The columns and key of a source database's table, derived from its change events."""

    columns: tuple[ProposedColumn, ...]
    """A column for each field of `after`, then the columns that the envelope fills. Key columns are required."""
    key: tuple[str, ...]
    is_guess: bool
    """Whether `key` is a guess, because the record keys cannot be used."""
    metadata: Mapping[str, str]
    """The envelope's field for each column that the envelope fills."""
    order_by: str | None
    """The position in the source's log; None if not all events have one."""
    event_time: str | None
    """The commit time in the source; None if not all events have one."""


def derive_captured_table(sample: Sample, encoding: Encoding) -> CapturedTable | None:
    """Return the source's table if most records are Debezium events in JSON, and a column can be a key."""
    if not isinstance(encoding.format, JsonFormat) or encoding.format.lines:
        return None
    events = [event for event in map(unwrap_event, encoding.records) if _is_event(event)]
    if not events or len(events) < MIN_FORMAT_SHARE * len(encoding.records):
        return None
    rows = [{name: v for name, v in e["after"].items() if v != _PLACEHOLDER} for e in events if e.get("after")]
    columns = propose_columns(collect_statistics(rows), timestamps_ms=sample.timestamps_ms)
    able = [
        column.name
        for column in columns
        if column.type and "<" not in column.type and column.type not in UNKEYABLE_TYPES
    ]
    combinations = Counter(tuple(found) for record in sample.records if (found := _parse_key(record.key)))
    limit = combinations.most_common(1)[0][0] if combinations else ()
    key = limit if set(limit) <= set(able) else ()
    guessed = key or tuple(name for name in able if name.lower() == "id") or tuple(able[:1])
    if not guessed:
        return None
    of_rows = tuple(
        replace(c, required=True, remark="") if c.name in guessed else replace(c, required=False) for c in columns
    )
    return _add_metadata_columns(of_rows, guessed, [event["source"] for event in events], is_guess=not key)


def _add_metadata_columns(
    columns: tuple[ProposedColumn, ...], key: tuple[str, ...], sources: Sequence[Mapping[str, Any]], *, is_guess: bool
) -> CapturedTable:
    taken = {column.name.lower() for column in columns}
    place, committed_at = (_unused_name(name, taken) for name in ("place", "committed_at"))
    metadata: dict[str, str] = {}
    added = []
    if all(any(all(source.get(name) is not None for name in log) for log in _POSITION_FIELDS) for source in sources):
        metadata[place] = POSITION
        added.append(ProposedColumn(place, "string", remark="later events in the source's log have greater values"))
    if all(type(source.get("ts_ms")) is int for source in sources):
        metadata[committed_at] = "source.ts_ms"
        added.append(ProposedColumn(committed_at, "timestamptz", unit="ms"))
    return CapturedTable(
        (*columns, *added),
        key,
        is_guess,
        metadata,
        order_by=place if place in metadata else None,
        event_time=committed_at if committed_at in metadata else None,
    )


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
        found = json.loads(key or b"")
    except (ValueError, RecursionError):
        return None
    return unwrap_event(found) if isinstance(found, dict) else None


def _unused_name(name: str, used: set[str]) -> str:
    return _unused_name(f"source_{name}", used) if name in used else name
