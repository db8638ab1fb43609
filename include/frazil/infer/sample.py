"""Reads a sample of a topic's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frazil.ingest.contract import OffsetRange
from frazil.ingest.headers import unpack_headers
from frazil.ingest.kafka_messages import MessageReader
from frazil.kafka.admin import KafkaAdmin


@dataclass(frozen=True, slots=True)
class SampledRecord:
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1
    """Kafka's timestamp, in milliseconds since 1970; negative if unknown."""
    headers: tuple[str, ...] = ()
    """Names of the record's headers."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of a topic, from the beginning and the end of each partition."""

    topic: str
    records: tuple[SampledRecord, ...]
    records_in_topic: int
    """Number of records in the topic, estimated from its offsets."""

    @property
    def records_per_day(self) -> float | None:
        """Records per day, estimated from Kafka's timestamps; None if the timestamps span less than a minute."""
        stamps = [record.timestamp_ms for record in self.records if record.timestamp_ms >= 0]
        span_ms = max(stamps) - min(stamps) if stamps else 0
        return self.records_in_topic * 86_400_000 / span_ms if span_ms >= 60_000 else None


UNREACHABLE_TIMEOUT_S = 10.0


def read_sample(properties: Mapping[str, str], topic: str, *, records: int) -> Sample:
    """Read a sample of about `records` records of a topic. Raises TopicMissing, AccessDenied and KafkaUnavailable."""
    with KafkaAdmin({"log_level": "2", **properties}, [topic]) as kafka:
        partitions = kafka.describe().partitions
        earliest, ends = kafka.earliest(partitions), kafka.ends(partitions)
    spans = {place: (earliest[place], ends[place]) for place in partitions if earliest[place] < ends[place]}
    each = max(1, -(-records // (2 * max(1, len(spans)))))
    heads = [OffsetRange(*place, start, min(end, start + each)) for place, (start, end) in spans.items()]
    tails = [OffsetRange(*place, max(end - each, min(end, start + each)), end) for place, (start, end) in spans.items()]
    read = [record for ranges in (heads, tails) for record in _read_records(properties, ranges)]
    return Sample(topic, tuple(read), records_in_topic=sum(end - start for start, end in spans.values()))


def _read_records(properties: Mapping[str, str], ranges: list[OffsetRange]) -> Iterator[SampledRecord]:
    with MessageReader(properties, ranges, unreachable_limit_s=UNREACHABLE_TIMEOUT_S) as reader:
        for chunk in reader:
            headers = [None] * len(chunk) if chunk.headers is None else chunk.headers
            rows = zip(chunk.values, chunk.keys, chunk.timestamps_ms.tolist(), headers, strict=True)
            for value, key, stamp_ms, packed in rows:
                yield SampledRecord(value, key, stamp_ms, tuple(name for name, _ in unpack_headers(packed)))
