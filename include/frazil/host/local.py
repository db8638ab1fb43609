"""Runs writers as detached processes of this host. Each writer has a run folder with its complete state."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from frazil import clock
from frazil.errors import EnvironmentUnusable, WriterBusy
from frazil.home import make_folder, run_folder
from frazil.host.agents import ask_agent_to_kill
from frazil.host.endings import read_heartbeat, record_unseen_exit
from frazil.host.launcher import Launcher, LaunchRequest, LogChunk, LogPosition, Observation, ProcessState
from frazil.host.lock import read_launch
from frazil.host.processes import is_alive, kill_group, terminate
from frazil.host.records import Launch, LaunchKind, read_exits
from frazil.host.writer_log import LOG_FILE, read_lines

LAUNCH_TIMEOUT_S = 60


class LocalLauncher(Launcher):
    """The launcher of one writer application on this host.

    A small parent process (`frazil.host.parent`) in its own session starts the writer, so the writer outlives its
    launcher. Whether the writer runs is decided by the pids and start times in the lock file, not by a list of child
    processes.
    """

    def __init__(self, application: str, *, folder: Path | None = None) -> None:
        self.application = application
        self.folder = folder or run_folder(application)

    def launch(self, request: LaunchRequest) -> Launch:
        """See `Launcher.launch`."""
        launch_id = uuid.uuid4().hex
        make_folder(self.folder)
        try:
            answer = subprocess.run(
                self._parent_command(launch_id, request),
                env=dict(request.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                start_new_session=True,
                timeout=LAUNCH_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            problem = f"the parent of the writer of {self.application} did not answer within {LAUNCH_TIMEOUT_S} s"
            raise EnvironmentUnusable(f"{problem}; see {self.folder / LOG_FILE}") from None
        problem = answer.stderr.strip()
        if answer.returncode == WriterBusy.exit_code:
            raise WriterBusy(problem)
        launch = read_launch(self.folder)
        if answer.returncode != 0 or launch is None:
            raise EnvironmentUnusable(f"the writer of {self.application} was not launched: {problem}")
        return launch

    def observe(self) -> Observation:
        """Return the state in the run folder and the process table; see `Launcher.observe`."""
        launch = read_launch(self.folder)
        if launch is None:
            return Observation(ProcessState.NEVER, None, None, ())
        state = _state(launch)
        # Read after the state, because the parent records the exit before it ends.
        exits = read_exits(self.folder)
        if _nobody_saw(launch, state) and not any(e.launch_id == launch.id for e in exits):
            record_unseen_exit(self.folder, launch)
            exits = read_exits(self.folder)
        return Observation(state, launch, read_heartbeat(self.folder, launch), exits)

    def stop(self, *, force: bool) -> None:
        """Send SIGTERM to the writer, or SIGKILL to its process group; leave a foreground writer alone.

        The agent of a driver in a cluster is first asked to kill the driver. A hosted writer is left alone, because its
        process writes other streams as well.
        """
        launch = read_launch(self.folder)
        if launch is None or launch.kind is not LaunchKind.SUPERVISED:
            return
        if launch.writer is None:
            # The parent has not started it yet, so there is nothing that a graceful end would save.
            if force and launch.parent is not None:
                kill_group(launch.parent)
        elif force:
            # Never the parent, which is about to record how the writer ended.
            if not ask_agent_to_kill(self.folder, launch.writer, now_ms=clock.now_ms()):
                kill_group(launch.writer)
        else:
            terminate(launch.writer)

    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        """See `Launcher.read_log`."""
        launch = read_launch(self.folder)
        if launch is None or launch.kind is not LaunchKind.SUPERVISED:
            return None
        return read_lines(self.folder / LOG_FILE, launch_id=launch.id, since=since, limit_bytes=limit_bytes)

    def _parent_command(self, launch_id: str, request: LaunchRequest) -> list[str]:
        return [
            sys.executable,
            *("-m", "frazil.host.parent"),
            *("--folder", str(self.folder)),
            *("--launch-id", launch_id),
            *("--fingerprint", request.spec_fingerprint),
            *("--generation", str(request.generation)),
            *(f"--stream={name}" for name in request.streams),
            "--",
            *request.command,
        ]


def _state(launch: Launch) -> ProcessState:
    if not is_alive(launch.writer) and not is_alive(launch.parent):
        return ProcessState.ENDED
    running = {LaunchKind.FOREGROUND: ProcessState.FOREGROUND, LaunchKind.HOSTED: ProcessState.HOSTED}
    return running.get(launch.kind, ProcessState.RUNNING)


def _nobody_saw(launch: Launch, state: ProcessState) -> bool:
    """Whether the end of the writer is unrecorded.

    A process that released the lock and continued has removed its process from the launch's record, and is not a
    writer.
    """
    return state is ProcessState.ENDED and (launch.kind is LaunchKind.SUPERVISED or launch.writer is not None)
