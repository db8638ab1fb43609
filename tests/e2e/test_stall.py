"""A healthy writer that gets nowhere says so in its heartbeat, with the partition that holds it back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from frazil.home import run_folder
from frazil.host.exchange import open_exchange
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
        """The stall in the heartbeat, while records go on coming to that many of the four partitions."""
        stream.produce([event(next(numbers)) for _ in range(partitions)], partitions=partitions)
        heartbeat = Heartbeat.read(open_exchange(run_folder(stream.name)))
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
