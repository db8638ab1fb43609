"""Every decision: a table of examples, and laws that hold for any observation."""

# ruff: noqa: E501 - a table is read by its rows
from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import NO_RESTART_EXIT_CODES
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import (
    MAX_RECORDED_EXITS,
    ExitRecord,
    GivenUp,
    Launch,
    LaunchKind,
    ProcessMark,
    StopRequest,
    SupervisorNotes,
    append_exit,
    read_exits,
)
from frazil.supervise.decision import (
    ADVANCE_LIMITS_MS,
    Cause,
    Decision,
    DecisionInput,
    DesiredMode,
    DesiredState,
    RemovedDeclaration,
    SupervisionPolicy,
    UnreadableState,
    ValidDeclaration,
    WriterAction,
)
from frazil.supervise.decision_rules import (
    EXTERNAL_CAUSE_EXIT_CODES,
    FIXED_BY_TABLE_CHANGE,
    RESTARTABLE_EXIT_CODES,
    decide,
)

NOW = 1_800_000_000_000
MINUTE = 60_000
DAY = 24 * 60 * MINUTE
POLICY = SupervisionPolicy()


def launch(**changes: Any) -> Launch:
    values: dict[str, Any] = {
        "id": "L9", "kind": LaunchKind.SUPERVISED, "launched_at_ms": NOW - 60 * MINUTE, "spec_fingerprint": "f1",
        "generation": 4, "writer": ProcessMark(4242, 1.0),
    }  # fmt: skip
    return Launch(**{**values, **changes})


def make_heartbeat(
    phase: Phase = Phase.STAGING, *, advanced_ago: int = 0, written_ago: int = 0, lag: int | None = 10
) -> Heartbeat:
    return Heartbeat("s", 4242, "f1", phase, NOW - written_ago, NOW - advanced_ago, 3, 7, lag=lag)


def exit_(code: int | None, *, ago: int = 0, **changes: Any) -> ExitRecord:
    values: dict[str, Any] = {
        "launch_id": "L9", "code": code, "started_at_ms": NOW - ago - 20_000, "ended_at_ms": NOW - ago,
        "spec_fingerprint": "f1", "generation": 4, "committed": False, "error": "Boom: it broke",
    }  # fmt: skip
    return ExitRecord(**{**values, **changes})


def alive(heartbeat: Heartbeat | None = None, **changes: Any) -> DecisionInput:
    state = changes.pop("state", ProcessState.RUNNING)
    writer = Observation(state, changes.pop("launch", launch()), heartbeat, ())
    return DecisionInput(
        **{"writer": writer, "declared": ValidDeclaration("f1"), "desired": DesiredState(generation=4), **changes}
    )


def ended(*exits: ExitRecord, **changes: Any) -> DecisionInput:
    writer = Observation(ProcessState.ENDED, launch(), None, exits)
    return DecisionInput(
        **{"writer": writer, "declared": ValidDeclaration("f1"), "desired": DesiredState(generation=4), **changes}
    )


def never(**changes: Any) -> DecisionInput:
    writer = Observation(ProcessState.NEVER_LAUNCHED, None, None, ())
    return DecisionInput(**{"writer": writer, "declared": ValidDeclaration("f1"), "desired": DesiredState(), **changes})


def crashes(count: int, *, apart: int = MINUTE, code: int = 1, **changes: Any) -> tuple[ExitRecord, ...]:
    """That many ends in a row, the newest (of the latest launch) now."""
    return tuple(
        exit_(code, ago=n * apart, launch_id="L9" if n == 0 else f"L{n}x", **changes) for n in reversed(range(count))
    )


PAUSED = DesiredState(DesiredMode.PAUSED, 5, reason="Kafka upgrade", by="ana", at_ms=NOW - MINUTE)
GIVEN_UP = SupervisorNotes(given_up=GivenUp("L9", NOW - MINUTE, "it broke", "table-1"))


