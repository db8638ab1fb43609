"""A writer starts on a log that was truncated below the marker: it refuses, or continues at the truncation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from frazil.commit.marker import Marker
from frazil.errors import Fenced, OffsetGap
from frazil.kafka.admin import Topics
from frazil.kafka.logs import LogEnd
from frazil.stream.writer import Epoch

P0, P1 = ("events", 0), ("events", 1)


class StandInKafka:
    """A Kafka whose partition 0 ends at 6, whatever its records were before."""

    def earliest(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def log_ends(self, partitions: Any) -> dict[Any, LogEnd]:
        return {tp: LogEnd(6, 6) if tp == P0 else LogEnd(0, 0) for tp in partitions}

    def truncation_offsets(self, positions: Any) -> dict[Any, int]:
        raise AssertionError(f"no leader epoch is known: {positions}")


def start(world: Any, committer: Any, *, on_gap: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Epoch, Any]:
    """Run the steps of a writer between its take-over and its query."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    spec = SimpleNamespace(name="events", source=SimpleNamespace(topics=("events",), on_gap=on_gap))
    writer: Any = SimpleNamespace(spec=spec)
    kafka: Any = StandInKafka()
    unused: list[Any] = [None] * 6
    epoch = Epoch(writer, kafka, world.tables, *unused)

    def go() -> Marker:
        return epoch._handle_offset_gaps(committer, world.marker(), Topics(world.source, (P0, P1)))

    return epoch, go


def test_an_offset_gap_is_refused_with_its_range_and_the_remedy(world: Any, monkeypatch: pytest.MonkeyPatch):
    committer = world.begin()
    before = world.run(committer, {0: (0, 10)})
    _, go = start(world, committer, on_gap="fail", monkeypatch=monkeypatch)
    with pytest.raises(OffsetGap, match=r"events-0 offsets 6 to 9.*frazil reset events --to marker"):
        go()
    assert world.marker() == before


def test_a_stream_that_skips_gaps_continues_at_the_truncation_and_loses_no_new_record(
    world: Any, monkeypatch: pytest.MonkeyPatch
):
    committer = world.begin()
    world.run(committer, {0: (0, 10)}, rejected={0: [8]})
    epoch, go = start(world, committer, on_gap="skip", monkeypatch=monkeypatch)
    with pytest.raises(OffsetGap):
        go()
    moved = world.marker()
    assert (moved.offsets[P0], moved.rewritten) == (6, {P0: ((6, 10),)})
    assert epoch.number == moved.key.epoch > committer.epoch
    # The next epoch of this very writer is fenced by no one; another letter at an offset that has one is kept.
    world.run(world.take_over(after=epoch.number), {0: (6, 12)}, rejected={0: [8]})
    assert world.rows() == sorted([(0, o) for o in range(10) if o != 8] + [(0, o) for o in range(6, 12) if o != 8])
    assert world.dead_letters() == [(0, 8), (0, 8)]


def test_a_replaced_writer_skips_no_offsets(world: Any, monkeypatch: pytest.MonkeyPatch):
    committer = world.begin()
    world.run(committer, {0: (0, 10)})
    world.begin()
    before = world.marker()
    _, go = start(world, committer, on_gap="skip", monkeypatch=monkeypatch)
    with pytest.raises(Fenced):
        go()
    assert world.marker() == before
