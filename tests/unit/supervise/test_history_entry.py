"""The supervisor's decisions in a stream's history, and their texts."""

from __future__ import annotations

import pytest

from frazil.history.points import EventKind, HistoryEvent
from frazil.supervise.decision import Cause, Decision, DesiredMode, DesiredState, UnreadableState, WriterAction
from frazil.supervise.supervisor import to_history_event

NOW = 1_800_000_000_000


def sentence(decision: Decision, problem: str | None = None) -> str | None:
    found = to_history_event(decision, DesiredState(), problem, now_ms=NOW)
    return found and found.sentence


@pytest.mark.parametrize("action", WriterAction)
def test_supervisor_actions_on_a_writer_are_recorded_with_their_reason(action: WriterAction) -> None:
    carries_out = action not in {WriterAction.KEEP, WriterAction.HOLD, WriterAction.END}
    said = sentence(Decision(action, Cause.CRASHED, "it ended with signal 9"))
    assert (said is not None) is carries_out
    if said is not None:
        assert said.endswith(" (crashed): it ended with signal 9")


def test_a_failed_supervisor_action_is_recorded_as_failed() -> None:
    said = sentence(Decision(WriterAction.START, Cause.FIRST_START, "never launched"), "WriterBusy: it runs")
    assert said == "the writer is started (first start): never launched; the action failed: WriterBusy: it runs"


@pytest.mark.parametrize("action", [WriterAction.STOP, WriterAction.HOLD])
def test_a_pause_is_recorded_at_the_time_of_the_request(action: WriterAction) -> None:
    desired = DesiredState(DesiredMode.PAUSED, 3, reason="Kafka upgrade", by="ana", at_ms=NOW - 5)
    found = to_history_event(Decision(action, Cause.PAUSED, "paused by ana 3 min ago"), desired, None, now_ms=NOW)
    assert found == HistoryEvent(NOW - 5, EventKind.SUPERVISION, "the stream is paused by ana: Kafka upgrade")


def test_an_unreadable_desired_state_holds_the_writer_and_records_no_event() -> None:
    decision = Decision(WriterAction.HOLD, Cause.STATE_UNREADABLE, "unreadable")
    assert to_history_event(decision, UnreadableState("no route"), None, now_ms=NOW) is None
