"""Derives the state of a stream. `derive_from_decision` uses only the supervisor's decision. `refine_state` adds the
table and Kafka, and never contradicts the decision.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from frazil.errors import (
    CircuitOpen,
    CommitUnavailable,
    Failure,
    KafkaUnavailable,
    RegistryUnavailable,
    StorageUnavailable,
    TopicMissing,
    brokers_remedy,
    shorten_error,
)
from frazil.host.heartbeat import Heartbeat, Phase, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, LaunchKind
from frazil.spec.model import StreamSpec
from frazil.spec.references import shown_servers
from frazil.spec.units import format_count
from frazil.status.freshness import freshness_limit_ms, freshness_ms, late_message
from frazil.status.state import Level, State, StreamState, WriterProcess
from frazil.supervise.decision import (
    Cause,
    Decision,
    DecisionInput,
    SupervisionPolicy,
    WriterAction,
    describe_request,
    error_name,
    get_fresh_heartbeat,
    get_known_lag,
)
from frazil.supervise.decision_rules import consecutive_crashes, replaced_failure
from frazil.timetext import format_elapsed

MIN_SLOW_MS = 30_000
MIN_UNREADABLE_MS = 60_000
"""How long reads of a table must fail until the table needs an operator: one read may fail by chance."""


def derive_from_decision(
    stream: StreamState, observed: DecisionInput, decision: Decision, *, now_ms: int, problem: str | None = None
) -> StreamState:
    heartbeat, given_up = observed.heartbeat, observed.notes.given_up
    row = consecutive_crashes(observed, decision, now_ms=now_ms)
    failed = replaced_failure(observed, decision, now_ms=now_ms)
    state, sentence = _state_from_decision(decision, observed, row), decision.reason
    if failed and state in {State.STARTING, State.STOPPED}:
        state = State.STARTING_AGAIN
    if problem is not None:
        state, sentence = State.STOPPED, f"{decision.action} failed and will be retried: {problem}"
    level, rule = _LEVELS_AND_RULES[state]
    is_outage = row and state in _STATES_BY_EXIT_CODE.values()
    reason = given_up.reason if given_up and given_up.subject == decision.subject else decision.reason
    return replace(
        stream,
        state=state,
        level=level,
        sentence=describe_state(state, heartbeat, otherwise=sentence),
        rule=rule,
        writer=replace(describe_writer_process(observed.writer, now_ms=now_ms), supervised=observed.returned_at_ms > 0),
        replaced_exit=describe_exit(_with_end(WriterProcess(), failed)) if failed else "",
        crashes=len(row),
        given_up=shorten_error(reason) if decision.subject else None,
        last_error=_last_error(observed.writer),
        unreachable_since_ms=_failing_since_ms(observed, row) if is_outage else None,
        registry=bool(row) and row[0].code == RegistryUnavailable.exit_code,
        stall=heartbeat.stall if heartbeat and get_fresh_heartbeat(observed.writer, now_ms=now_ms) else None,
    )


def _failing_since_ms(observed: DecisionInput, row: Sequence[ExitRecord]) -> int:
    """Return when the service of the exits in `row`, newest first, began to fail: at best, when a writer stalled."""
    first, previous = row[-1], next(iter(observed.exits[-len(row) - 1 : -len(row)]), None)
    # Writers that cannot take over have no stall. The writer before them may have one.
    if previous and previous.code == first.code and not first.committed and first.stalled_since_ms is None:
        recent = first.ended_at_ms - previous.ended_at_ms <= observed.policy.crash_window_ms
        first = previous if recent else first
    return first.stalled_since_ms or first.ended_at_ms


_STATES_BY_EXIT_CODE: Mapping[int | None, State] = {
    KafkaUnavailable.exit_code: State.KAFKA_UNREACHABLE,
    TopicMissing.exit_code: State.TOPIC_MISSING,
    CommitUnavailable.exit_code: State.CATALOG_UNAVAILABLE,
    StorageUnavailable.exit_code: State.STORAGE_UNAVAILABLE,
    RegistryUnavailable.exit_code: State.REGISTRY_UNREACHABLE,
}
_STATES_BY_STALL = {StallKind.KAFKA: State.KAFKA_UNREACHABLE, StallKind.TOPIC: State.TOPIC_MISSING}
OUTAGES = frozenset({State.OUTAGE, *_STATES_BY_EXIT_CODE.values()})
"""The states of a stream that waits for a service, and continues by itself."""

_LEVELS_AND_RULES: Mapping[State, tuple[Level, str]] = {
    **dict.fromkeys((State.RUNNING, State.ELSEWHERE), (Level.WELL, "")),
    **dict.fromkeys((State.STARTING, State.STOPPING, State.PAUSING, State.RESTARTING), (Level.QUIET, "")),
    **dict.fromkeys((State.PAUSED, State.REMOVED, State.NOT_BEGUN), (Level.QUIET, "")),
    State.UNKNOWN: (Level.UNKNOWN, ""),
    State.SLOW: (Level.TROUBLE, "lag"),
    State.LATE: (Level.TROUBLE, "freshness"),
    State.SILENT: (Level.TROUBLE, "writer"),
    State.STARTING_AGAIN: (Level.TROUBLE, "writer"),
    State.PROBLEM: (Level.TROUBLE, ""),
    State.STALLED: (Level.TROUBLE, "stall"),
    **dict.fromkeys(OUTAGES, (Level.TROUBLE, "stall")),
    State.REGISTRY_UNREACHABLE: (Level.TROUBLE, "registry"),
    **dict.fromkeys((State.STOPPED, State.GIVEN_UP), (Level.BROKEN, "writer")),
    State.CRASH_LOOPING: (Level.BROKEN, "restarts"),
    **dict.fromkeys((State.NO_TABLE, State.ANOTHER_TABLE, State.TABLE_UNREADABLE), (Level.BROKEN, "table")),
}
"""Each state's level, and the alert rule whose runbook entry covers the state."""


