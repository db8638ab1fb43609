"""Sinks get the events in order; a sink that fails does not affect the others."""

from __future__ import annotations

import logging
import threading

import pytest

from frazil.events import CommitRecordsFolded, Event, EventDispatcher, PhaseBegan
from frazil.host.heartbeat import Phase


def events(*sinks: object) -> EventDispatcher:
    return EventDispatcher("flights", *sinks, clock_ms=lambda: 7)  # type: ignore[arg-type]


def test_every_sink_is_reported_every_event_in_the_order_in_which_they_were_added():
    reported: list[tuple[str, Event]] = []
    happening = events(lambda e: reported.append(("first", e)))
    happening.add(lambda e: reported.append(("second", e)))
    happening.emit(CommitRecordsFolded(1))
    happening.emit(CommitRecordsFolded(2))
    one, two = (Event("flights", 7, CommitRecordsFolded(n)) for n in (1, 2))
    assert reported == [("first", one), ("second", one), ("first", two), ("second", two)]


def test_a_failing_sink_is_logged_once_for_each_event_type_and_other_sinks_get_all_events(
    caplog: pytest.LogCaptureFixture,
):
    reported: list[Event] = []

    def full_disk(_: Event) -> None:
        raise OSError("no space left")

    happening = events(full_disk, reported.append)
    for _ in range(3):
        happening.emit(CommitRecordsFolded(1))
    happening.emit(PhaseBegan(Phase.WAITING))
    assert len(reported) == 4
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [("CommitRecordsFolded" in line, "PhaseBegan" in line) for line in said] == [(True, False), (False, True)]
    assert all("stream flights" in line and "no space left" in line for line in said)


def test_an_event_sink_is_called_by_one_thread_at_a_time_and_may_emit_events():
    inside, peak, seen = 0, 0, 0

    def counts(event: Event) -> None:
        nonlocal inside, peak, seen
        inside += 1
        peak, seen = max(peak, inside), seen + 1
        if isinstance(event.payload, PhaseBegan):
            inside -= 1  # what it emits is reported in the middle of this
            happening.emit(CommitRecordsFolded(1))
            inside += 1
        inside -= 1

    happening = events(counts)
    threads = [
        threading.Thread(target=lambda: [happening.emit(PhaseBegan(Phase.WAITING)) for _ in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (peak, seen) == (1, 1600)
