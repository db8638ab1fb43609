"""Writing down how a launch ended: by its parent as a rule, by an observer where the parent was killed as well."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from frazil.host.exchange import open_exchange
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.records import ExitRecord, Launch, append_exit, read_notes
from frazil.host.writer_log import last_error


def read_heartbeat(folder: Path, launch: Launch) -> Heartbeat | None:
    """The heartbeat of that launch; None before its first, or if it cannot be read, as of another version."""
    try:
        heartbeat = Heartbeat.read(open_exchange(folder))
    except (ValueError, TypeError, KeyError):
        return None
    if heartbeat is None or heartbeat.written_at_ms < launch.launched_at_ms:
        return None
    return heartbeat


def record_exit(folder: Path, launch: Launch, *, code: int, ended_at_ms: int) -> None:
    """Write the exit of a launch that its parent saw end."""
    heartbeat = read_heartbeat(folder, launch)
    error = None if code == 0 else (heartbeat and heartbeat.error) or last_error(folder)
    _append(folder, _exit(launch, heartbeat, code=code, ended_at_ms=ended_at_ms, error=error))


def record_unseen_exit(folder: Path, launch: Launch) -> None:
    """Write the exit of a launch that nobody saw end: a crash, unless the heartbeat says that it ended well."""
    heartbeat = read_heartbeat(folder, launch)
    ended_well = heartbeat is not None and heartbeat.phase is Phase.ENDED and heartbeat.error is None
    code = 0 if ended_well else None
    ended_at_ms = heartbeat.written_at_ms if heartbeat else launch.launched_at_ms
    error = None if ended_well else (heartbeat and heartbeat.error) or last_error(folder)
    _append(folder, _exit(launch, heartbeat, code=code, ended_at_ms=ended_at_ms, error=error))


def _append(folder: Path, exit_: ExitRecord) -> None:
    """Add the exit, with what its end was asked for: the request is written before the signal is sent."""
    asked = read_notes(folder).stop
    cause = asked.cause if asked is not None and asked.launch_id == exit_.launch_id else None
    append_exit(folder, dataclasses.replace(exit_, stopped_for=cause))


def _exit(
    launch: Launch, heartbeat: Heartbeat | None, *, code: int | None, ended_at_ms: int, error: str | None
) -> ExitRecord:
    committed_at_ms = heartbeat.last_commit_at_ms if heartbeat else None
    return ExitRecord(
        launch_id=launch.id,
        code=code,
        started_at_ms=launch.launched_at_ms,
        ended_at_ms=ended_at_ms,
        spec_fingerprint=launch.spec_fingerprint,
        generation=launch.generation,
        committed=committed_at_ms is not None and committed_at_ms >= launch.launched_at_ms,
        error=error,
    )
