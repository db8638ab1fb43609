"""Decides what to do about one writer now: a pure function of the observation, the time and the policy.

The first rule that matches decides. While a writer process is alive:
  1. it runs in the foreground: keep; an application that streams share runs it: keep, or end if it was removed;
  2. a requested stop is under way: keep, or kill if the writer makes no progress;
  3. the stream was removed or paused: stop;  a restart was requested or the spec changed: restart;
  4. the writer is hung, by its phase's limit or its heartbeat's: restart;  otherwise keep.
While no writer process is alive:
  5. removed: end;  paused: hold;  spec unreadable: give up;  desired state unreadable: hold;
  6. never launched, or the last writer ran in the foreground: start;
  7. a user changed the spec, desired state or table since the last writer ended, or that end was requested: start;
  8. it was fenced or denied access before supervision returned to this host: start, because the cause may be gone;
  9. it was denied access that it once had: start again after a long backoff;
 10. its exit code means that a restart fails in the same way, or it crashed too often without a commit: give up;
 11. otherwise start again after the backoff.

The supervisor gives up once for each cause and then holds. Otherwise Airflow, which starts the next run at once, would
loop over failing runs. Two starts never make two writers, because the writer's lock admits one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from frazil.errors import (
    NO_RESTART,
    AccessDenied,
    AdoptionRequired,
    CircuitOpen,
    Fenced,
    MarkerUnreadable,
    OffsetGap,
    RolledBack,
    SchemaIncompatible,
    TopicRecreated,
    kinds,
)
from frazil.host.launcher import ProcessState
from frazil.host.records import ExitRecord, Launch
from frazil.spec.units import counted
from frazil.supervise.decision import Cause, Decision, WriterAction
from frazil.supervise.liveness import hung, progress, stopping
from frazil.supervise.observed import Declared, Desired, DesiredMode, Observed, Removed, Unreadable, error_name
from frazil.supervise.policy import Policy
from frazil.timetext import ago

TABLE_WAYS_OUT = frozenset(
    error.exit_code
    for error in (
        OffsetGap,
        RolledBack,
        TopicRecreated,
        SchemaIncompatible,
        AdoptionRequired,
        MarkerUnreadable,
        CircuitOpen,
    )
)
"""Exit codes that an operator fixes by changing the table. `Fenced` is not among them, because the writer that fenced
this one changes the table as well.
"""

MAY_BE_OVER = frozenset({Fenced.exit_code, AccessDenied.exit_code})
"""Exit codes whose cause lies outside this host and may be gone: another writer, or missing rights."""

RESTARTABLE = frozenset(kind.exit_code for kind in kinds() if kind.restartable)
"""Exit codes of a writer that could not reach a service (brokers, catalog). Such a writer is restarted indefinitely."""


AFTER_FAILURE = frozenset(
    {Cause.CRASHED, Cause.ENDED, Cause.UNAVAILABLE, Cause.DENIED, Cause.CRASH_LOOP, Cause.NEEDS_ATTENTION}
)
"""Causes of decisions after an end without a request."""


def decide(observed: Observed, *, now_ms: int, policy: Policy) -> Decision:
    """Return the action for an observation; the module's docstring lists the rules."""
    launch = observed.launch
    if observed.process.is_alive and launch is not None:
        return _alive(observed, launch, now_ms=now_ms, policy=policy)
    return _not_wanted(observed, now_ms=now_ms, policy=policy) or _ended(observed, now_ms=now_ms, policy=policy)


def _alive(observed: Observed, launch: Launch, *, now_ms: int, policy: Policy) -> Decision:
    where = progress(observed.heartbeat, launch, now_ms=now_ms)
    if observed.process is ProcessState.FOREGROUND:
        return Decision(WriterAction.KEEP, Cause.FOREGROUND, f"a person runs it in the foreground: {where}")
    if observed.process is ProcessState.HOSTED:
        return _hosted(observed, launch, where, now_ms=now_ms, policy=policy)
    if (stop := observed.stop_request) is not None:
        return stopping(observed, launch, stop, now_ms=now_ms, policy=policy)
    return (
        _wanted_otherwise(observed, launch, now_ms=now_ms, policy=policy)
        or hung(observed, launch, now_ms=now_ms, policy=policy)
        or Decision(WriterAction.KEEP, Cause.ADVANCING, where)
    )


