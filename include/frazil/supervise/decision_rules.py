"""Decides the next action for one writer. The decision is a pure function of the observation, its policy and the time.

The first rule that matches decides. While a writer process is alive:
  1. it or its parent was killed, or has ended: keep.
  2. it runs in the foreground: keep; a shared application runs it: keep, or end if the stream was removed;
  3. a requested stop is in progress: keep, or kill if the writer makes no progress;
  4. the stream was removed or paused: stop;  a restart was requested or the spec changed: restart;
  5. the writer is hung (without progress or without heartbeats): restart;  otherwise keep.
While no writer process is alive:
  6. removed: end;  paused: hold;  spec unreadable: give up;  desired state unreadable: hold;
  7. never launched, or the last writer ran in the foreground: start;
  8. a user changed the spec, desired state or table after the last writer ended, or requested its end: start;
  9. it was fenced or denied access before supervision returned to this host: start, because the cause may be gone;
 10. it was denied access that it once had: restart after a long backoff;
 11. its exit code means that a restart would fail, too, or it crashed too often without a commit: give up;
 12. otherwise restart after the backoff.

The supervisor gives up only once for each cause, and then holds. Otherwise Airflow, which starts the next run
immediately, would loop over failing runs. Two start decisions never lead to two running writers, because of the
writer's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from frazil.errors import (
    NO_RESTART_EXIT_CODES,
    AccessDenied,
    AdoptionRequired,
    CircuitOpen,
    CommitUnavailable,
    Fenced,
    KafkaUnavailable,
    MarkerUnreadable,
    OffsetGap,
    RolledBack,
    SchemaIncompatible,
    StorageUnavailable,
    TopicRecreated,
    find_subclasses,
)
from frazil.host.heartbeat import Heartbeat
from frazil.host.launcher import ProcessState
from frazil.host.processes import GROUP_END_TIMEOUT_S
from frazil.host.records import ExitRecord, Launch
from frazil.spec.units import format_count
from frazil.supervise.decision import (
    Cause,
    Decision,
    DecisionInput,
    DesiredMode,
    DesiredState,
    RemovedDeclaration,
    UnreadableState,
    ValidDeclaration,
    WriterAction,
    decide_hung,
    decide_stopping,
    describe_progress,
    describe_request,
    error_name,
)
from frazil.timetext import format_elapsed

FIXED_BY_TABLE_CHANGE = frozenset(
    error.exit_code
    for error in (
        *(OffsetGap, RolledBack, TopicRecreated, SchemaIncompatible),
        *(AdoptionRequired, MarkerUnreadable, CircuitOpen),
    )
)
"""Exit codes of errors that an operator fixes by changing the table."""

EXTERNAL_CAUSE_EXIT_CODES = frozenset({Fenced.exit_code, AccessDenied.exit_code})
"""Exit codes of errors whose cause is outside this host and may be gone: another writer, or permissions."""

KAFKA_EXIT_CODES = frozenset(kind.exit_code for kind in find_subclasses(KafkaUnavailable))
"""Exit codes of a writer that could not reach Kafka, or whose topic did not exist."""
RESTARTABLE_EXIT_CODES = frozenset(kind.exit_code for kind in find_subclasses() if kind.restartable)
"""Exit codes of a writer that could not reach a service, which is restarted without limit."""
FAILURE_CAUSES = frozenset(
    {Cause.CRASHED, Cause.ENDED, Cause.UNAVAILABLE, Cause.DENIED, Cause.CRASH_LOOP, Cause.NEEDS_ATTENTION}
)
"""Causes of decisions after a writer ended without a request."""


def decide(observed: DecisionInput, *, now_ms: int) -> Decision:
    launch = observed.launch
    if observed.process.is_alive and launch is not None:
        return _decide_running(observed, launch, now_ms=now_ms)
    return _hold_or_end(observed, now_ms=now_ms) or _decide_ended(observed, now_ms=now_ms)


def _decide_running(observed: DecisionInput, launch: Launch, *, now_ms: int) -> Decision:
    status = describe_progress(observed.heartbeat, launch, now_ms=now_ms)
    if observed.process in {ProcessState.ENDING, ProcessState.ORPHANED}:
        limit = f"the writer has ended, and its JVM and Python workers have up to {GROUP_END_TIMEOUT_S:.0f} s to end"
        orphaned = f"the writer ends after its current batch, because its `frazil run` was killed: {status}"
        reason = limit if observed.process is ProcessState.ENDING else orphaned
        return Decision(WriterAction.KEEP, Cause.STOPPING, reason)
    if observed.process is ProcessState.FOREGROUND:
        return Decision(WriterAction.KEEP, Cause.FOREGROUND, f"a user runs the writer in the foreground: {status}")
    if observed.process is ProcessState.HOSTED:
        declared, sentence = observed.declared, f"the application {launch.application} runs the writer"
        if isinstance(declared, RemovedDeclaration) and now_ms >= declared.since_ms + observed.policy.removal_grace_ms:
            return Decision(WriterAction.END, Cause.HOSTED, f"{sentence} and supervises it: {status}")
        return Decision(WriterAction.KEEP, Cause.HOSTED, f"{sentence}: {status}")
    if (stop := observed.stop_request) is not None:
        return decide_stopping(observed, launch, stop, now_ms=now_ms)
    return (
        _stop_or_restart(observed, launch, now_ms=now_ms)
        or decide_hung(observed, launch, now_ms=now_ms)
        or Decision(WriterAction.KEEP, Cause.ADVANCING, status)
    )


def _stop_or_restart(observed: DecisionInput, launch: Launch, *, now_ms: int) -> Decision | None:
    declared, desired = observed.declared, observed.desired
    if isinstance(declared, RemovedDeclaration) and now_ms >= declared.since_ms + observed.policy.removal_grace_ms:
        reason = f"the stream's declaration was removed {format_elapsed(now_ms - declared.since_ms)} ago"
        return Decision(WriterAction.STOP, Cause.REMOVED, reason)
    if isinstance(desired, DesiredState):
        if desired.mode is DesiredMode.PAUSED:
            return Decision(WriterAction.STOP, Cause.PAUSED, _request_text("paused", desired, now_ms=now_ms))
        if desired.restart_generation > launch.generation:
            requested = _request_text("restart requested", desired, now_ms=now_ms)
            return Decision(WriterAction.RESTART, Cause.REQUESTED, requested)
    if isinstance(declared, ValidDeclaration) and declared.fingerprint != launch.spec_fingerprint:
        reason = f"the declaration changed (the writer has {launch.spec_fingerprint}, the file {declared.fingerprint})"
        return Decision(WriterAction.RESTART, Cause.SPEC_CHANGED, reason)
    return None


def _hold_or_end(observed: DecisionInput, *, now_ms: int) -> Decision | None:
    """Return the decision if no writer should run; None if one should run."""
    declared, desired = observed.declared, observed.desired
    if isinstance(declared, RemovedDeclaration):
        ago = format_elapsed(now_ms - declared.since_ms)
        reason = f"the stream's declaration was removed {ago} ago, and no writer is running"
        grace_end_ms = declared.since_ms + observed.policy.removal_grace_ms
        if now_ms < grace_end_ms:
            return Decision(WriterAction.HOLD, Cause.REMOVED, reason, grace_end_ms)
        return Decision(WriterAction.END, Cause.REMOVED, reason)
    if isinstance(desired, DesiredState) and desired.mode is DesiredMode.PAUSED:
        reason = _request_text("paused", desired, now_ms=now_ms) + "; start the writer with `frazil resume`"
        return Decision(WriterAction.HOLD, Cause.PAUSED, reason)
    if isinstance(declared, UnreadableState):
        reason = f"no writer runs, and none can start until the declaration is fixed: {declared.problem}"
        return _give_up_or_hold(observed, Cause.SPEC_UNREADABLE, reason, subject=declared.problem)
    if isinstance(desired, UnreadableState):
        reason = f"no writer runs, and none can start while the desired state is unreadable: {desired.problem}"
        return Decision(WriterAction.HOLD, Cause.STATE_UNREADABLE, reason)
    return None


def _decide_ended(observed: DecisionInput, *, now_ms: int) -> Decision:
    exit_ = observed.exit
    if exit_ is None:
        last_text = "the foreground writer ended" if observed.launch else "none has been launched before"
        return Decision(WriterAction.START, Cause.FIRST_START, f"no writer runs; {last_text}")
    if (change := _describe_change_since(observed, exit_, now_ms=now_ms)) is not None:
        reason = f"{change}; the last writer ended with {_code_text(exit_)}"
        return Decision(WriterAction.START, Cause.REQUESTED, reason)
    if _was_requested(exit_) and exit_.code not in NO_RESTART_EXIT_CODES:
        when = format_elapsed(now_ms - exit_.ended_at_ms)
        reason = f"the writer ended {when} ago with {_code_text(exit_)} on request ({exit_.stopped_for}), and restarts"
        return Decision(WriterAction.START, Cause.STOPPED, reason)
    if (retry := _retry_external_cause(observed, exit_, now_ms=now_ms)) is not None:
        return retry
    if exit_.code in NO_RESTART_EXIT_CODES:
        name = error_name(exit_.code)
        reason = (
            f"the writer ended {format_elapsed(now_ms - exit_.ended_at_ms)} ago with exit code {exit_.code} ({name}); "
            f"a restart would fail in the same way: {exit_.cause or 'no error message'}"
        )
        return _give_up_or_hold(observed, Cause.NEEDS_ATTENTION, reason, subject=exit_.launch_id)
    return _restart_or_give_up(observed, exit_, now_ms=now_ms)


def _restart_or_give_up(observed: DecisionInput, exit_: ExitRecord, *, now_ms: int) -> Decision:
    exits = exits_without_commit(observed.exits, window_ms=observed.policy.crash_window_ms)
    crashes = [e for e in exits if e.code not in RESTARTABLE_EXIT_CODES]
    message = f": {exit_.cause}" if exit_.cause else ""
    if len(crashes) >= observed.policy.crash_limit:
        count = format_count(len(crashes), "crash")
        took = format_elapsed(crashes[0].ended_at_ms - crashes[-1].started_at_ms)
        reason = f"{count} within {took} without a commit, the last with {_code_text(exit_)}{message}"
        return _give_up_or_hold(observed, Cause.CRASH_LOOP, reason, subject=exit_.launch_id)
    cause = Cause.ENDED if exit_.code == 0 else Cause.CRASHED
    cause = Cause.UNAVAILABLE if exit_.code in RESTARTABLE_EXIT_CODES else cause
    lived = format_elapsed(exit_.ended_at_ms - exit_.started_at_ms)
    reason = f"the writer ended with {_code_text(exit_)} after {lived}{_repeat_text(exits)}{message}"
    return _restart_after(observed.policy.backoff_ms(len(exits)), exit_, cause, reason, now_ms=now_ms)


def _restart_after(wait_ms: int, exit_: ExitRecord, cause: Cause, reason: str, *, now_ms: int) -> Decision:
    due_ms = exit_.ended_at_ms + wait_ms
    # A clock that was set back must not stretch the wait.
    if now_ms < due_ms <= now_ms + wait_ms:
        sentence = f"{reason}; it restarts {format_elapsed(wait_ms)} after its end"
        return Decision(WriterAction.HOLD, cause, sentence, due_ms)
    return Decision(WriterAction.START, cause, reason)


def _retry_external_cause(observed: DecisionInput, exit_: ExitRecord, *, now_ms: int) -> Decision | None:
    if exit_.code not in EXTERNAL_CAUSE_EXIT_CODES:
        return None
    if _has_ended_unsupervised(observed, exit_):
        reason = (
            f"the writer ended with {_code_text(exit_)} ({error_name(exit_.code)}) "
            f"{format_elapsed(now_ms - exit_.ended_at_ms)} ago, and supervision returned to this host "
            f"{format_elapsed(now_ms - observed.returned_at_ms)} ago, so the cause may be gone"
        )
        return Decision(WriterAction.START, Cause.RETURNED, reason)
    same = _same_declaration_as(exit_)
    if exit_.code == AccessDenied.exit_code and any(e.committed and same(e) for e in observed.exits):
        return _retry_denied(observed, exit_, now_ms=now_ms)
    return None


def _has_ended_unsupervised(observed: DecisionInput, exit_: ExitRecord) -> bool:
    """Whether the writer ended while no supervisor was active here, or long before supervision returned."""
    if exit_.ended_at_ms >= observed.returned_at_ms:
        return False
    given_up = observed.notes.given_up
    was_seen = exit_.ended_at_ms <= observed.away_since_ms or (
        given_up is not None and given_up.subject == exit_.launch_id
    )
    return not was_seen or observed.returned_at_ms - observed.away_since_ms > observed.policy.moved_ms


def _retry_denied(observed: DecisionInput, exit_: ExitRecord, *, now_ms: int) -> Decision:
    """Restart the writer after a long backoff. Its credentials once worked, and permissions are often restored."""
    exits = list(takewhile(lambda e: e.code == exit_.code and not e.committed, reversed(observed.exits)))
    reason = (
        f"the writer ended with {_code_text(exit_)} (AccessDenied){_repeat_text(exits)}, although it committed with "
        f"the same credentials before; last error: {exit_.cause or 'none'}"
    )
    return _restart_after(observed.policy.denied_backoff_ms(len(exits)), exit_, Cause.DENIED, reason, now_ms=now_ms)


def _same_declaration_as(last: ExitRecord) -> Callable[[ExitRecord], bool]:
    return lambda e: (e.spec_fingerprint, e.generation) == (last.spec_fingerprint, last.generation)


def exits_without_commit(exits: tuple[ExitRecord, ...], *, window_ms: int) -> list[ExitRecord]:
    """Return the last exits in a row without a request and a commit, of one declaration and state, newest first."""
    last = exits[-1]
    same = _same_declaration_as(last)

    def belongs(exit_: ExitRecord) -> bool:
        return (
            not exit_.committed
            and not _was_requested(exit_)
            and same(exit_)
            and last.ended_at_ms - exit_.ended_at_ms <= window_ms
        )

    return list(takewhile(belongs, reversed(exits)))


def consecutive_crashes(observed: DecisionInput, decision: Decision, *, now_ms: int) -> list[ExitRecord]:
    """Return the latest consecutive exits without a commit, newest first; empty once the problem seems to be over.
    Without such exits, returns the last exit until the next take-over, if a restart may help. The problem seems over
    if the running writer has committed, or has no lag and outlived the earlier ones, or the failed service responds.
    It also seems over after the crash window, and if the supervisor's decision has another cause.
    """
    exits, launch, heartbeat = observed.exits, observed.launch, observed.heartbeat
    counts = decision.action is WriterAction.KEEP or decision.cause in FAILURE_CAUSES
    if not exits or not counts or now_ms - exits[-1].ended_at_ms > observed.policy.crash_window_ms:
        return []
    repeated = exits_without_commit(exits, window_ms=observed.policy.crash_window_ms)
    took_over = observed.process.is_alive and heartbeat is not None and heartbeat.epoch is not None
    if not (repeated or took_over or _was_requested(exits[-1])) and exits[-1].code in RESTARTABLE_EXIT_CODES:
        repeated = [exits[-1]]
    if not observed.process.is_alive or launch is None or heartbeat is None:
        return repeated
    if _has_service_recovered(repeated, heartbeat):
        return []
    longest_ms = max((end.ended_at_ms - end.started_at_ms for end in repeated), default=0)
    outlived = heartbeat.lag == 0 and now_ms - launch.launched_at_ms > longest_ms
    return [] if outlived or (heartbeat.last_commit_at_ms or 0) >= launch.launched_at_ms else repeated


def replaced_failure(observed: DecisionInput, decision: Decision, *, now_ms: int) -> ExitRecord | None:
    """Return the exit of a failed writer that the supervisor replaces; None once the next writer has taken over.

    If no writer starts within the longest backoff, the supervisor cannot start one.
    """
    failed, launch = next(reversed(observed.exits), None), observed.launch
    if failed is None or launch is None or failed.code == 0 or _was_requested(failed):
        return None
    if observed.process.is_alive:
        has_epoch = observed.heartbeat is not None and observed.heartbeat.epoch is not None
        is_replaced = decision.cause is Cause.ADVANCING and not has_epoch
    else:
        is_replaced = decision.cause in {Cause.CRASHED, Cause.UNAVAILABLE}
    next_ms = launch.launched_at_ms if observed.process.is_alive else now_ms
    return failed if is_replaced and abs(next_ms - failed.ended_at_ms) <= observed.policy.max_backoff_ms else None


def _has_service_recovered(exits: list[ExitRecord], heartbeat: Heartbeat) -> bool:
    """Return whether the service that made writers end responds again.

    Kafka responds if the lag is known. Catalog and storage respond if the lag is 0.
    """
    if heartbeat.epoch is None or heartbeat.lag is None:
        return False
    if heartbeat.stall or heartbeat.outage or heartbeat.cause:
        return False
    codes, commit_codes = {end.code for end in exits}, {CommitUnavailable.exit_code, StorageUnavailable.exit_code}
    return codes <= KAFKA_EXIT_CODES or (codes <= KAFKA_EXIT_CODES | commit_codes and heartbeat.lag == 0)


def _describe_change_since(observed: DecisionInput, exit_: ExitRecord, *, now_ms: int) -> str | None:
    """Describe what a user changed after this exit, which may have fixed the cause; otherwise None."""
    declared, desired, given_up = observed.declared, observed.desired, observed.notes.given_up
    if isinstance(desired, DesiredState) and desired.generation > exit_.generation:
        is_restart = desired.restart_generation == desired.generation
        return _request_text("restart requested" if is_restart else "resumed", desired, now_ms=now_ms)
    if isinstance(declared, ValidDeclaration) and declared.fingerprint != exit_.spec_fingerprint:
        return f"the declaration changed (from {exit_.spec_fingerprint} to {declared.fingerprint})"
    if observed.notes.cleared == exit_.launch_id:
        return "a user requested a fresh start"
    if exit_.code not in FIXED_BY_TABLE_CHANGE or given_up is None or given_up.subject != exit_.launch_id:
        return None
    old, new = given_up.table_fingerprint, observed.table_fingerprint
    return f"the table changed (from {old} to {new})" if old and new and old != new else None


def _was_requested(exit_: ExitRecord) -> bool:
    """Whether the writer was asked to end. A hung writer that was stopped counts as crashed."""
    return exit_.stopped_for is not None and exit_.stopped_for not in {Cause.HUNG, Cause.SILENT}


def _give_up_or_hold(observed: DecisionInput, cause: Cause, reason: str, *, subject: str) -> Decision:
    given_up = observed.notes.given_up
    if given_up is None or given_up.subject != subject:
        return Decision(WriterAction.GIVE_UP, cause, reason, subject=subject)
    remedy = f"given up: {reason}; fix the cause, then run `frazil resume`"
    return Decision(WriterAction.HOLD, cause, remedy, subject=subject)


def _request_text(request: str, desired: DesiredState, *, now_ms: int) -> str:
    return f"{request} {describe_request(desired.by, desired.reason, desired.at_ms, now_ms=now_ms)}"


def _repeat_text(exits: list[ExitRecord]) -> str:
    return f", {len(exits)} times in a row" if len(exits) > 1 else ""


def _code_text(exit_: ExitRecord) -> str:
    if exit_.code is None:
        return "an unknown exit code"
    if exit_.code > 128:
        return f"signal {exit_.code - 128}"
    return f"exit code {exit_.code}"
