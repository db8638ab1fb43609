"""A sample of a topic's records."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Estimated from the topic's offsets."""

    @property
    def records_per_day(self) -> float | None:
        """Estimated from Kafka's timestamps; None if these span less than a minute."""
        stamps = [record.timestamp_ms for record in self.records if record.timestamp_ms >= 0]
        span_ms = max(stamps) - min(stamps) if stamps else 0
        return self.records_in_topic * 86_400_000 / span_ms if span_ms >= 60_000 else None