def _hosted(observed: Observed, launch: Launch, where: str, *, now_ms: int, policy: Policy) -> Decision:
    """Leave a writer to the application that runs it; end the supervision once its stream is removed."""
    declared, runs = observed.declared, f"the application {launch.application} runs it"
    if isinstance(declared, Removed) and now_ms >= declared.since_ms + policy.removal_grace_ms:
        return Decision(WriterAction.END, Cause.HOSTED, f"{runs}, and supervises it: {where}")
    return Decision(WriterAction.KEEP, Cause.HOSTED, f"{runs}: {where}")


def _wanted_otherwise(observed: Observed, launch: Launch, *, now_ms: int, policy: Policy) -> Decision | None:
    """Stop or restart a running writer that no longer matches its declaration or desired state; None if it matches."""
    declared, desired = observed.declared, observed.desired
    if isinstance(declared, Removed) and now_ms >= declared.since_ms + policy.removal_grace_ms:
        reason = f"its declaration was removed {ago(now_ms - declared.since_ms)} ago"
        return Decision(WriterAction.STOP, Cause.REMOVED, reason)
    if isinstance(desired, Desired):
        if desired.mode is DesiredMode.PAUSED:
            return Decision(WriterAction.STOP, Cause.PAUSED, _said("paused", desired, now_ms=now_ms))
        if desired.restart_generation > launch.generation:
            return Decision(WriterAction.RESTART, Cause.REQUESTED, _said("restart asked for", desired, now_ms=now_ms))
    if isinstance(declared, Declared) and declared.fingerprint != launch.spec_fingerprint:
        reason = f"the spec is {declared.fingerprint}, the writer was launched with {launch.spec_fingerprint}"
        return Decision(WriterAction.RESTART, Cause.SPEC_CHANGED, reason)
    return None


def _not_wanted(observed: Observed, *, now_ms: int, policy: Policy) -> Decision | None:
    """Decide not to start a writer, however the last writer ended; None if a writer is wanted."""
    declared, desired = observed.declared, observed.desired
    if isinstance(declared, Removed):
        reason = f"its declaration was removed {ago(now_ms - declared.since_ms)} ago, and 0 writers run"
        believed_ms = declared.since_ms + policy.removal_grace_ms
        if now_ms < believed_ms:
            return Decision(WriterAction.HOLD, Cause.REMOVED, reason, believed_ms)
        return Decision(WriterAction.END, Cause.REMOVED, reason)
    if isinstance(desired, Desired) and desired.mode is DesiredMode.PAUSED:
        reason = _said("paused", desired, now_ms=now_ms) + "; `frazil resume` starts it"
        return Decision(WriterAction.HOLD, Cause.PAUSED, reason)
    if isinstance(declared, Unreadable):
        reason = f"0 writers run, and none can be started before the spec is fixed: {declared.problem}"
        return _give_up(observed, Cause.SPEC_UNREADABLE, reason, subject=declared.problem)
    if isinstance(desired, Unreadable):
        reason = f"0 writers run, and none is started while the desired state is unreadable: {desired.problem}"
        return Decision(WriterAction.HOLD, Cause.STATE_UNREADABLE, reason)
    return None


def _ended(observed: Observed, *, now_ms: int, policy: Policy) -> Decision:
    """Decide what follows the end of the last writer, if a writer is wanted."""
    exit_ = observed.exit
    if exit_ is None:
        last = "the one in the foreground ended" if observed.launch else "none was launched before"
        return Decision(WriterAction.START, Cause.FIRST_START, f"0 writers run; {last}")
    if (change := _change_since(observed, exit_, now_ms=now_ms)) is not None:
        return Decision(WriterAction.START, Cause.REQUESTED, f"{change}; it had ended with {_code(exit_)}")
    if _was_requested(exit_) and exit_.code not in NO_RESTART:
        reason = f"it ended with {_code(exit_)} on request ({exit_.stopped_for}), and is wanted again"
        return Decision(WriterAction.START, Cause.STOPPED, reason)
    if (again := _may_be_over(observed, exit_, now_ms=now_ms, policy=policy)) is not None:
        return again
    if exit_.code in NO_RESTART:
        name = error_name(exit_.code or 0)
        reason = (
            f"the writer ended {ago(now_ms - exit_.ended_at_ms)} ago with exit code {exit_.code} ({name}), after which "
            f"a restart would fail in the same way: {exit_.error or 'it left no message'}"
        )
        return _give_up(observed, Cause.NEEDS_ATTENTION, reason, subject=exit_.launch_id)
    return _crashed(observed, exit_, now_ms=now_ms, policy=policy)