def requested(cause: Cause, *, ago: int) -> SupervisorNotes:
    return SupervisorNotes(stop=StopRequest("L9", NOW - ago, cause, "because"))


TABLE: list[tuple[str, DecisionInput, WriterAction, Cause]] = [
    # while a process lives
    ("advances", alive(make_heartbeat()), WriterAction.KEEP, Cause.ADVANCING),
    ("waits with nothing to do, for a week", alive(make_heartbeat(Phase.WAITING, advanced_ago=10_080 * MINUTE, lag=0)), WriterAction.KEEP, Cause.ADVANCING),
    ("waits, and the lag is unknown", alive(make_heartbeat(Phase.WAITING, advanced_ago=60 * MINUTE, lag=None)), WriterAction.KEEP, Cause.ADVANCING),
    ("waits for a leader, with lag", alive(dataclasses.replace(make_heartbeat(Phase.WAITING, advanced_ago=60 * MINUTE), stall=Stall(StallKind.LEADER, NOW, "t-1", "no leader"))), WriterAction.KEEP, Cause.ADVANCING),
    ("commits for too long while a leader is missing", alive(dataclasses.replace(make_heartbeat(Phase.COMMITTING, advanced_ago=60 * MINUTE), stall=Stall(StallKind.LEADER, NOW, "t-1", "no leader"))), WriterAction.RESTART, Cause.HUNG),
    ("waits with lag for too long", alive(make_heartbeat(Phase.WAITING, advanced_ago=7 * MINUTE)), WriterAction.RESTART, Cause.HUNG),
    ("a long backlog that advances", alive(make_heartbeat(Phase.STAGING, advanced_ago=4 * MINUTE)), WriterAction.KEEP, Cause.ADVANCING),
    ("a batch that stands still", alive(make_heartbeat(Phase.STAGING, advanced_ago=6 * MINUTE)), WriterAction.RESTART, Cause.HUNG),
    ("a slow commit", alive(make_heartbeat(Phase.COMMITTING, advanced_ago=9 * MINUTE)), WriterAction.KEEP, Cause.ADVANCING),
    ("a start that takes its time", alive(None, launch=launch(launched_at_ms=NOW - 4 * MINUTE)), WriterAction.KEEP, Cause.ADVANCING),
    ("a start that never beats", alive(None), WriterAction.RESTART, Cause.HUNG),
    ("an end that does not end", alive(make_heartbeat(Phase.ENDED, advanced_ago=2 * MINUTE)), WriterAction.RESTART, Cause.HUNG),
    ("a stale heartbeat", alive(make_heartbeat(written_ago=61_000)), WriterAction.RESTART, Cause.SILENT),
    ("a stale heartbeat after the machine slept", alive(make_heartbeat(written_ago=8 * 60 * MINUTE, advanced_ago=8 * 60 * MINUTE), watched_since_ms=NOW), WriterAction.KEEP, Cause.ADVANCING),
    ("a heartbeat from the future", alive(make_heartbeat(written_ago=-5 * MINUTE, advanced_ago=-5 * MINUTE)), WriterAction.KEEP, Cause.ADVANCING),
    ("in the foreground, and paused", alive(make_heartbeat(), state=ProcessState.FOREGROUND, desired=PAUSED), WriterAction.KEEP, Cause.FOREGROUND),
    ("ended before its JVM, and hung", alive(make_heartbeat(Phase.STAGING, advanced_ago=6 * MINUTE), state=ProcessState.ENDING), WriterAction.KEEP, Cause.STOPPING),
    ("paused", alive(make_heartbeat(), desired=PAUSED), WriterAction.STOP, Cause.PAUSED),
    ("in a shared application, and paused", alive(make_heartbeat(), state=ProcessState.HOSTED, desired=PAUSED), WriterAction.KEEP, Cause.HOSTED),
    ("moved to a shared application", alive(make_heartbeat(), state=ProcessState.HOSTED, declared=RemovedDeclaration(NOW - 11_000)), WriterAction.END, Cause.HOSTED),
    ("removed", alive(make_heartbeat(), declared=RemovedDeclaration(NOW - 11_000)), WriterAction.STOP, Cause.REMOVED),
    ("missing for a moment", alive(make_heartbeat(), declared=RemovedDeclaration(NOW - 9_000)), WriterAction.KEEP, Cause.ADVANCING),
    ("restart requested", alive(make_heartbeat(), desired=DesiredState(generation=5, restart_generation=5)), WriterAction.RESTART, Cause.REQUESTED),
    ("paused and resumed before anybody looked", alive(make_heartbeat(), desired=DesiredState(generation=6)), WriterAction.KEEP, Cause.ADVANCING),
    ("launched by the restart that was asked for", alive(make_heartbeat(), desired=DesiredState(generation=4, restart_generation=4)), WriterAction.KEEP, Cause.ADVANCING),
    ("the spec changed", alive(make_heartbeat(), declared=ValidDeclaration("f2")), WriterAction.RESTART, Cause.SPEC_CHANGED),
    ("the spec is broken", alive(make_heartbeat(), declared=UnreadableState("x.yaml: no")), WriterAction.KEEP, Cause.ADVANCING),
    ("the catalog is away", alive(make_heartbeat(), desired=UnreadableState("no catalog")), WriterAction.KEEP, Cause.ADVANCING),
    ("asked to stop, the batch advances", alive(make_heartbeat(), notes=requested(Cause.PAUSED, ago=30 * MINUTE), desired=PAUSED), WriterAction.KEEP, Cause.STOPPING),
    ("asked to stop, the batch stands still", alive(make_heartbeat(advanced_ago=6 * MINUTE), notes=requested(Cause.PAUSED, ago=6 * MINUTE), desired=PAUSED), WriterAction.KILL, Cause.STOPPING),
    ("asked to stop while it waits", alive(make_heartbeat(Phase.WAITING, advanced_ago=60 * MINUTE, lag=0), notes=requested(Cause.PAUSED, ago=MINUTE)), WriterAction.KEEP, Cause.STOPPING),
    ("asked to stop, and silent", alive(make_heartbeat(written_ago=61_000), notes=requested(Cause.PAUSED, ago=61_000)), WriterAction.KILL, Cause.STOPPING),
    ("hung, asked to stop", alive(make_heartbeat(advanced_ago=6 * MINUTE), notes=requested(Cause.HUNG, ago=29_000)), WriterAction.KEEP, Cause.STOPPING),
    ("hung, and does not stop", alive(make_heartbeat(advanced_ago=6 * MINUTE), notes=requested(Cause.HUNG, ago=31_000)), WriterAction.KILL, Cause.STOPPING),
    ("the stop was asked of an earlier launch", alive(make_heartbeat(), notes=SupervisorNotes(stop=StopRequest("L8", NOW, Cause.PAUSED, ""))), WriterAction.KEEP, Cause.ADVANCING),
    # while none lives
    ("never launched", never(), WriterAction.START, Cause.FIRST_START),
    ("never launched, paused", never(desired=PAUSED), WriterAction.HOLD, Cause.PAUSED),
    ("never launched, removed", never(declared=RemovedDeclaration(NOW - MINUTE)), WriterAction.END, Cause.REMOVED),
    ("never launched, missing for a moment", never(declared=RemovedDeclaration(NOW - 1)), WriterAction.HOLD, Cause.REMOVED),
    ("never launched, the spec is broken", never(declared=UnreadableState("x.yaml: no")), WriterAction.GIVE_UP, Cause.SPEC_UNREADABLE),
    ("the spec is broken still", never(declared=UnreadableState("x.yaml: no"), notes=SupervisorNotes(given_up=GivenUp("x.yaml: no", 0, ""))), WriterAction.HOLD, Cause.SPEC_UNREADABLE),
    ("the spec is broken otherwise", never(declared=UnreadableState("x.yaml: yes"), notes=SupervisorNotes(given_up=GivenUp("x.yaml: no", 0, ""))), WriterAction.GIVE_UP, Cause.SPEC_UNREADABLE),
    ("the catalog is away", never(desired=UnreadableState("no catalog")), WriterAction.HOLD, Cause.STATE_UNREADABLE),
    ("the foreground writer ended", ended(), WriterAction.START, Cause.FIRST_START),
    ("stopped for a changed spec", ended(exit_(0, stopped_for="spec changed")), WriterAction.START, Cause.STOPPED),
    ("stopped by force for a restart", ended(exit_(137, stopped_for="requested")), WriterAction.START, Cause.STOPPED),
    ("paused, and ended", ended(exit_(0, stopped_for="paused"), desired=PAUSED), WriterAction.HOLD, Cause.PAUSED),
    ("resumed", ended(exit_(0, stopped_for="paused"), desired=DesiredState(generation=6)), WriterAction.START, Cause.REQUESTED),
    ("a first crash", ended(exit_(1, ago=1_000)), WriterAction.START, Cause.CRASHED),
    ("a first crash, this moment", ended(exit_(1)), WriterAction.HOLD, Cause.CRASHED),
    ("a crash that nobody saw", ended(exit_(None, ago=1_000)), WriterAction.START, Cause.CRASHED),
    ("killed", ended(exit_(137, ago=1_000, committed=True)), WriterAction.START, Cause.CRASHED),
    ("hung, and killed", ended(exit_(137, ago=1_000, stopped_for="hung")), WriterAction.START, Cause.CRASHED),
    ("ended by itself", ended(exit_(0, ago=1_000)), WriterAction.START, Cause.ENDED),
    ("four crashes", ended(*crashes(4)), WriterAction.HOLD, Cause.CRASHED),
    ("five crashes", ended(*crashes(5)), WriterAction.GIVE_UP, Cause.CRASH_LOOP),
    ("the foreground writer crashed", ended(exit_(1, spec_fingerprint="")), WriterAction.START, Cause.FIRST_START),
    ("four crashes, one in the foreground, a fifth", ended(*crashes(5)[:4], exit_(11, launch_id="mine", spec_fingerprint="", generation=0), *crashes(5)[4:]), WriterAction.GIVE_UP, Cause.CRASH_LOOP),
    ("five crashes, said before", ended(*crashes(5), notes=GIVEN_UP), WriterAction.HOLD, Cause.CRASH_LOOP),
    ("five crashes, the oldest long ago", ended(*crashes(5, apart=20 * MINUTE)), WriterAction.HOLD, Cause.CRASHED),
    ("five crashes with a commit each", ended(*crashes(5, committed=True)), WriterAction.HOLD, Cause.CRASHED),
    ("five hung writers", ended(*crashes(5, code=137, stopped_for="hung")), WriterAction.GIVE_UP, Cause.CRASH_LOOP),
    ("five crashes, then resumed", ended(*crashes(5), notes=GIVEN_UP, desired=DesiredState(generation=5)), WriterAction.START, Cause.REQUESTED),
    ("five crashes, then another spec", ended(*crashes(5), notes=GIVEN_UP, declared=ValidDeclaration("f2")), WriterAction.START, Cause.REQUESTED),
    ("brokers away for hours", ended(*crashes(40, code=22)), WriterAction.HOLD, Cause.UNAVAILABLE),
    ("brokers away, the minute is over", ended(exit_(22, ago=MINUTE)), WriterAction.START, Cause.UNAVAILABLE),
    ("the clock was set back", ended(exit_(1, ago=-60 * MINUTE)), WriterAction.START, Cause.CRASHED),
    ("offsets are gone", ended(exit_(11)), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
    ("offsets are gone, said before", ended(exit_(11), notes=GIVEN_UP, table_fingerprint="table-1"), WriterAction.HOLD, Cause.NEEDS_ATTENTION),
    ("offsets are gone, frazil reset was run", ended(exit_(11), notes=GIVEN_UP, table_fingerprint="table-2"), WriterAction.START, Cause.REQUESTED),
    ("offsets are gone, the table cannot be read", ended(exit_(11), notes=GIVEN_UP), WriterAction.HOLD, Cause.NEEDS_ATTENTION),
    ("offsets are gone, the run was cleared", ended(exit_(11), notes=SupervisorNotes(cleared="L9")), WriterAction.START, Cause.REQUESTED),
    ("fenced, and the other one commits", ended(exit_(13), notes=GIVEN_UP, table_fingerprint="table-2"), WriterAction.HOLD, Cause.NEEDS_ATTENTION),
    ("fenced three days ago, and supervision is back", ended(exit_(13, ago=3 * DAY, committed=True), away_since_ms=NOW - 4 * DAY, returned_at_ms=NOW), WriterAction.START, Cause.RETURNED),
    ("fenced under our eyes, given up, and back after days elsewhere", ended(exit_(13, ago=3 * DAY), notes=GIVEN_UP, away_since_ms=NOW - 3 * DAY + MINUTE, returned_at_ms=NOW), WriterAction.START, Cause.RETURNED),
    ("fenced under our eyes, and Airflow was restarted", ended(exit_(13, ago=10 * MINUTE), notes=GIVEN_UP, away_since_ms=NOW - 4 * MINUTE, returned_at_ms=NOW), WriterAction.HOLD, Cause.NEEDS_ATTENTION),
    ("fenced again since supervision is back", ended(exit_(13, ago=MINUTE), away_since_ms=NOW - 3 * DAY, returned_at_ms=NOW - 2 * MINUTE), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
    ("refused three days ago, and supervision is back", ended(exit_(16, ago=3 * DAY), away_since_ms=NOW - 3 * DAY, returned_at_ms=NOW), WriterAction.START, Cause.RETURNED),
    ("gone offsets of three days ago stay a person's", ended(exit_(11, ago=3 * DAY), away_since_ms=NOW - 3 * DAY, returned_at_ms=NOW), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
    ("refused after a commit, this moment", ended(exit_(16, committed=True)), WriterAction.HOLD, Cause.DENIED),
    ("refused after a commit, a minute ago", ended(exit_(16, committed=True, ago=MINUTE)), WriterAction.START, Cause.DENIED),
    ("refused four times since the last commit", ended(exit_(0, ago=DAY, launch_id="L8x", committed=True), *crashes(4, code=16)), WriterAction.HOLD, Cause.DENIED),
    ("refused, and committed with other credentials only", ended(exit_(0, ago=DAY, launch_id="L8x", committed=True, generation=3), exit_(16)), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
    ("refused from the first start on", ended(exit_(16)), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
    ("asked to stop, but fenced meanwhile", ended(exit_(13, stopped_for="requested")), WriterAction.GIVE_UP, Cause.NEEDS_ATTENTION),
]  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "action", "cause"), [row[1:] for row in TABLE], ids=[row[0].replace(" ", "-") for row in TABLE]
)
def test_the_supervisor_decides_as_operators_expect(
    observed: DecisionInput, action: WriterAction, cause: Cause
) -> None:
    decision = decide(observed, now_ms=NOW)
    assert (decision.action, decision.cause) == (action, cause), decision.reason


def test_every_cause_and_every_action_is_in_the_decision_table() -> None:
    assert {row[2] for row in TABLE} == set(WriterAction)
    assert {row[3] for row in TABLE} == set(Cause)


@pytest.mark.parametrize("code", sorted(NO_RESTART_EXIT_CODES))
def test_giving_up_names_the_code_the_error_and_the_last_words(code: int) -> None:
    decision = decide(ended(exit_(code)), now_ms=NOW)
    assert decision.action is WriterAction.GIVE_UP
    assert re.search(rf"exit code {code} \([A-Z]\w+\).*Boom: it broke", decision.reason)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_writer_is_hung_once_a_phase_exceeds_its_limit_by_any_amount(phase: Phase) -> None:
    limit = ADVANCE_LIMITS_MS[phase]
    assert decide(alive(make_heartbeat(phase, advanced_ago=limit)), now_ms=NOW).action is WriterAction.KEEP
    late = decide(alive(make_heartbeat(phase, advanced_ago=limit + 1)), now_ms=NOW)
    assert late.cause is Cause.HUNG


def test_the_waits_between_crashes_double_and_the_first_relaunch_is_within_ten_seconds() -> None:
    waits = [decide(ended(*crashes(n)), now_ms=NOW).until_ms or 0 for n in range(1, 5)]
    assert [wait - NOW for wait in waits] == [1_000, 2_000, 4_000, 8_000]
    assert POLICY.backoff_ms(1_000) == POLICY.max_backoff_ms == MINUTE


def test_a_commit_between_crashes_resets_the_crash_count() -> None:
    row = (*crashes(4)[:-1], exit_(1, ago=500, launch_id="L10", committed=True), exit_(1))
    decision = decide(ended(*row), now_ms=NOW)
    assert (decision.action, decision.until_ms) == (WriterAction.HOLD, NOW + 1_000)


# The laws, over everything that can be observed.

generations = st.integers(0, 6)
fingerprints = st.sampled_from(["f1", "f2"])
moments = st.integers(NOW - 120 * MINUTE, NOW + MINUTE)
launches = st.builds(
    launch, launched_at_ms=moments, spec_fingerprint=fingerprints, generation=generations,
    kind=st.sampled_from(LaunchKind), writer=st.none() | st.just(ProcessMark(4242, 1.0)),
)  # fmt: skip
heartbeats = st.none() | st.builds(
    lambda phase, written, advanced, lag: Heartbeat("s", 4242, "f1", phase, written, advanced, 1, 2, lag=lag),
    st.sampled_from(Phase), moments, moments, st.none() | st.integers(0, 5),
)  # fmt: skip
codes = st.none() | st.sampled_from([0, 1, 2, 137, 143, *NO_RESTART_EXIT_CODES, *RESTARTABLE_EXIT_CODES])
exits = st.builds(
    ExitRecord, launch_id=st.just("L9"), code=codes, started_at_ms=moments, ended_at_ms=moments,
    spec_fingerprint=fingerprints, generation=generations, committed=st.booleans(),
    error=st.none() | st.just("Boom: it broke"), stopped_for=st.none() | st.sampled_from([c.value for c in Cause]),
)  # fmt: skip
desires = st.builds(
    DesiredState, st.sampled_from(DesiredMode), generations, generations, st.just("why"), st.just("ana"), moments
) | st.builds(UnreadableState, st.just("away"))
declarations = (
    st.builds(ValidDeclaration, fingerprints)
    | st.just(UnreadableState("broken"))
    | st.builds(RemovedDeclaration, st.integers(NOW - MINUTE, NOW))
)
notes = st.builds(
    SupervisorNotes,
    stop=st.none() | st.builds(StopRequest, st.sampled_from(["L8", "L9"]), moments, st.sampled_from([c.value for c in Cause]), st.just("why")),
    given_up=st.none() | st.builds(GivenUp, st.sampled_from(["L9", "broken", "L8"]), moments, st.just("why"), st.sampled_from([None, "t1", "t2"])),
    cleared=st.sampled_from([None, "L8", "L9"]),
)  # fmt: skip


@st.composite
def observations(draw: st.DrawFn) -> DecisionInput:
    state = draw(st.sampled_from(ProcessState))
    latest = None if state is ProcessState.NEVER_LAUNCHED else draw(launches)
    past = draw(st.lists(exits.map(lambda e: dataclasses.replace(e, launch_id="L1x")), max_size=6))
    last = [draw(exits)] if state is ProcessState.ENDED and draw(st.booleans()) else []
    return DecisionInput(
        writer=Observation(state, latest, draw(heartbeats) if latest else None, (*past, *last)),
        declared=draw(declarations),
        desired=draw(desires),
        notes=draw(notes),
        table_fingerprint=draw(st.sampled_from([None, "t1", "t2"])),
        watched_since_ms=draw(st.sampled_from([0, NOW])),
        away_since_ms=draw(st.sampled_from([0, NOW - 130 * MINUTE, NOW - 60 * MINUTE])),
        returned_at_ms=draw(st.sampled_from([0, NOW - 30 * MINUTE, NOW])),
    )


def decided(observed: DecisionInput) -> Decision:
    return decide(observed, now_ms=NOW)


@given(observations())
def test_the_supervisor_starts_nothing_while_a_process_lives_and_stops_nothing_while_none_does(
    observed: DecisionInput,
) -> None:
    living = {WriterAction.KEEP, WriterAction.STOP, WriterAction.RESTART, WriterAction.KILL}
    if observed.process is ProcessState.HOSTED:  # its application continues without this supervisor
        living = {WriterAction.KEEP, WriterAction.END}
    assert (decided(observed).action in living) is observed.process.is_alive


@given(observations())
def test_every_reason_names_a_number(observed: DecisionInput) -> None:
    decision = decided(observed)
    assert re.search(r"\d|no writer runs", decision.reason), decision
    assert decision.reason.strip() == decision.reason


@given(observations())
def test_a_paused_stream_is_never_started(observed: DecisionInput) -> None:
    paused = dataclasses.replace(observed, desired=PAUSED)
    assert decided(paused).action not in {WriterAction.START, WriterAction.RESTART} or paused.process.is_alive
    assert decided(paused).action is not WriterAction.START


@given(observations())
def test_after_an_exit_that_needs_attention_nothing_starts_until_a_user_acts(observed: DecisionInput) -> None:
    last = observed.exit
    if last is None or last.code not in NO_RESTART_EXIT_CODES:
        return
    if last.code in EXTERNAL_CAUSE_EXIT_CODES:  # under our eyes, and of credentials that never worked
        exits = tuple(dataclasses.replace(e, committed=False) for e in observed.writer.exits)
        writer = dataclasses.replace(observed.writer, exits=exits)
        observed = dataclasses.replace(observed, writer=writer, returned_at_ms=last.ended_at_ms)
    unchanged = dataclasses.replace(
        observed,
        declared=ValidDeclaration(last.spec_fingerprint),
        desired=DesiredState(generation=last.generation),
        notes=dataclasses.replace(observed.notes, cleared=None),
        table_fingerprint=None,
    )
    assert decided(unchanged).action in {WriterAction.GIVE_UP, WriterAction.HOLD}
    resumed = dataclasses.replace(unchanged, desired=DesiredState(generation=last.generation + 1))
    assert decided(resumed).action is WriterAction.START


@given(observations())
def test_giving_up_is_reported_once(observed: DecisionInput) -> None:
    first = decided(observed)
    if first.action is not WriterAction.GIVE_UP:
        return
    reported = dataclasses.replace(observed.notes, given_up=GivenUp(first.subject, NOW, first.reason, None))
    again = decided(dataclasses.replace(observed, notes=reported))
    assert (again.action, again.cause, again.until_ms) == (WriterAction.HOLD, first.cause, None)


@given(observations())
def test_the_foreground_writer_is_left_alone(observed: DecisionInput) -> None:
    if observed.process is ProcessState.FOREGROUND:
        assert decided(observed).action is WriterAction.KEEP


@given(observations())
def test_a_temporary_hold_ends_in_the_future_and_within_its_limit(observed: DecisionInput) -> None:
    decision = decided(observed)
    max_ms = POLICY.max_denied_backoff_ms if decision.cause is Cause.DENIED else MINUTE
    assert decision.until_ms is None or NOW < decision.until_ms <= NOW + max_ms


@given(observations())
def test_an_external_cause_that_may_be_over_is_retried_once_after_the_supervisor_returns(
    observed: DecisionInput,
) -> None:
    decision = decided(observed)
    last = observed.exit
    if decision.cause is Cause.RETURNED:
        assert last is not None
        assert last.code in EXTERNAL_CAUSE_EXIT_CODES
        seen = dataclasses.replace(observed, returned_at_ms=last.ended_at_ms)
        assert decided(seen).cause is not Cause.RETURNED


@pytest.mark.parametrize("code", sorted(EXTERNAL_CAUSE_EXIT_CODES))
@pytest.mark.parametrize("ended_ago", [0, 1, MINUTE, 10 * MINUTE, DAY])
@pytest.mark.parametrize("away_ago", [None, 0, MINUTE, 4 * MINUTE, 6 * MINUTE, 2 * DAY])
@pytest.mark.parametrize("returned_ago", [0, MINUTE, 3 * DAY])
@pytest.mark.parametrize("noted", [SupervisorNotes(), GIVEN_UP])
def test_an_exit_with_a_temporary_cause_restarts_only_if_its_supervisor_was_away_or_elsewhere(
    code: int, ended_ago: int, away_ago: int | None, returned_ago: int, noted: SupervisorNotes
) -> None:
    away_since_ms = 0 if away_ago is None else NOW - away_ago
    observed = ended(
        exit_(code, ago=ended_ago), notes=noted, away_since_ms=away_since_ms, returned_at_ms=NOW - returned_ago
    )
    unseen = away_since_ms < NOW - ended_ago < NOW - returned_ago and noted is not GIVEN_UP
    elsewhere = NOW - ended_ago < NOW - returned_ago and NOW - returned_ago - away_since_ms > POLICY.moved_ms
    expected = (
        WriterAction.START if unseen or elsewhere else WriterAction.HOLD if noted is GIVEN_UP else WriterAction.GIVE_UP
    )
    assert decided(observed).action is expected


def test_the_waits_between_refusals_double_up_to_a_quarter_of_an_hour() -> None:
    before = exit_(0, ago=DAY, launch_id="L8x", committed=True)
    waits = [decided(ended(before, *crashes(n, code=16))).until_ms or 0 for n in range(1, 8)]
    assert [(wait - NOW) // MINUTE for wait in waits] == [1, 2, 4, 8, 15, 15, 15]


@given(observations())
def test_an_unreadable_declaration_or_desired_state_never_affects_a_healthy_writer(observed: DecisionInput) -> None:
    healthy = dataclasses.replace(
        observed,
        declared=UnreadableState("broken"),
        desired=UnreadableState("away"),
        notes=SupervisorNotes(),
        writer=Observation(ProcessState.RUNNING, launch(), make_heartbeat(), ()),
    )
    assert decided(healthy).action is WriterAction.KEEP


def test_restartable_and_final_exit_codes_do_not_overlap() -> None:
    assert not NO_RESTART_EXIT_CODES & RESTARTABLE_EXIT_CODES
    assert FIXED_BY_TABLE_CHANGE < NO_RESTART_EXIT_CODES


def test_a_stream_whose_access_worked_once_is_retried_after_any_number_of_access_errors(tmp_path: Path) -> None:
    append_exit(tmp_path, exit_(1, ago=9 * DAY, launch_id="worked", committed=True))
    for n in range(MAX_RECORDED_EXITS + 10):
        append_exit(
            tmp_path, exit_(16, ago=DAY - n * 15 * MINUTE, launch_id="L9" if n == MAX_RECORDED_EXITS + 9 else f"R{n}")
        )
    exits = read_exits(tmp_path)
    assert len(exits) == MAX_RECORDED_EXITS + 1
    found = decide(ended(*exits), now_ms=NOW)
    assert (found.cause, found.action in {WriterAction.START, WriterAction.HOLD}) == (Cause.DENIED, True), found.reason
