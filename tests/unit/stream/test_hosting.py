"""What writers of one process share: slots in order, and one heartbeat thread."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest

from frazil.stream import hosting
from frazil.stream.hosting import FoldingThread, Heartbeats, KafkaClients, RecordFolding, Slots
from tests.polling import eventually


def test_slots_are_granted_in_the_order_of_requests() -> None:
    slots, order, holds = Slots(1), [], threading.Event()

    def take(number: int) -> None:
        with slots.slot(cancelled=lambda: False, on_wait=lambda: None) as admitted:
            order.append((number, admitted))

    def hold() -> None:
        with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
            holding.set()
            holds.wait(30)

    holding = threading.Event()
    first = threading.Thread(target=hold)
    first.start()
    assert holding.wait(30)
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        eventually(lambda wanted=number + 1: len(slots._waiting) == wanted)
    holds.set()
    for thread in (first, *threads):
        thread.join(30)
    assert order == [(number, True) for number in range(5)]


def test_a_thread_that_waits_for_a_slot_reports_it_and_may_give_up() -> None:
    slots, waited = Slots(1), []
    with (
        slots.slot(cancelled=lambda: False, on_wait=lambda: None) as first,
        slots.slot(cancelled=lambda: bool(waited), on_wait=lambda: waited.append(1)) as second,
    ):
        assert (first, second) == (True, False)
    with slots.slot(cancelled=lambda: True, on_wait=lambda: None) as third:
        assert third, "a turn that is free is taken at once"


def test_a_thread_that_gives_up_while_its_slot_is_lent_does_not_get_it_back() -> None:
    slots, waited = Slots(1), []
    with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
        assert slots.release_while(lambda: None, cancelled=lambda: False, on_wait=lambda: None) is False
        held, ends = threading.Event(), threading.Event()

        def hold() -> None:
            with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
                held.set()
                ends.wait(30)

        holder = threading.Thread(target=hold)

        def lend() -> None:
            holder.start()
            assert held.wait(30)

        answers = iter([False, True])
        gave_up = slots.release_while(lend, cancelled=lambda: next(answers), on_wait=lambda: waited.append(1))
        assert (gave_up, waited) == (True, [1])
        ends.set()
        holder.join(30)
    with slots.slot(cancelled=lambda: True, on_wait=lambda: None) as free:
        assert free, "released once"


def test_a_failure_while_waiting_for_a_slot_leaves_the_slot_to_others() -> None:
    slots, held, waited = Slots(1), threading.Event(), threading.Event()

    def hold() -> None:
        with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
            held.set()
            waited.wait(20)

    def fail() -> None:
        raise OSError("the heartbeat cannot be written")

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    with pytest.raises(OSError, match="heartbeat"), slots.slot(cancelled=lambda: False, on_wait=fail):
        pass
    waited.set()
    holder.join(20)
    with slots.slot(cancelled=lambda: True, on_wait=lambda: None) as mine:
        assert mine


class HeartbeatSender:
    def __init__(self) -> None:
        self.heartbeats, self.is_changed, self.broken = 0, False, False

    def send_heartbeat(self) -> None:
        self.heartbeats, self.is_changed = self.heartbeats + 1, False
        if self.broken:
            raise OSError("no space left on device")


def test_one_thread_sends_heartbeats_for_all_and_one_that_cannot_write_stops_no_other() -> None:
    broken, valid, changed = HeartbeatSender(), HeartbeatSender(), HeartbeatSender()
    broken.broken = True
    with Heartbeats(heartbeat_interval_s=1e9) as heartbeats:
        for one in (broken, valid, changed):
            heartbeats.add(one)
        eventually(lambda: broken.heartbeats == valid.heartbeats == changed.heartbeats == 1)
        changed.is_changed = True
        eventually(lambda: changed.heartbeats == 2)
        heartbeats.remove(changed)
        assert valid.heartbeats == 1


def test_a_thread_that_waits_during_an_outage_lends_its_slot_and_queues_for_it_again() -> None:
    slots, waited, others_are_done = Slots(1), [], threading.Event()

    def other() -> None:
        with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
            others_turn.set()
            others_are_done.wait(20)

    def outage() -> None:
        thread.start()
        assert others_turn.wait(20), "the turn is another's meanwhile"

    def on_wait() -> None:
        waited.append(1)
        others_are_done.set()

    others_turn, thread = threading.Event(), threading.Thread(target=other)
    with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
        assert not slots.release_while(outage, cancelled=lambda: False, on_wait=on_wait)
        assert waited
        thread.join(20)
        assert not slots._free, "it is this thread's again"
    assert slots._free == 1


def test_a_thread_asked_to_stop_during_an_outage_does_not_queue_for_its_slot_again() -> None:
    slots = Slots(1)
    with slots.slot(cancelled=lambda: False, on_wait=lambda: None):
        assert slots.release_while(lambda: None, cancelled=lambda: True, on_wait=lambda: None)
        assert slots._free == 1
    assert slots._free == 1
    assert not slots.release_while(lambda: None, cancelled=lambda: False, on_wait=lambda: None), (
        "without a turn, it only waits"
    )
    assert slots._free == 1


def test_a_kafka_client_is_shared_and_ends_with_the_last_writer_that_uses_it() -> None:
    clients = KafkaClients()
    first = clients.open({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
    second = clients.open({"log_level": "0", "bootstrap.servers": "127.0.0.1:1"})
    assert second is first
    ended = weakref.ref(first)
    del first
    assert ended() is second
    del second
    assert ended() is None


def test_one_thread_folds_the_records_of_all_streams_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "FOLD_INTERVAL_S", 0.0)
    monkeypatch.setattr(hosting, "POLL_INTERVAL_S", 0.001)
    folded, before = {"a": 0, "b": 0}, {*threading.enumerate()}

    def fold_a() -> None:
        folded["a"] += 1

    def fold_b() -> None:
        folded["b"] += 1
        foldings.remove(fold_b)

    with FoldingThread() as foldings:
        foldings.add(fold_b)
        foldings.add(fold_a)
        eventually(lambda: folded["a"] > 2)
    assert folded["b"] == 1, "it left"
    eventually(lambda: before.issuperset(threading.enumerate()))


def test_a_stream_that_is_not_hosted_folds_its_records_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "FOLD_INTERVAL_S", 0.0)
    folded, before = [], {*threading.enumerate()}
    monkeypatch.setattr(RecordFolding, "fold", lambda _: folded.append(1))
    spec: Any = None
    with RecordFolding(spec, lambda _: None):
        eventually(lambda: len(folded) > 2)
    eventually(lambda: before.issuperset(threading.enumerate()))
