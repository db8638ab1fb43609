"""Checks whether a running writer makes progress, from its heartbeat, the time and the limits of each phase."""

from __future__ import annotations

from frazil.host.heartbeat import Heartbeat, Phase, StallKind
from frazil.host.launcher import Observation
from frazil.host.records import Launch, StopRequest
from frazil.spec.units import format_count
from frazil.supervise.decision import Cause, Decision, DecisionInput, SupervisionPolicy, WriterAction
from frazil.timetext import format_elapsed

HEARTBEAT_TTL_MS = 10_000
"""Maximum age of a fresh heartbeat: ten missed heartbeats."""


def get_fresh_heartbeat(writer: Observation, *, now_ms: int) -> Heartbeat | None:
    """Return the heartbeat of a running writer; None if it is stale or the writer has ended."""
    heartbeat = writer.heartbeat
    fresh = heartbeat is not None and now_ms - heartbeat.written_at_ms <= HEARTBEAT_TTL_MS
    return heartbeat if fresh and writer.process.is_alive else None


def has_committed(writer: Observation) -> bool:
    heartbeat = writer.heartbeat
    return any(end.committed for end in writer.exits) or (
        heartbeat is not None and heartbeat.last_commit_at_ms is not None
    )


def get_known_lag(heartbeat: Heartbeat) -> int | None:
    """Return the lag in a heartbeat; None while the planner cannot reach Kafka, because it may be outdated."""
    stall = heartbeat.stall
    kind, waits = stall.kind if stall else None, heartbeat.phase is Phase.WAITING
    is_old = kind in {StallKind.KAFKA, StallKind.TOPIC} or (kind is StallKind.OFFSETS and waits)
    return None if is_old else heartbeat.lag


def is_fenced(heartbeat: Heartbeat, *, epoch: int) -> bool:
    """Whether the writer can no longer commit, because a newer epoch exists."""
    begins = heartbeat.phase in {Phase.STARTING, Phase.TAKING_OVER}
    return not begins and heartbeat.epoch is not None and heartbeat.epoch < epoch


def describe_progress(heartbeat: Heartbeat | None, launch: Launch, *, now_ms: int) -> str:
    since = format_elapsed(now_ms - launch.launched_at_ms)
    if heartbeat is None:
        return f"{_describe_process(launch)} was launched {since} ago and has sent no heartbeat yet"
    lag_records = get_known_lag(heartbeat)
    lag = "unknown" if lag_records is None else format_count(lag_records, "record")
    commit = heartbeat.last_commit_at_ms
    committed = f"{format_elapsed(now_ms - commit)} ago" if commit else "none yet"
    so_far = f" ({format_count(heartbeat.batch_records, 'record')} read)" if heartbeat.batch_records else ""
    if heartbeat.merged_rows:
        so_far = f" ({format_count(heartbeat.merged_rows, 'row')} read for its merge)"
    batch = f"epoch {heartbeat.epoch}, batch {heartbeat.batch}{so_far}"
    return f"{_describe_process(launch)}, up {since}, {heartbeat.phase}, {batch}, lag {lag}, last commit {committed}"


def decide_hung(observed: DecisionInput, launch: Launch, *, now_ms: int, policy: SupervisionPolicy) -> Decision | None:
    """Return the decision to restart a hung writer. A waiting writer without records to read needs no progress."""
    heartbeat = observed.heartbeat
    if heartbeat is not None:
        heartbeat_age_ms = now_ms - max(heartbeat.written_at_ms, observed.watched_since_ms)
        if heartbeat_age_ms > policy.heartbeat_limit_ms:
            limit = format_elapsed(policy.heartbeat_limit_ms)
            silent = f"runs, but has sent no heartbeat for {format_elapsed(heartbeat_age_ms)} (limit {limit})"
            return Decision(WriterAction.RESTART, Cause.SILENT, f"{_describe_process(launch)} {silent}")
    phase = _phase(heartbeat)
    stall = heartbeat.stall if heartbeat else None
    has_read_all = not (heartbeat and heartbeat.lag) or (stall is not None and stall.kind is StallKind.LEADER)
    if phase is Phase.WAITING and has_read_all:
        return None
    idle_ms = now_ms - max(_advanced_at_ms(heartbeat, launch), observed.watched_since_ms)
    limit_ms = policy.advance_limits_ms[phase]
    if idle_ms <= limit_ms:
        return None
    reason = (
        f"{_describe_process(launch)} made no progress for {format_elapsed(idle_ms)} while {phase} (limit "
        f"{format_elapsed(limit_ms)})"
    )
    return Decision(WriterAction.RESTART, Cause.HUNG, reason)


def decide_stopping(
    observed: DecisionInput, launch: Launch, stop: StopRequest, *, now_ms: int, policy: SupervisionPolicy
) -> Decision:
    heartbeat = observed.heartbeat
    phase = _phase(heartbeat)
    was_hung = stop.cause in {Cause.HUNG, Cause.SILENT}
    idle = phase is Phase.WAITING
    limit_ms = policy.hung_grace_ms if was_hung else policy.advance_limits_ms[Phase.STOPPING if idle else phase]
    floor_ms = max(stop.requested_at_ms, observed.watched_since_ms)
    idle_ms = now_ms - max(floor_ms, 0 if was_hung else _advanced_at_ms(heartbeat, launch))
    heartbeat_age_ms = now_ms - max(floor_ms, heartbeat.written_at_ms if heartbeat else now_ms)
    since = format_elapsed(now_ms - stop.requested_at_ms)
    stops = f"{_describe_process(launch)} was asked to stop {since} ago ({stop.reason})"
    if idle_ms > limit_ms or heartbeat_age_ms > policy.heartbeat_limit_ms:
        lasted = format_elapsed(max(idle_ms, heartbeat_age_ms))
        hangs = f"{stops} and made no progress for {lasted} while {phase} (limit {format_elapsed(limit_ms)})"
        return Decision(WriterAction.KILL, Cause.STOPPING, hangs)
    return Decision(WriterAction.KEEP, Cause.STOPPING, f"{stops}; its current batch ({phase}) may still commit")


def _phase(heartbeat: Heartbeat | None) -> Phase:
    return heartbeat.phase if heartbeat else Phase.STARTING


def _advanced_at_ms(heartbeat: Heartbeat | None, launch: Launch) -> int:
    return max(launch.launched_at_ms, heartbeat.advanced_at_ms if heartbeat else 0)


def _describe_process(launch: Launch) -> str:
    process = launch.writer or launch.parent
    return f"pid {process.pid}" if process else "the writer"