def _crashed(observed: Observed, exit_: ExitRecord, *, now_ms: int, policy: Policy) -> Decision:
    """Start the writer again after the backoff, or give up after too many crashes without a commit."""
    row = fruitless_row(observed.exits, window_ms=policy.crash_window_ms)
    crashes = [e for e in row if e.code not in RESTARTABLE]
    said = f": {exit_.error}" if exit_.error else ""
    if len(crashes) >= policy.crash_limit:
        took = ago(crashes[0].ended_at_ms - crashes[-1].started_at_ms)
        reason = (
            f"{counted(len(crashes), 'crash')} within {took} without one commit, the last with {_code(exit_)}{said}"
        )
        return _give_up(observed, Cause.CRASH_LOOP, reason, subject=exit_.launch_id)
    cause = Cause.UNAVAILABLE if exit_.code in RESTARTABLE else Cause.ENDED if exit_.code == 0 else Cause.CRASHED
    wait_ms = policy.backoff_ms(len(row))
    lived = ago(exit_.ended_at_ms - exit_.started_at_ms)
    reason = f"the writer ended with {_code(exit_)} after {lived}, {max(len(row), 1)} in a row{said}"
    due_ms = exit_.ended_at_ms + wait_ms
    # A clock that was set back must not stretch the wait.
    if now_ms < due_ms <= now_ms + wait_ms:
        return Decision(WriterAction.HOLD, cause, f"{reason}; it is started {ago(wait_ms)} after its end", due_ms)
    return Decision(WriterAction.START, cause, reason)


def _may_be_over(observed: Observed, exit_: ExitRecord, *, now_ms: int, policy: Policy) -> Decision | None:
    """Start the writer again if the cause of its end lies outside this host and may be gone; None for any other end."""
    if exit_.code not in MAY_BE_OVER:
        return None
    if _ended_while_away(observed, exit_, policy=policy):
        reason = (
            f"it ended with {_code(exit_)} ({error_name(exit_.code or 0)}) {ago(now_ms - exit_.ended_at_ms)} ago, and "
            f"supervision returned to this host {ago(now_ms - observed.returned_at_ms)} ago: the cause may be gone"
        )
        return Decision(WriterAction.START, Cause.RETURNED, reason)
    if exit_.code == AccessDenied.exit_code and _worked(observed, exit_):
        return _denied(observed, exit_, now_ms=now_ms, policy=policy)
    return None


def _ended_while_away(observed: Observed, exit_: ExitRecord, *, policy: Policy) -> bool:
    """Whether no supervisor on this host saw this end, or another host supervised for long since then."""
    if exit_.ended_at_ms >= observed.returned_at_ms:
        return False
    given_up = observed.notes.given_up
    seen = exit_.ended_at_ms <= observed.away_since_ms or (given_up is not None and given_up.subject == exit_.launch_id)
    return not seen or observed.returned_at_ms - observed.away_since_ms > policy.moved_ms


def _denied(observed: Observed, exit_: ExitRecord, *, now_ms: int, policy: Policy) -> Decision:
    """Try again after a denied access.

    The credentials once worked, rights are often restored, and a try does no harm.
    """
    row = list(takewhile(lambda e: e.code == exit_.code and not e.committed, reversed(observed.exits)))
    wait_ms = policy.denied_backoff_ms(len(row))
    due_ms = exit_.ended_at_ms + wait_ms
    reason = (
        f"the writer ended with {_code(exit_)} (AccessDenied), {max(len(row), 1)} in a row, and committed with the "
        f"same credentials before; its last words: {exit_.error or 'none'}"
    )
    if now_ms < due_ms <= now_ms + wait_ms:
        return Decision(
            WriterAction.HOLD, Cause.DENIED, f"{reason}; it is started {ago(wait_ms)} after its end", due_ms
        )
    return Decision(WriterAction.START, Cause.DENIED, reason)


