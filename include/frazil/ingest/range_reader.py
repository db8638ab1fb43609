"""What readers of offset ranges share: their interface, the limits of a chunk, and the consumer's properties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from frazil.ingest.chunk import RecordChunk

MAX_CHUNK_RECORDS = 50_000
"""Maximum number of records in a chunk. Larger chunks do not reduce the decoding cost per record."""
MAX_CHUNK_BYTES = 32 * 2**20

MAX_BYTES_PROPERTY = "receive.message.max.bytes"
DEFAULT_PROPERTIES = {
    "fetch.queue.backoff.ms": "5",
    "queued.max.messages.kbytes": "32768",
    "log_level": "2",
    "check.crcs": "true",
    MAX_BYTES_PROPERTY: "300000000",
}
"""Defaults that users can override.

With its own defaults, librdkafka returns records of a damaged batch as valid ones. It also waits a second when its
queue is full, and logs twenty lines per second for failed connections. The buffer for a zstd batch triples until it
reaches `MAX_BYTES_PROPERTY`; the value here suffices for any batch of 100 MB.
"""

FIXED_PROPERTIES = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
}
"""Properties that users cannot override, because records would be lost, or uncommitted records read."""


def consumer_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return all properties of the consumer, which joins no group and commits no offsets."""
    return {**DEFAULT_PROPERTIES, "group.id": "frazil", **properties, **FIXED_PROPERTIES}


class RecordReader(ABC):
    """Reads the records `[start, end)` of each range once. Iterate to the end, then call `close` (or use `with`)."""

    on_read: Callable[[int, float], None] = staticmethod(lambda *_: None)
    """Called after each fetch with the number of records that no chunk has yet, and a quota's delay (s)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def __iter__(self) -> Iterator[RecordChunk]: ...

    def close(self) -> None:  # noqa: B027 - the readers of files and passes close what they open
        """Release what the last iteration left open."""
