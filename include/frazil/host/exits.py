"""Records how a launch ended. The writer's parent process does this; if it was killed too, the next observer does."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from frazil.errors import Failure
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.processes import AGENT_KILLED, is_agent
from frazil.host.records import ExitRecord, Launch, LaunchKind, StopRequest, StoredError, append_exit, read_notes
from frazil.host.writer_log import first_error, last_error

ENDED_WITH_APPLICATION = "ended with its application"
"""Value of `stopped_for` for a writer that ran until the process of its application ended."""
KILLED_BY_OTHERS = (
    "the writer was killed by another user or program, or by the kernel (out of memory: see the kernel's log); the "
    "next one continues from the table"
)
ENDED_WITHOUT_RECORD = "it ended without a record: probably killed (SIGKILL, out of memory)"


def read_heartbeat(folder: Path, launch: Launch) -> Heartbeat | None:
    try:
        heartbeat = Heartbeat.read(folder)
    except (ValueError, TypeError, KeyError):
        return None
    is_of_launch = heartbeat is not None and heartbeat.written_at_ms >= launch.launched_at_ms
    return heartbeat if is_of_launch else None


def record_exit(  # noqa: PLR0913 - the parts of an exit
    folder: Path,
    launch: Launch,
    *,
    code: int | None,
    ended_at_ms: int,
    cause: Failure | None = None,
    stopped_for: str | None = None,
) -> None:
    """Record the exit of a launch. `cause` replaces the last message of a writer whose exit code is known."""
    heartbeat = read_heartbeat(folder, launch)
    if code == 128 + signal.SIGKILL and cause is None:
        killed_agent = _was_killed_agent(folder, launch, heartbeat)
        cause = Failure(AGENT_KILLED if killed_agent else _kill_reason(folder, launch))
    if code == 0:
        cause = None
    elif code is not None and cause is None:
        # The last heartbeat's error, or the end of the log, unless that also covers other streams.
        logged = None if launch.kind is LaunchKind.HOSTED else last_error(folder)
        cause = (heartbeat.cause if heartbeat else None) or (Failure(logged) if logged else None)
    request, committed_at_ms = _stop_request(folder, launch.id), heartbeat.last_commit_at_ms if heartbeat else None
    exit_ = ExitRecord(
        launch_id=launch.id,
        code=code,
        started_at_ms=launch.launched_at_ms,
        ended_at_ms=ended_at_ms,
        spec_fingerprint=launch.spec_fingerprint,
        generation=launch.generation,
        committed=committed_at_ms is not None and committed_at_ms >= launch.launched_at_ms,
        **StoredError.fields_of(cause),
        stopped_for=request.cause if request else stopped_for,
        stalled_since_ms=heartbeat.stall.since_ms if heartbeat and heartbeat.stall else None,
        table=heartbeat.table if heartbeat else "",
    )
    append_exit(folder, exit_)


def record_unseen_exit(folder: Path, launch: Launch) -> None:
    """Record the exit of a launch without a waiting parent: a crash, unless the last heartbeat reports a normal end."""
    heartbeat = read_heartbeat(folder, launch)
    ended_well = heartbeat is not None and heartbeat.phase is Phase.ENDED and heartbeat.cause is None
    code = 0 if ended_well else None
    ended_at_ms = heartbeat.written_at_ms if heartbeat else launch.launched_at_ms
    cause = None if ended_well else _unseen_cause(folder, launch, heartbeat)
    if _was_killed_agent(folder, launch, heartbeat):
        cause = Failure(AGENT_KILLED)
    # It is unknown which stream made the process crash, and no stream is given up because of another.
    stopped_for = ENDED_WITH_APPLICATION if launch.kind is LaunchKind.HOSTED else None
    record_exit(folder, launch, code=code, ended_at_ms=ended_at_ms, cause=cause, stopped_for=stopped_for)


def _was_killed_agent(folder: Path, launch: Launch, heartbeat: Heartbeat | None) -> bool:
    """Whether the process was an agent that was killed. Its log then ends with its driver's log."""
    reported = heartbeat is not None and heartbeat.phase is Phase.ENDED
    return not reported and is_agent(folder, launch.writer.pid if launch.writer else None)


def _kill_reason(folder: Path, launch: Launch) -> str:
    request = _stop_request(folder, launch.id)
    cause = f"the writer was killed after a stop request: {request.reason}" if request else KILLED_BY_OTHERS
    warning = _first_error_or_last_warning(folder, launch)
    return f"{cause}. {warning}" if warning else cause


def _unseen_cause(folder: Path, launch: Launch, heartbeat: Heartbeat | None) -> Failure | None:
    if heartbeat is not None and heartbeat.cause is not None:
        return heartbeat.cause
    warning = _first_error_or_last_warning(folder, launch)
    return Failure(f"{ENDED_WITHOUT_RECORD}. {warning}") if warning else None


def _first_error_or_last_warning(folder: Path, launch: Launch) -> str | None:
    if launch.kind is LaunchKind.HOSTED:
        return None
    if error := first_error(folder):
        return f"Its first error: {error}"
    warning = last_error(folder, min_level=logging.WARNING)
    return f"Its last warning: {warning}" if warning else None


def _stop_request(folder: Path, launch_id: str) -> StopRequest | None:
    request = read_notes(folder).stop
    return request if request is not None and request.launch_id == launch_id else None