def _state_from_decision(decision: Decision, observed: DecisionInput, row: Sequence[ExitRecord]) -> State:
    if decision.action is WriterAction.END or (decision.cause is Cause.REMOVED and not observed.process.is_alive):
        return State.REMOVED
    if observed.process.is_alive and (decision.action is not WriterAction.KEEP or decision.cause is Cause.STOPPING):
        return State.STOPPING
    if decision.cause is Cause.PAUSED:
        return State.PAUSED
    return State.GIVEN_UP if decision.subject else _state_of_expected_writer(decision, observed, row)


def _state_of_expected_writer(decision: Decision, observed: DecisionInput, row: Sequence[ExitRecord]) -> State:
    live = live_state(observed.heartbeat) if observed.process.is_alive else None
    if row and (unreachable := _STATES_BY_EXIT_CODE.get(row[0].code)):
        return live if live in {*OUTAGES, State.STALLED} else unreachable
    if len(row) >= 3:
        return State.CRASH_LOOPING
    return live or (State.STARTING if decision.action is WriterAction.START else State.STOPPED)


def live_state(heartbeat: Heartbeat | None) -> State:
    if heartbeat is None or heartbeat.epoch is None:
        return State.STARTING
    # Unread records are a consequence of the outage.
    if heartbeat.stall is not None and not (heartbeat.outage and heartbeat.stall.kind is StallKind.OFFSETS):
        return _STATES_BY_STALL.get(heartbeat.stall.kind, State.STALLED)
    if heartbeat.outage:
        return _STATES_BY_EXIT_CODE.get(heartbeat.outage_code, State.OUTAGE)
    return State.SLOW if heartbeat.backpressure_ms else State.RUNNING


def describe_state(state: State, heartbeat: Heartbeat | None, *, otherwise: str) -> str:
    if heartbeat is None:
        return otherwise
    if state in {State.STALLED, *_STATES_BY_STALL.values()} and heartbeat.stall is not None:
        return str(heartbeat.stall.failure)
    if state in OUTAGES:
        return heartbeat.outage or otherwise
    if state is State.SLOW:
        lag = get_known_lag(heartbeat)
        waiting = "" if lag is None else f", and {format_count(lag, 'record', 'waits|wait')}"
        return (
            f"a batch takes {format_elapsed(heartbeat.backpressure_ms)} longer than its commit interval{waiting}; "
            f"{otherwise}"
        )
    return otherwise


def describe_writer_process(observation: Observation, *, now_ms: int) -> WriterProcess:
    launch, heartbeat = observation.launch, observation.heartbeat
    if launch is None:
        return WriterProcess(state=observation.process)
    process, epoch = launch.writer or launch.parent, heartbeat.epoch if heartbeat else None
    described = WriterProcess(
        state=observation.process,
        foreground=launch.kind is LaunchKind.FOREGROUND,
        application=launch.application if launch.kind is LaunchKind.HOSTED else None,
        epoch=epoch,
    )
    if observation.process is ProcessState.ENDING:
        return replace(described, pid=launch.parent.pid if launch.parent else None)
    if observation.process.is_alive:
        return replace(
            described,
            pid=process.pid if process else None,
            phase=heartbeat.phase if heartbeat else None,
            batch_records=heartbeat.batch_records if heartbeat else 0,
            heartbeat_at_ms=heartbeat.written_at_ms if heartbeat else None,
            stale=heartbeat is not None and get_fresh_heartbeat(observation, now_ms=now_ms) is None,
        )
    end = next((e for e in reversed(observation.exits) if e.launch_id == launch.id), None)
    if end is not None:
        return _with_end(described, end)
    if heartbeat is None:
        return described
    # The process has not recorded its exit code yet, but is about to.
    code = 0 if heartbeat.phase is Phase.ENDED and heartbeat.cause is None else None
    return replace(described, exit_code=code, ended_at_ms=heartbeat.written_at_ms, error=heartbeat.cause)


