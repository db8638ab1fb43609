"""The status of a stream's writer, from its run folder on this host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frazil.home import run_folder
from frazil.host.given_up import standing_given_up
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import Observation, ProcessState
from frazil.host.launchers import open_launcher
from frazil.host.records import ExitRecord, Launch, LaunchKind
from frazil.supervise.liveness import beating
from frazil.supervise.observed import error_name
from frazil.timetext import ago

SETTLED_MS = 60_000
"""How long a writer has run, and committed, that no longer counts as one that fails again and again."""
CRASHES_WITHIN_MS = 900_000
MAX_ERROR_CHARACTERS = 1000
"""Characters of a writer's last words."""


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """The writer's process on this host. Times are milliseconds since the epoch, UTC."""

    state: str
    pid: int | None = None
    phase: str | None = None
    heartbeat_at_ms: int | None = None
    stale: bool = False
    """It runs, but its heartbeat is old."""
    exit_code: int | None = None
    exit_name: str | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    application: str | None = None
    """That ran it with others, if it has ended."""
    crashes: int = 0
    """How often it failed within the last quarter of an hour, under its supervisor; 0 once the present one goes on."""
    given_up: bool = False
    """The supervisor starts it no more before a person resumes it."""
    fenced: bool = False
    """It runs, and commits nothing more: the stream has a newer epoch than its own."""
    epoch: int | None = None
    """That it began last; None before it did."""

    @property
    def has_ended(self) -> bool:
        """Whether one ran on this host, and none does."""
        return self.state == ProcessState.ENDED


def look_at_writer(name: str, *, now_ms: int) -> tuple[WriterStatus, Observation | None, list[str]]:
    """The writer, what was observed of it, and its problems. Raises nothing."""
    try:
        observation = open_launcher(name).observe()
        given_up = standing_given_up(name, observation)
    except (OSError, ValueError, TypeError, KeyError) as error:
        unknown = WriterStatus(state="unknown")
        return unknown, None, [f"the run folder {run_folder(name)} cannot be read: {error!r}"]
    writer = replace(writer_status(observation, now_ms=now_ms), given_up=given_up is not None)
    problems = []
    if writer.stale and writer.heartbeat_at_ms is not None:
        silent = ago(now_ms - writer.heartbeat_at_ms)
        problems.append(f"pid {writer.pid} is alive, but its heartbeat is {silent} old: its report is of that time")
    if writer.error:
        problems.append(f"the last writer ended with {exit_words(writer)}: {_last_words(writer)}")
    if given_up:
        when = f"{ago(now_ms - given_up.at_ms)} ago"
        problems.append(f"the supervisor gave up {when}; once the cause is fixed, `frazil resume {name}` starts it")
    return writer, observation, problems


def writer_status(observation: Observation, *, now_ms: int) -> WriterStatus:
    """What an observation of the run folder says about the writer. Pure."""
    launch, beat = observation.launch, observation.heartbeat
    if launch is None:
        return WriterStatus(state=observation.process)
    process, epoch = launch.writer or launch.parent, beat.epoch if beat else None
    crashes = sum(_is_crash(exit_, now_ms) for exit_ in observation.exits)
    if observation.process.is_alive:
        return WriterStatus(
            state=observation.process,
            pid=process.pid if process else None,
            phase=beat.phase if beat else None,
            heartbeat_at_ms=beat.written_at_ms if beat else None,
            stale=beat is not None and beating(observation, now_ms=now_ms) is None,
            crashes=0 if _has_settled(launch, beat, now_ms) else crashes,
            epoch=epoch,
        )
    application = launch.application if launch.kind is LaunchKind.HOSTED else None
    end = next((e for e in reversed(observation.exits) if e.launch_id == launch.id), None)
    if end is None:  # its process is about to record it
        ended_well = beat is not None and beat.phase is Phase.ENDED and beat.error is None
        return WriterStatus(
            state=observation.process,
            exit_code=0 if ended_well else None,
            ended_at_ms=beat.written_at_ms if beat else None,
            error=beat.error if beat else None,
            application=application,
            crashes=crashes,
            epoch=epoch,
        )
    return WriterStatus(
        state=observation.process,
        exit_code=end.code,
        exit_name=error_name(end.code) or None if end.code else None,
        ended_at_ms=end.ended_at_ms,
        error=end.error,
        application=application,
        crashes=crashes,
        epoch=epoch,
    )


def _has_settled(launch: Launch, beat: Heartbeat | None, now_ms: int) -> bool:
    """Whether a running writer has got over what made those before it fail."""
    committed_at_ms = beat.last_commit_at_ms if beat else None
    has_committed = committed_at_ms is not None and committed_at_ms >= launch.launched_at_ms
    return has_committed and now_ms - launch.launched_at_ms >= SETTLED_MS


def _is_crash(end: ExitRecord, now_ms: int) -> bool:
    return end.is_supervised and end.code != 0 and now_ms - end.ended_at_ms < CRASHES_WITHIN_MS


def _last_words(writer: WriterStatus) -> str:
    """Why it ended, in one line; of a writer that could not say it, the end of its log, which may be long."""
    words = " ".join((writer.error or "").split()).removeprefix(f"{writer.exit_name}: ")
    return cut(words)


def cut(words: str) -> str:
    """As many of a writer's last words as are shown, and of no command a part."""
    shown = words[:MAX_ERROR_CHARACTERS]
    if shown == words:
        return words
    return f"{shown.rpartition('`')[0] if shown.count('`') % 2 else shown} ..."


def exit_words(writer: WriterStatus) -> str:
    """How the writer ended."""
    if writer.exit_code is None and writer.error:
        return "an error"
    if writer.exit_code is None:
        with_it = f", with the application {writer.application}" if writer.application else ""
        return f"no exit code: it was killed{with_it}, its host went down, or its disk was full"
    if writer.exit_code > 128:
        return f"{writer.exit_code} (signal {writer.exit_code - 128})"
    return f"{writer.exit_code} ({writer.exit_name})" if writer.exit_name else str(writer.exit_code)