def _worked(observed: Observed, exit_: ExitRecord) -> bool:
    same = _as_now(exit_)
    return any(e.committed and same(e) for e in observed.exits)


def _as_now(last: ExitRecord) -> Callable[[ExitRecord], bool]:
    """Return a predicate for exits with the same declaration and generation as the last exit."""
    return lambda e: (e.spec_fingerprint, e.generation) == (last.spec_fingerprint, last.generation)


def fruitless_row(exits: tuple[ExitRecord, ...], *, window_ms: int) -> list[ExitRecord]:
    """Return the latest consecutive exits without a commit, newest first.

    A requested stop, or a user's change between two exits, ends the row.
    """
    last = exits[-1]
    same = _as_now(last)

    def belongs(exit_: ExitRecord) -> bool:
        return (
            not exit_.committed
            and not _was_requested(exit_)
            and same(exit_)
            and last.ended_at_ms - exit_.ended_at_ms <= window_ms
        )

    return list(takewhile(belongs, reversed(exits)))


def crash_row(observed: Observed, decision: Decision, *, now_ms: int, policy: Policy) -> list[ExitRecord]:
    """Return the latest consecutive ends without progress that still count, newest first.

    The row is empty once the running writer has committed, or has no lag and has run longer than each writer in the
    row. It is also empty an hour after the last end, and while the supervisor acts for another cause.
    """
    exits, launch, heartbeat = observed.exits, observed.launch, observed.heartbeat
    counts = decision.action is WriterAction.KEEP or decision.cause in AFTER_FAILURE
    if not exits or not counts or now_ms - exits[-1].ended_at_ms > policy.crash_window_ms:
        return []
    row = fruitless_row(exits, window_ms=policy.crash_window_ms)
    if not observed.process.is_alive or launch is None or heartbeat is None:
        return row
    longest_ms = max((end.ended_at_ms - end.started_at_ms for end in row), default=0)
    outlived = heartbeat.lag == 0 and now_ms - launch.launched_at_ms > longest_ms
    return [] if outlived or (heartbeat.last_commit_at_ms or 0) >= launch.launched_at_ms else row


def _change_since(observed: Observed, exit_: ExitRecord, *, now_ms: int) -> str | None:
    """Describe a user's change after this end, which may have fixed the cause; None if no such change is known."""
    declared, desired, given_up = observed.declared, observed.desired, observed.notes.given_up
    if isinstance(desired, Desired) and desired.generation > exit_.generation:
        is_restart = desired.restart_generation == desired.generation
        return _said("restart asked for" if is_restart else "resumed", desired, now_ms=now_ms)
    if isinstance(declared, Declared) and declared.fingerprint != exit_.spec_fingerprint:
        return f"the spec changed (from {exit_.spec_fingerprint} to {declared.fingerprint})"
    if observed.notes.cleared == exit_.launch_id:
        return "a person asked for a fresh start"
    if exit_.code not in TABLE_WAYS_OUT or given_up is None or given_up.subject != exit_.launch_id:
        return None
    before, now = given_up.table_fingerprint, observed.table_fingerprint
    return f"the table changed (from {before} to {now})" if before and now and before != now else None


def _was_requested(exit_: ExitRecord) -> bool:
    """Whether this end was requested. If the supervisor ended a hung writer, that counts as a crash."""
    return exit_.stopped_for is not None and exit_.stopped_for not in {Cause.HUNG, Cause.SILENT}


def _give_up(observed: Observed, cause: Cause, reason: str, *, subject: str) -> Decision:
    """Give up once; after that hold, and describe the fix."""
    given_up = observed.notes.given_up
    if given_up is None or given_up.subject != subject:
        return Decision(WriterAction.GIVE_UP, cause, reason, subject=subject)
    return Decision(
        WriterAction.HOLD,
        cause,
        f"given up: {reason}; when that is fixed, start it with `frazil resume`",
        subject=subject,
    )


def _said(what: str, desired: Desired, *, now_ms: int) -> str:
    why = f": {desired.reason}" if desired.reason else ""
    return f"{what} by {desired.by or 'somebody'} {ago(now_ms - desired.at_ms)} ago{why}"


def _code(exit_: ExitRecord) -> str:
    if exit_.code is None:
        return "an end that no process recorded"
    if exit_.code > 128:
        return f"signal {exit_.code - 128}"
    return f"exit code {exit_.code}"