def _with_end(process: WriterProcess, end: ExitRecord) -> WriterProcess:
    name = error_name(end.code) or None
    return replace(process, exit_code=end.code, exit_name=name, ended_at_ms=end.ended_at_ms, error=end.cause)


def _last_error(writer: Observation) -> Failure | None:
    """Return the writer's last error. The heartbeat may have it before the exit record does."""
    end: ExitRecord | None = next(reversed(writer.exits), None)
    heartbeat = writer.heartbeat
    error = end.cause if end else None
    if heartbeat and heartbeat.cause and (end is None or heartbeat.written_at_ms > end.ended_at_ms):
        error = heartbeat.cause
    return replace(error, reason=shorten_error(error.reason)) if error else None


def process_problems(stream: StreamState, observed: DecisionInput, *, now_ms: int) -> list[Failure]:
    process, given_up, problems = stream.writer, observed.notes.given_up, list[Failure]()
    if process.stale and process.heartbeat_at_ms is not None:
        silent = format_elapsed(now_ms - process.heartbeat_at_ms)
        alive = f"pid {process.pid} is alive, but its heartbeat is {silent} old, so its state may be outdated"
        problems.append(Failure(alive))
    if process.error and not stream.reset_since_end:
        # A writer that could not report why it ended left the last lines of its log, which may be long.
        reason, about = shorten_error(process.error.reason), f"the last writer ended with {describe_exit(process)}"
        name = "" if process.error.error == process.exit_name else process.error.error
        error = replace(process.error, reason=reason, error=name, about=about)
        if process.exit_code == CircuitOpen.exit_code and stream.accepted_since_end:
            accepted = f"rejected records were accepted {stream.accepted}"
            error = replace(error, reason=accepted, remedy="The next writer stores them as dead letters")
        problems.append(error)
    if stream.state is State.GIVEN_UP and given_up and (not observed.launch or observed.launch.id == given_up.subject):
        when = f"{format_elapsed(now_ms - given_up.at_ms)} ago"
        remedy = f"once the cause is fixed, `frazil resume {stream.name}` starts the writer"
        problems.append(Failure(f"the supervisor gave up {when}; {remedy}"))
    return problems


