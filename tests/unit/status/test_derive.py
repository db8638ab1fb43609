"""The word that shows a writer's state on its task, for any observation."""

from __future__ import annotations

import dataclasses

import pytest

from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.launcher import ProcessState
from frazil.host.records import ExitRecord
from frazil.status.derive import derive_from_decision
from frazil.status.state import State, StreamState
from frazil.status.stream import _recovery_notices
from frazil.supervise.decision import (
    DecisionInput,
    RemovedDeclaration,
    SupervisionPolicy,
    SupervisorNotes,
    UnreadableState,
    ValidDeclaration,
)
from frazil.supervise.decision_rules import decide
from frazil.timetext import format_utc
from tests.unit.supervise.test_decision_rules import (
    GIVEN_UP,
    MINUTE,
    NOW,
    PAUSED,
    POLICY,
    alive,
    crashes,
    ended,
    exit_,
    launch,
    make_heartbeat,
    never,
)

STALL = Stall(StallKind.OFFSETS, NOW, "t-0", "t-0 holds the offsets back")

SILENT = Stall(StallKind.KAFKA, NOW, None, "Kafka has not answered since 12:00")

DELETED = Stall(StallKind.TOPIC, NOW, None, "Kafka has no topic t")


def well(**changes: object) -> Heartbeat:
    """The heartbeat of a writer that has committed since its launch."""
    return dataclasses.replace(make_heartbeat(), last_commit_at_ms=NOW - 1_000, **changes)


def shown(observed: DecisionInput, *, problem: str | None = None) -> StreamState:
    """The state on the writer's task."""
    decision = decide(observed, now_ms=NOW)
    return derive_from_decision(StreamState("s"), observed, decision, now_ms=NOW, problem=problem)


@pytest.mark.parametrize(
    ("state", "observed", "words"),
    [
        (State.STARTING, never(), "none has been launched before"),
        (State.STARTING, alive(None, launch=launch(launched_at_ms=NOW - 1_000)), "no heartbeat yet"),
        (State.RUNNING, alive(well()), "lag 10 records"),
        (State.RUNNING, alive(well(), state=ProcessState.FOREGROUND, desired=PAUSED), "in the foreground"),
        (
            State.SLOW,
            alive(well(backpressure_ms=70_000)),
            "70 s|1 min 10 s longer than its commit interval, and 10 rec",
        ),
        (State.STALLED, alive(well(stall=STALL, backpressure_ms=1)), "t-0 holds the offsets back"),
        (State.OUTAGE, alive(well(outage="city.a is missing 3 rows")), "city.a is missing 3 rows"),
        (State.CATALOG_UNAVAILABLE, alive(well(outage="refused", outage_code=21)), "refused"),
        (State.CATALOG_UNAVAILABLE, alive(well(outage="refused", outage_code=21, stall=STALL)), "refused"),
        (State.STORAGE_UNAVAILABLE, alive(well(outage="read-only", outage_code=32)), "read-only"),
        (State.REGISTRY_UNREACHABLE, alive(well(outage="no schema", outage_code=28)), "no schema"),
        (State.TOPIC_MISSING, alive(well(outage="no topic matches", outage_code=24)), "no topic matches"),
        (State.STOPPING, alive(well(), desired=PAUSED), "paused by ana"),
        (State.STOPPING, alive(well(stall=STALL), state=ProcessState.ENDING), "the writer has ended"),
        (State.STOPPING, alive(well(), state=ProcessState.ORPHANED), "its `frazil run` was killed"),
        (State.STOPPING, alive(well(), declared=ValidDeclaration("f2")), "the declaration changed"),
        (State.PAUSED, ended(exit_(0), desired=PAUSED), "frazil resume"),
        (State.STOPPED, ended(exit_(1), desired=UnreadableState("no catalog")), "no catalog"),
        (State.STARTING_AGAIN, ended(*crashes(2)), "2 times in a row"),
        (State.STARTING_AGAIN, ended(exit_(137, committed=True)), "signal 9"),
        (State.CRASH_LOOPING, ended(*crashes(3)), "3 times in a row"),
        (State.CRASH_LOOPING, ended(*crashes(9, code=20)), "9 times in a row"),
        (State.KAFKA_UNREACHABLE, ended(*crashes(1, code=22)), "exit code 22"),
        (State.KAFKA_UNREACHABLE, ended(*crashes(9, code=22)), "9 times in a row"),
        (State.KAFKA_UNREACHABLE, alive(well(stall=SILENT)), "Kafka has not answered"),
        (State.TOPIC_MISSING, alive(well(stall=DELETED)), "Kafka has no topic t"),
        (State.TOPIC_MISSING, ended(dataclasses.replace(exit_(24), committed=True)), "exit code 24"),
        (State.REGISTRY_UNREACHABLE, ended(*crashes(2, code=28)), "2 times in a row"),
        (State.CATALOG_UNAVAILABLE, ended(*crashes(5, code=21)), "5 times in a row"),
        (State.STORAGE_UNAVAILABLE, ended(*crashes(5, code=32)), "5 times in a row"),
        (State.TOPIC_MISSING, ended(*crashes(5, code=24)), "5 times in a row"),
        (State.GIVEN_UP, ended(*crashes(9)), "5 crashes|9 crashes"),
        (State.GIVEN_UP, ended(*crashes(9), notes=GIVEN_UP), "given up: "),
        (State.GIVEN_UP, ended(exit_(11)), "exit code 11"),
        (State.GIVEN_UP, never(declared=UnreadableState("x.yaml: no")), "x.yaml: no"),
        (State.REMOVED, ended(exit_(0), declared=RemovedDeclaration(NOW - MINUTE)), "was removed"),
        (State.REMOVED, ended(exit_(0), declared=RemovedDeclaration(NOW)), "was removed"),
        (
            State.REMOVED,
            alive(well(), state=ProcessState.HOSTED, declared=RemovedDeclaration(NOW - MINUTE)),
            "the application",
        ),
    ],
)
def test_each_observation_maps_to_the_expected_writer_state(state: State, observed: DecisionInput, words: str) -> None:
    found = shown(observed)
    assert found.state is state
    assert any(word in found.sentence for word in words.split("|")), found.sentence


