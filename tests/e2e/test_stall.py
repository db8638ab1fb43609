"""A healthy writer without progress reports it in its heartbeat, with the partition that causes it."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from frazil.dev.kafka import EmbeddedKafka
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Stall, StallKind
from frazil.stream import stall as module


def test_an_empty_partition_holds_the_watermark_until_it_has_a_record(
    stream: Any, event: Callable[[int], bytes], eventually: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "MIN_STALL_MS", 8_000)
    stream.declare("commit: {interval: 2s}\n")
    numbers = itertools.count(1)
    seen: list[Stall] = []

    def reported(*, partitions: int) -> Stall | None:
        """Return the stall in the heartbeat, while new records arrive in this many of the four partitions."""
        stream.produce([event(next(numbers)) for _ in range(partitions)], partitions=partitions)
        heartbeat = Heartbeat.read(run_folder(stream.name))
        if heartbeat is None or heartbeat.stall is None:
            return None
        seen.append(heartbeat.stall)
        return heartbeat.stall if heartbeat.stall.kind is StallKind.WATERMARK else None

    with stream.writing():
        stall = eventually(lambda: reported(partitions=3))
        assert stall.held_back_by == f"{stream.topic}-3"
        assert "it has no known event time" in stall.reason
        eventually(lambda: not reported(partitions=4))
    assert {s.kind for s in seen} == {StallKind.WATERMARK}, seen


@pytest.mark.rotates(3)
def test_a_quota_that_blocks_all_records_is_reported_until_it_is_raised(
    stream: Any, kafka: EmbeddedKafka, event: Callable[[int], bytes], eventually: Any, monkeypatch: pytest.MonkeyPatch
):
    """A broker does not send a batch of records that is larger than ten seconds of the quota."""
    for name in ("MIN_STALL_MS", "START_TIMEOUT_MS"):
        monkeypatch.setattr(module, name, 3_000)
    client = stream.topic
    yaml = stream.streams / f"{stream.name}.yaml"
    yaml.write_text(yaml.read_text().replace("format: json", f"format: json, properties: {{client.id: {client}}}"))
    stream.produce([event(0).replace(b'"x"', b'"%s"' % (b"x" * 40_000))])
    limit_consumer(kafka, client, bytes_per_s=2_000)

    def reason() -> str:
        heartbeat = Heartbeat.read(run_folder(stream.name))
        stall = heartbeat and heartbeat.stall
        return stall.reason if stall and "A quota of" in stall.reason else ""

    with stream.writing():
        try:
            text = eventually(reason)
        finally:
            limit_consumer(kafka, client, bytes_per_s=10**9)
        assert "is staging, has read 0 records and makes no progress. A quota of Kafka's brokers delays each" in text
        assert text.endswith("Raise the quota. A producer's batch that is larger than 10 s of the quota never arrives")
        eventually(lambda: stream.has_rows(1))


def limit_consumer(kafka: EmbeddedKafka, client: str, *, bytes_per_s: float) -> None:
    """Set a quota by the request AlterClientQuotas, which confluent-kafka does not have."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    entity = struct.pack(">ii", 1, 1) + text("client-id") + text(client)
    quota = struct.pack(">i", 1) + text("consumer_byte_rate") + struct.pack(">d??", bytes_per_s, False, False)
    request = struct.pack(">hhi", 49, 0, 1) + text("test") + entity + quota
    with socket.create_connection(("127.0.0.1", kafka.port), timeout=30) as to_broker:
        to_broker.sendall(struct.pack(">i", len(request)) + request)
        answer = to_broker.makefile("rb").read(18)
    assert struct.unpack(">16xh", answer) == (0,), "no error"
