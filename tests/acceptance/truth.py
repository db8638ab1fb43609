"""What Kafka has, and what the tables must contain: an independent consumer and parser, which share no code with
frazil.

The parser is as strict as docs/how-to/declare-a-stream.md says. A record is a dead letter if its value has another type
than declared, or if a required field is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from confluent_kafka import Consumer, TopicPartition

Fields = tuple[Any, ...]

LONG = range(-(2**63), 2**63)
INT = range(-(2**31), 2**31)
MAX_FARE = Decimal("9999999.99")
ISO = re.compile(r"(\d{4})-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of Kafka."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes | None


def read_topic(bootstrap: str, topic: str, partitions: int) -> list[Record]:
    """Return all records that a `read_committed` reader finds now, from the first to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "truth",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        found: list[Record] = []
        at_end: set[int] = set()
        while len(at_end) < partitions:
            message = consumer.poll(30)
            assert message is not None, f"{topic} cannot be read to its end"
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            stamp = message.timestamp()[1]
            found.append(Record(message.partition(), message.offset(), stamp, message.value()))
        return found
    finally:
        consumer.close()


def read_value(value: bytes | None) -> Fields | None:
    """Return (id, at, note, fare, tags, place) of a valid value; None for a dead letter."""
    try:
        raw = json.loads((value or b"").decode(), parse_float=Decimal)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or (value or b"").startswith(b"\xef\xbb\xbf"):
        return None
    number, at, fare = raw.get("id"), _moment(raw.get("at")), raw.get("fare")
    if type(number) is not int or number not in LONG or at is None:
        return None
    place, tags = raw.get("place"), raw.get("tags")
    fits = (
        _is_text(raw.get("note"))
        and (tags is None or (isinstance(tags, list) and all(map(_is_text, tags))))
        and (place is None or (isinstance(place, dict) and _is_text(place.get("city")) and _is_int(place.get("zip"))))
        and (fare is None or (isinstance(fare, int | Decimal) and not isinstance(fare, bool) and abs(fare) <= MAX_FARE))
    )
    if not fits:
        return None
    where = None if place is None else (place.get("city"), place.get("zip"))
    cents = None if fare is None else Decimal(fare).quantize(Decimal("0.01"))
    return (number, at, raw.get("note"), cents, None if tags is None else tuple(tags), where)


def _moment(text: Any) -> datetime | None:
    """Return the time in UTC; None outside the years 1 to 9999, the range on which Iceberg's readers agree."""
    if not isinstance(text, str) or not ISO.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_int(value: Any) -> bool:
    return value is None or (type(value) is int and value in INT)


def watermark(
    records: Iterable[Record], partitions: int, read: Callable[[bytes | None], Fields | None] = read_value
) -> datetime | None:
    """Return a stream's watermark after these records: the minimum of the partitions' newest event times.

    None if a partition has had no event time yet. No partition counts as idle.
    """
    newest: dict[int, datetime] = {}
    for record in records:
        row = read(record.value)
        if row is not None and row[1] <= _believed(record.timestamp_ms):
            newest[record.partition] = max(row[1], newest.get(record.partition, row[1]))
    return min(newest.values()) if len(newest) == partitions else None


def _believed(timestamp_ms: int) -> datetime:
    """Return the latest event time that may advance the watermark: Kafka's time or the clock, plus 10 minutes."""
    known = min(timestamp_ms / 1000, datetime.now(UTC).timestamp())
    return datetime.fromtimestamp(known, UTC) + timedelta(minutes=10)