def refine_state(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> StreamState:
    """Refine the state with the table and Kafka: what stops the stream, what delays it, and whether it runs."""
    refined = (
        _decided_state(stream, now_ms=now_ms)
        or _unreachable_state(stream, spec, now_ms=now_ms)
        or _stopped_state(stream)
        or _state_without_writer(stream, spec, now_ms=now_ms)
        or _delayed_state(stream, spec, now_ms=now_ms)
        or _state_without_problems(stream, spec, now_ms=now_ms)
    )
    state, reason = refined
    failure = reason if isinstance(reason, Failure) else Failure(reason)
    level, rule = _LEVELS_AND_RULES[state]
    if state is State.STOPPED and not stream.writer_failed:
        level = Level.TROUBLE
    if state is State.STARTING and stream.writer.pid is not None:
        level = Level.WELL
    if state is State.STALLED and _may_advance_by_itself(stream, spec, now_ms=now_ms):
        level = Level.QUIET
    if state is State.TABLE_UNREADABLE and now_ms - (stream.unread_since_ms or 0) < MIN_UNREADABLE_MS:
        level = Level.TROUBLE
    if state is State.SLOW and (stream.backpressure_ms or 0) < slow_after_ms(spec):
        level = Level.QUIET
    problems = stream.problems
    if state in OUTAGES:  # the cause first, and once
        others = (problem for problem in problems if stream.stall is None or problem != stream.stall.failure)
        others = (replace(problem, remedy="") if problem.remedy == failure.remedy else problem for problem in others)
        problems = drop_repeats((failure, *others))
    return replace(stream, state=state, level=level, sentence=str(failure), rule=rule, problems=problems)


def drop_repeats(problems: Sequence[Failure]) -> tuple[Failure, ...]:
    """Remove problems whose reason is part of the first problem's reason, which then has their `common` cause."""
    if not problems:
        return ()
    first, *others = problems
    kept = [other for other in others if not other.reason or shorten_error(other.reason) not in first.reason]
    common = next((other.common for other in others if other.common and other not in kept), first.common)
    return (replace(first, common=common), *kept)


def slow_after_ms(spec: StreamSpec) -> int:
    """Return how far a batch may exceed its interval before it needs attention: starts and backlogs are normal."""
    return max(MIN_SLOW_MS, spec.commit.interval // timedelta(milliseconds=2))


def _may_advance_by_itself(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> bool:
    """Whether only the watermark stands still, not yet long enough for an alert: some sources pause regularly."""
    stall, hold_ms = stream.stall, spec.maintenance.alerts.hold // timedelta(milliseconds=1)
    return stall is not None and stall.kind is StallKind.WATERMARK and now_ms - stall.since_ms < hold_ms


_StateAndReason = tuple[State, Failure | str]


def _decided_state(stream: StreamState, *, now_ms: int) -> _StateAndReason | None:
    if stream.writer.state in {ProcessState.ENDING, ProcessState.ORPHANED}:
        return State.STOPPING, stream.sentence
    if stream.state is State.PAUSED:
        return State.PAUSED, f"paused {describe_desired(stream, now_ms=now_ms)}"
    if stream.state is State.GIVEN_UP:
        sentence = "; ".join(map(str, stream.problems[: 2 if stream.writer.error else 1])) or stream.given_up
        return State.GIVEN_UP, sentence or f"Fix the cause, then resume {stream.name}"
    if stream.state is State.CRASH_LOOPING:
        crashes = f"its writer ended {format_count(stream.crashes, 'time')} in a row without a commit"
        return State.CRASH_LOOPING, next(iter(stream.problems), crashes)
    return None


def _unreachable_state(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> _StateAndReason | None:
    if stream.state not in _STATES_BY_EXIT_CODE.values() or stream.unreachable_since_ms is None:
        return None
    # A writer that has just been started has no problem yet; the last one ended with the cause.
    cause = replace(stream.last_error, error="") if stream.last_error else Failure(stream.sentence)
    return _outage(stream, spec, next(iter(stream.problems), cause), now_ms=now_ms)


def _outage(stream: StreamState, spec: StreamSpec, cause: Failure, *, now_ms: int) -> _StateAndReason:
    since_ms = stream.unreachable_since_ms
    period = f" for {format_elapsed(max(now_ms - since_ms, 0))}" if since_ms is not None else ""
    verb = "works" if stream.state is State.STORAGE_UNAVAILABLE else "does"
    outlook = f"nothing is lost, and the writer continues by itself once it {verb}"
    if stream.writer.only_users_start:
        outlook = f"nothing is lost. The writer tries again; if it has ended, `frazil run {stream.name}` starts it"
    match stream.state:
        case State.KAFKA_UNREACHABLE:
            servers = shown_servers(spec, os.environ)
            return stream.state, Failure(f"Kafka at {servers} has not answered{period}; {outlook}", brokers_remedy())
        case State.CATALOG_UNAVAILABLE:
            about = f"the catalog {spec.table.catalog or 'default'!r} has not accepted a commit{period}; {outlook}"
        case State.STORAGE_UNAVAILABLE:
            about = f"the storage of {stream.table} has failed{period}; {outlook}"
        case _:
            retry_text = f"; the writer has been trying again{period}" if period else ""
            return stream.state, replace(cause, reason=f"{cause.reason}{retry_text}")
    return stream.state, replace(cause, about=f"{about}: {cause.about}" if cause.about else about)


def _stopped_state(stream: StreamState) -> _StateAndReason | None:
    writer, first = stream.writer, next(iter(stream.problems), None)
    if stream.table_exists is None and stream.state not in OUTAGES:
        return State.TABLE_UNREADABLE, stream.unread or first or ""
    if stream.missing is not None:
        return State.ANOTHER_TABLE if stream.table_exists else State.NO_TABLE, stream.missing
    if stream.replaced_exit and writer.pid is not None:
        return State.STARTING_AGAIN, f"the last writer ended with {stream.replaced_exit}; the next one is starting"
    if stream.writer_failed:
        ended = first or Failure(f"its last writer ended with {describe_exit(writer)}")
        if stream.replaced_exit:
            return State.STARTING_AGAIN, replace(ended, reason=f"{ended.reason}; its supervisor starts the next one")
        if not writer.error or (writer.exit_code or 0) > 128:  # another error names its own remedy
            ended = replace(ended, reason=f"{ended.reason}; {_start_remedy(stream)}")
        return State.STOPPED, ended
    return None


def _state_without_writer(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> _StateAndReason | None:
    writer = stream.writer
    if writer.pid is not None or not writer.has_ended or stream.commits_elsewhere:
        return None
    since_ms = max(writer.ended_at_ms or 0, stream.desired_at_ms or 0, stream.reset_at_ms or 0)
    # A supervisor starts the next writer within its longest backoff.
    if not writer.foreground and abs(now_ms - since_ms) <= SupervisionPolicy.for_stream(spec).max_backoff_ms:
        return State.STARTING, "its last writer has ended, and the next one has not started yet"
    if stream.reset_since_end:
        return State.STOPPED, describe_reset(stream, now_ms=now_ms)
    end_text = f" {format_elapsed(now_ms - writer.ended_at_ms)} ago" if writer.ended_at_ms is not None else ""
    waiting = f", and {format_count(stream.lag, 'record', 'waits|wait')}" if stream.lag else ""
    remedy = _start_remedy(stream)
    return State.STOPPED, f"its last writer here ended{end_text}, and no other has committed since{waiting}; {remedy}"


def _start_remedy(stream: StreamState) -> str:
    if stream.writer.only_users_start:
        return f"`frazil run {stream.name}` starts the next one"
    return "check that its DAG runs in Airflow"


def _delayed_state(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> _StateAndReason | None:
    if stream.stall is not None and stream.state not in OUTAGES:
        return State.STALLED, stream.stall.failure
    if stream.writer.stale:
        return State.SILENT, next(iter(stream.problems), "its heartbeat is old")
    if stream.state in OUTAGES:
        waits = stream.state is State.TOPIC_MISSING and stream.stall
        return _outage(stream, spec, waits.failure if waits else Failure(stream.sentence), now_ms=now_ms)
    age_ms = freshness_ms(stream, now_ms=now_ms)
    if age_ms is not None and age_ms > freshness_limit_ms(spec) and (stream.lag or stream.writer.pid):
        return State.LATE, late_message(stream, age_ms, now_ms=now_ms)
    if stream.writer.pid is not None and stream.backpressure_ms:
        records = format_count(stream.writer.batch_records, "record")
        note = f", and has read {records} so far" if stream.writer.phase == Phase.STAGING else ""
        return State.SLOW, f"a batch takes {format_elapsed(stream.backpressure_ms)} longer than its interval{note}"
    return (State.PROBLEM, stream.problems[0]) if stream.problems else None


def _state_without_problems(stream: StreamState, spec: StreamSpec, *, now_ms: int) -> _StateAndReason:
    if stream.writer.pid is not None:
        if stream.desired == "paused" and stream.writer.state != ProcessState.FOREGROUND:
            pause_text = f"paused {describe_desired(stream, now_ms=now_ms)}"
            return State.PAUSING, f"its writer stops after the current batch; {pause_text}"
        if stream.state is State.STOPPING:
            return State.RESTARTING, "its writer stops after the current batch, and then the next one starts"
        return State.STARTING if stream.state is State.STARTING else State.RUNNING, ""
    age_ms = None if stream.last_commit_at_ms is None else now_ms - stream.last_commit_at_ms
    if stream.commits_elsewhere and age_ms is not None and age_ms <= freshness_limit_ms(spec):
        return State.ELSEWHERE, ""
    if stream.last_commit_at_ms is None and stream.writer.ended_at_ms is None:
        return State.NOT_BEGUN, f"Unpause the DAG of its writer, or use `frazil run {stream.name}`, to begin"
    return State.STOPPED, "no writer runs on this host, and nothing was committed recently"


def describe_desired(stream: StreamState, *, now_ms: int) -> str:
    return describe_request(stream.desired_by, stream.desired_reason, stream.desired_at_ms, now_ms=now_ms)


def describe_reset(stream: StreamState, *, now_ms: int) -> str:
    ago = format_elapsed(now_ms - (stream.reset_at_ms or now_ms))
    return f"reset {ago} ago; start a writer: `frazil run {stream.name}`"


def describe_exit(writer: WriterProcess) -> str:
    if writer.exit_code is None and writer.error:
        return "no exit code"
    if writer.exit_code is None:
        application_text = f", with the application {writer.application}" if writer.application else ""
        return f"no exit code: it was killed{application_text}, its host went down, or its disk was full"
    if writer.exit_code > 128:
        return f"{writer.exit_code} (signal {writer.exit_code - 128})"
    return f"{writer.exit_code} ({writer.exit_name})" if writer.exit_name else str(writer.exit_code)
