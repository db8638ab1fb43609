"""Sends the flights to Kafka: the backlog at once, then one hour of event time every few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pyarrow as pa
from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivery

from demo.flights import messages
from frazil.errors import KafkaUnavailable

SECONDS_PER_HOUR = 3.0


class Publisher:
    """A producer that counts acknowledged records.

    `_waiting` has the number of sent records by time. From it and the number of committed records follows the age of
    the oldest uncommitted record.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 20,
                "compression.type": "lz4",
                "enable.idempotence": True,
                "log_level": 0,  # poll raises what the broker refuses; the rest is retried
            }
        )
        self._topic = topic
        self._refused: KafkaError | None = None
        self._waiting: deque[tuple[int, float]] = deque()
        self.sent = 0
        self.delivered = 0

    def send(self, flights: pa.Table, *, now_s: float) -> None:
        """Pass flights to the producer, waiting while its queue is full."""
        for message in messages(flights):
            while True:
                try:
                    self._producer.produce(self._topic, message.value, message.key, on_delivery=self._taken)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.sent += 1
            if self.sent % 1000 == 0:
                self._producer.poll(0)
        self._waiting.append((self.sent, now_s))

    def poll(self) -> None:
        """Count deliveries.

        Raises:
            KafkaUnavailable: the broker refused a record.
        """
        self._producer.poll(0)
        if self._refused:
            raise KafkaUnavailable(f"a record for the topic {self._topic} was not taken: {self._refused.str()}")

    def flush(self, within_s: float = 60) -> None:
        """Wait until the broker has all sent records."""
        left = self._producer.flush(within_s)
        self.poll()
        if left:
            raise KafkaUnavailable(f"{left} records for the topic {self._topic} were not taken in {within_s:.0f} s.")

    def oldest_waiting_s(self, committed: int, *, now_s: float) -> float:
        """Return the age of the oldest record after the first `committed` records; 0 if all are committed."""
        while self._waiting and self._waiting[0][0] <= committed:
            self._waiting.popleft()
        return now_s - self._waiting[0][1] if self._waiting else 0.0

    def _taken(self, error: KafkaError | None, delivery: Delivery) -> None:  # noqa: ARG002 - confluent_kafka's signature
        if error:
            self._refused = error
        else:
            self.delivered += 1


class LiveHours:
    """The live hours. Hour n is due n times `SECONDS_PER_HOUR` after the start."""

    def __init__(self, hours: Mapping[int, pa.Table], *, started_s: float) -> None:
        self._left = dict(sorted(hours.items()))
        self._started_s = started_s
        self.hour = 0
        """The last hour that became due."""

    def due(self, now_s: float) -> list[pa.Table]:
        """Return the flights of the hours that have become due since the last call."""
        self.hour = int((now_s - self._started_s) / SECONDS_PER_HOUR)
        return [self._left.pop(hour) for hour in list(self._left) if hour <= self.hour]

    @property
    def over(self) -> bool:
        return not self._left
