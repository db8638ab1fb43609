"""Reads a sample of a topic's records, and collects statistics about the values of each field."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from frazil.ingest.chunk import unpack_headers
from frazil.ingest.contract import OffsetRange
from frazil.kafka.admin import KafkaAdmin
from frazil.timetext import parse_moment


@dataclass(frozen=True, slots=True)
class SampledRecord:
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1
    """Kafka's timestamp, in milliseconds since 1970; negative if unknown."""
    headers: tuple[str, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        return self.value is None and self.key is not None


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of a topic, from the beginning and the end of each partition."""

    topic: str
    records: tuple[SampledRecord, ...]
    records_in_topic: int
    """Number of records in the topic, estimated from its offsets."""

    @property
    def timestamps_ms(self) -> list[int]:
        return [record.timestamp_ms for record in self.records if record.timestamp_ms >= 0]

    @property
    def records_per_day(self) -> float | None:
        """Records per day, estimated from Kafka's timestamps; None if the timestamps span less than a minute."""
        stamps = self.timestamps_ms
        span_ms = max(stamps) - min(stamps) if stamps else 0
        return self.records_in_topic * 86_400_000 / span_ms if span_ms >= 60_000 else None


UNREACHABLE_TIMEOUT_S = 10.0


def read_sample(properties: Mapping[str, str], topic: str, *, records: int, servers_setting: str) -> Sample:
    """Read a sample of about `records` records of a topic. Raises TopicMissing, AccessDenied and KafkaUnavailable.

    `servers_setting` is where the user has set the brokers.
    """
    quiet = {"log_level": "2", **properties}
    with KafkaAdmin(quiet, [topic], topics_setting="TOPIC", servers_setting=servers_setting) as kafka:
        partitions = kafka.describe().partitions
        earliest, ends = kafka.earliest(partitions), kafka.ends(partitions)
    spans = {tp: (earliest[tp], ends[tp]) for tp in partitions if earliest[tp] < ends[tp]}
    each = max(1, -(-records // (2 * max(1, len(spans)))))
    heads = [OffsetRange(*tp, start, min(end, start + each)) for tp, (start, end) in spans.items()]
    tails = [OffsetRange(*tp, max(end - each, min(end, start + each)), end) for tp, (start, end) in spans.items()]
    read = [record for ranges in (heads, tails) for record in _read_records(properties, ranges)]
    return Sample(topic, tuple(read), records_in_topic=sum(end - start for start, end in spans.values()))


def _read_records(properties: Mapping[str, str], ranges: list[OffsetRange]) -> Iterator[SampledRecord]:
    from frazil.ingest.kafka_columns import ColumnReader  # loads Numba, to read only

    with ColumnReader(properties, ranges, unreachable_limit_s=UNREACHABLE_TIMEOUT_S) as reader:
        for chunk in reader:
            headers = [None] * len(chunk) if chunk.headers is None else chunk.headers
            rows = zip(chunk.values, chunk.keys, chunk.timestamps_ms.tolist(), headers, strict=True)
            for value, key, stamp_ms, packed in rows:
                yield SampledRecord(value, key, stamp_ms, tuple(name for name, _ in unpack_headers(packed)))


MAX_DISTINCT = 5_000
MIN_STRINGS_PER_MISFIT = 500
"""Minimum number of strings for each string that does not fit a proposed type, such as uuid."""
MIN_VALUES_PER_MISFIT = 10
"""A column gets a type if at least this many values have it for each value of another type. A list is one value."""
MAX_OBSERVED_DEPTH = 32

_PATTERNS = {
    "timestamptz": re.compile(
        r"\d{4}-\d\d-\d\d[Tt ]\d\d(:?\d\d(:?\d\d([.,]\d+)?)?)?([Zz]|[+-]\d\d(:?\d\d)?)", re.ASCII
    ),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?", re.ASCII),
    "date": re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "decimal": re.compile(r"-?\d{1,28}\.\d{1,9}", re.ASCII),
}
_TIMES = {"timestamptz", "timestamp", "date"}
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_S, _LAST_S = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2000, 2100))


@dataclass(slots=True)
class IntegerRange:
    count: int
    lowest: int
    highest: int

    @classmethod
    def around(cls, value: int, earlier: IntegerRange | None) -> IntegerRange:
        if earlier is None:
            return cls(1, value, value)
        return cls(earlier.count + 1, min(earlier.lowest, value), max(earlier.highest, value))


@dataclass(slots=True)
class FieldStatistics:
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of values by JSON type: `int`, `text`, `object` and so on."""
    fractions: int = 0
    """Number of floats that are not whole."""
    lowest: int = 0
    highest: int = 0
    times: dict[str, IntegerRange] = field(default_factory=dict)
    """The integers that are times of this century, by their unit. No integer fits two units."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Number of strings that fit each type."""
    misfits: dict[str, str] = field(default_factory=dict)
    """The first string that does not fit each type; for `int`, the first number that is not whole."""
    distinct: set[Any] = field(default_factory=set)
    moments: list[datetime] = field(default_factory=list)
    """The earliest and the latest time among the strings."""
    digits: tuple[int, int] = (0, 0)
    """Maximum digits before and after the decimal point, among strings that are decimals."""
    fields: dict[str, FieldStatistics] = field(default_factory=dict)
    elements: FieldStatistics | None = None

    @property
    def present(self) -> int:
        return self.kinds.total() - self.kinds["null"]

    @property
    def kind(self) -> str | None:
        """The most frequent JSON type of the values; None if all values are null."""
        counts = Counter({kind: count for kind, count in self.kinds.items() if kind != "null"})
        if self.fractions or counts["int"] < MIN_VALUES_PER_MISFIT * counts["float"]:  # else integers, such as 1e3
            counts["float"] += counts.pop("int", 0) + counts.pop("non-finite", 0)
        return counts.most_common(1)[0][0] if counts else None

    @property
    def others(self) -> int:
        """Number of values, without nulls, whose JSON type is not the most frequent one."""
        return sum(self.other_kinds.values())

    @property
    def other_kinds(self) -> dict[str, int]:
        """The number of the values in `others`, by JSON type."""
        expected = {"int", "float", "non-finite"} if self.kind == "float" else {self.kind}
        return {kind: count for kind, count in self.kinds.items() if kind not in {*expected, "null"}}

    @property
    def shape(self) -> str | None:
        """The type that all strings fit, except for a few odd ones; None if no type does."""
        return self._find_shape(MIN_STRINGS_PER_MISFIT)

    @property
    def main_shape(self) -> str | None:
        """The type that most strings fit, even if `shape` is None."""
        return self._find_shape(MIN_VALUES_PER_MISFIT)

    def _find_shape(self, min_strings_per_misfit: int) -> str | None:
        lowest = max(1, self.kinds["text"] - self.kinds["text"] // min_strings_per_misfit)
        of_time = ("timestamptz", "timestamp", "date") if self.moments else ()
        return next((shape for shape in (*of_time, "uuid", "decimal") if self.shapes[shape] >= lowest), None)

    @property
    def odd_texts(self) -> int:
        return self.count_odd_texts(self.shape) if self.shape else 0

    def count_odd_texts(self, shape: str) -> int:
        return self.kinds["text"] - self.shapes[shape]

    def count_other_times(self, unit: str) -> int:
        """Return the number of integers that are not times of this century in the unit."""
        return self.kinds["int"] - self.times[unit].count

    def add(self, value: Any, depth: int = 0) -> None:
        match value:
            case None:
                self.kinds["null"] += 1
            case bool():
                self.kinds["boolean"] += 1
            case int():
                first = not self.kinds["int"]
                self.kinds["int"] += 1
                self.lowest = value if first else min(self.lowest, value)
                self.highest = value if first else max(self.highest, value)
                self._add_time(value)
            case float() if not math.isfinite(value):  # NaN among integers does not make them a double
                self.kinds["non-finite"] += 1
            case float():
                self.kinds["float"] += 1
                if not value.is_integer():
                    self.fractions += 1
                    self.misfits.setdefault("int", str(value))
            case str():
                self._add_text(value)
            case dict():
                self.kinds["object"] += 1
                for name, inner in value.items() if depth < MAX_OBSERVED_DEPTH else ():
                    self.fields.setdefault(name, FieldStatistics()).add(inner, depth + 1)
            case list():
                self.kinds["array"] += 1
                self.elements = self.elements or FieldStatistics()
                for element in value if depth < MAX_OBSERVED_DEPTH else ():
                    self.elements.add(element, depth + 1)
        if isinstance(value, str | int) and len(self.distinct) < MAX_DISTINCT:
            self.distinct.add(value)

    def _add_time(self, value: int) -> None:
        unit = next((u for u, factor in UNITS.items() if _FIRST_S * factor <= value < _LAST_S * factor), None)
        if unit is not None:
            self.times[unit] = IntegerRange.around(value, self.times.get(unit))

    def _add_text(self, text: str) -> None:
        self.kinds["text"] += 1
        shapes = {shape for shape, pattern in _PATTERNS.items() if pattern.fullmatch(text)}
        moment = _parse_utc(text) if shapes & _TIMES else None
        if moment is None:  # such as 0000-00-00
            shapes -= _TIMES
        else:
            self.moments = [min([moment, *self.moments]), max([moment, *self.moments])]
        self.shapes.update(shapes)
        for shape in _PATTERNS.keys() - shapes:
            self.misfits.setdefault(shape, text)
        if "decimal" in shapes:
            integer, _, fraction = text.removeprefix("-").partition(".")
            self.digits = (max(self.digits[0], len(integer)), max(self.digits[1], len(fraction)))


_CANONICAL_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})(?P<inexact>(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?)", re.ASCII)


def parse_text(value: Any) -> Any:
    """Return the number (without leading zeros) or boolean in a string; other values unchanged."""
    if not isinstance(value, str):
        return value
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    number = _CANONICAL_NUMBER.fullmatch(value)
    return value if number is None else float(value) if number["inexact"] else int(value)


def collect_statistics(records: Iterable[dict[str, Any]]) -> FieldStatistics:
    statistics = FieldStatistics()
    for record in records:
        statistics.add(record)
    return statistics


def _parse_utc(text: str) -> datetime | None:
    try:
        moment = parse_moment(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