def test_an_outage_lasts_since_the_writer_stalled_although_writers_ended_meanwhile() -> None:
    stalled = exit_(22, ago=MINUTE, committed=True, stalled_since_ms=NOW - 3 * MINUTE)
    for exits in ((stalled,), (stalled, exit_(22)), (stalled, exit_(22, ago=MINUTE // 2), exit_(22))):
        assert shown(ended(*exits)).unreachable_since_ms == NOW - 3 * MINUTE
    other = dataclasses.replace(stalled, code=21)
    assert shown(ended(other, exit_(22))).unreachable_since_ms == exit_(22).ended_at_ms


def test_the_state_counts_ends_by_the_policy_of_the_decision() -> None:
    short = SupervisionPolicy(crash_window_ms=MINUTE // 2)
    stalled = exit_(22, ago=MINUTE, committed=True, stalled_since_ms=NOW - 3 * MINUTE)
    ends = (exit_(22, ago=MINUTE), exit_(22))
    for policy, count, since_ms in ((short, 1, NOW), (POLICY, 2, NOW - 3 * MINUTE)):
        observed = ended(*ends, policy=policy)
        assert ("2 times in a row" in decide(observed, now_ms=NOW).reason) is (count == 2)
        assert shown(observed).crashes == count
        assert shown(ended(stalled, exit_(22), policy=policy)).unreachable_since_ms == since_ms
        runs = dataclasses.replace(alive(well(), policy=policy).writer, exits=ends)
        (notice,) = _recovery_notices(alive(well(), policy=policy, writer=runs), StreamState("s"), now_ms=NOW)
        assert notice.startswith(f"failed {count} time")


def test_a_writer_that_took_over_after_an_outage_runs_before_its_first_commit() -> None:
    outage = dataclasses.replace(exit_(21), committed=True)
    heartbeat = dataclasses.replace(make_heartbeat(), last_commit_at_ms=outage.ended_at_ms - MINUTE)
    for epoch, state in ((None, State.CATALOG_UNAVAILABLE), (2, State.RUNNING)):
        seen = alive(dataclasses.replace(heartbeat, epoch=epoch), launch=launch(launched_at_ms=NOW - 5_000))
        seen = dataclasses.replace(seen, writer=dataclasses.replace(seen.writer, exits=(outage,)))
        assert shown(seen).state is state


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (exit_(137, committed=True), State.STARTING_AGAIN),
        (exit_(137, ago=2 * MINUTE, committed=True), State.STARTING),
        (exit_(0), State.STARTING),
        (dataclasses.replace(exit_(137, committed=True), stopped_for="paused"), State.STARTING),
    ],
)
def test_a_writer_after_a_failure_is_starting_again_until_it_has_taken_over(last: ExitRecord, state: State) -> None:
    for epoch, expected in ((None, state), (2, State.RUNNING)):
        seen = alive(well(epoch=epoch), launch=launch(launched_at_ms=NOW - 5_000))
        seen = dataclasses.replace(seen, writer=dataclasses.replace(seen.writer, exits=(last,)))
        assert shown(seen).state is expected


def test_a_repeatedly_restarted_writer_is_crash_looping_until_it_commits() -> None:
    since = launch(launched_at_ms=NOW - 5_000)
    for committed_ms, state in (
        (None, State.CRASH_LOOPING),
        (NOW - MINUTE, State.CRASH_LOOPING),
        (NOW - 1_000, State.RUNNING),
    ):
        heartbeat = dataclasses.replace(make_heartbeat(), last_commit_at_ms=committed_ms)
        seen = alive(heartbeat, launch=since)
        seen = dataclasses.replace(seen, writer=dataclasses.replace(seen.writer, exits=crashes(4)))
        assert shown(seen).state is state


@pytest.mark.parametrize(("code", "lag", "is_over"), [(22, 7, True), (22, None, False), (21, 0, True), (21, 7, False)])
def test_a_stream_is_running_as_soon_as_the_service_responds_even_without_new_records(
    code: int, lag: int | None, is_over: bool
) -> None:
    heartbeat = dataclasses.replace(make_heartbeat(Phase.WAITING), lag=lag)
    seen = alive(heartbeat, launch=launch(launched_at_ms=NOW - 5_000))
    seen = dataclasses.replace(seen, writer=dataclasses.replace(seen.writer, exits=crashes(5, code=code)))
    assert (shown(seen).state is State.RUNNING) is is_over
    starts = dataclasses.replace(seen.writer, heartbeat=dataclasses.replace(heartbeat, epoch=None))
    assert shown(dataclasses.replace(seen, writer=starts)).state is not State.RUNNING


def test_a_writer_that_cannot_be_launched_is_shown_as_stopped_with_the_reason() -> None:
    found = shown(never(), problem="SpecError: no such connection")
    assert found.state is State.STOPPED
    assert found.sentence == "start failed and will be retried: SpecError: no such connection"


def test_the_old_lag_of_a_writer_whose_planner_is_silent_is_not_reported() -> None:
    seen = alive(dataclasses.replace(well(), phase=Phase.WAITING, backpressure_ms=1_000, lag=None))
    assert "record" not in shown(seen).sentence.partition(";")[0]


@pytest.mark.parametrize(("subject", "reason"), [("L9", "it broke"), ("L8", "exit code 11 (OffsetGap)")])
def test_the_recorded_reason_for_giving_up_is_shown_only_for_the_same_exit(subject: str, reason: str) -> None:
    assert GIVEN_UP.given_up is not None
    notes = SupervisorNotes(given_up=dataclasses.replace(GIVEN_UP.given_up, subject=subject))
    found = shown(ended(exit_(11), notes=notes))
    assert reason in str(found.given_up)
    assert (found.writer.exit_code, found.writer.exit_name) == (11, "OffsetGap")


@pytest.mark.parametrize(("error", "cause"), [("refused\nby b:9092", "refused by b:9092"), (None, "KafkaUnavailable")])
def test_a_writer_that_runs_again_reports_the_last_failure(error: str | None, cause: str) -> None:
    last = exit_(22, ago=MINUTE, launch_id="L8", error=error)
    writer = dataclasses.replace(alive(well()).writer, exits=(exit_(21, ago=2 * MINUTE, launch_id="L7"), last))
    observed = dataclasses.replace(alive(well()), writer=writer)
    (notice,) = _recovery_notices(observed, StreamState("s"), now_ms=NOW)
    assert notice == f"failed 2 times before {format_utc(last.ended_at_ms)}, and runs again: {cause}"


def test_a_desired_state_that_cannot_be_read_hides_no_running_writer() -> None:
    seen = alive(well(), desired=UnreadableState("no catalog"))
    assert shown(seen).state is State.RUNNING
