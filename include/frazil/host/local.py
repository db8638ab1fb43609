"""Runs writers as detached processes on this host. Each writer's state is in its run folder.

A small parent process starts each writer: `python -m frazil.host.local --folder F ... -- COMMAND...`. It takes the
writer's lock, leaves the caller's session, forwards SIGTERM, waits, and records how the writer ended. It exits with 0
if the command runs, with WriterBusy's code if another writer holds the lock, and with 1 if the command cannot start. If
the parent is killed, the writer continues, and holds the lock by the inherited file descriptor.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from frazil import clock
from frazil.errors import EnvironmentUnusable, WriterBusy
from frazil.home import make_folder, run_folder
from frazil.host.exits import read_heartbeat, record_exit, record_unseen_exit
from frazil.host.launcher import Launcher, LaunchRequest, LogChunk, LogPosition, Observation, ProcessState
from frazil.host.lock import INHERITED_LOCK, WriterLock, read_launch
from frazil.host.processes import (
    GROUP_END_TIMEOUT_S,
    ask_agent_to_kill,
    end_group,
    identify_process,
    is_alive,
    kill_group,
    terminate,
)
from frazil.host.records import Launch, LaunchKind, read_exits
from frazil.host.writer_log import LOG_FILE, read_lines, redirect_output, rotate_log

LAUNCH_TIMEOUT_S = 60


class LocalLauncher(Launcher):
    """Launches one writer application on this host. The pids and start times in its lock file show whether it runs."""

    def __init__(self, application: str, *, folder: Path | None = None) -> None:
        self.application = application
        self.folder = folder or run_folder(application)

    def launch(self, request: LaunchRequest) -> Launch:
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
            problem = f"the parent process of the writer of {self.application} did not respond"
            log = self.folder / LOG_FILE
            raise EnvironmentUnusable(f"{problem} within {LAUNCH_TIMEOUT_S} s; see {log}") from None
        problem = answer.stderr.strip()
        if answer.returncode == WriterBusy.exit_code:
            raise WriterBusy(problem)
        launch = read_launch(self.folder)
        if answer.returncode != 0 or launch is None:
            raise EnvironmentUnusable(f"cannot launch the writer of {self.application}: {problem}")
        return launch

    def observe(self) -> Observation:
        launch = read_launch(self.folder)
        if launch is None:
            return Observation(ProcessState.NEVER_LAUNCHED, None, None, ())
        state = _process_state(launch)
        # Read the exit after the state, because the parent records the exit before it ends.
        exits = read_exits(self.folder)
        may_end_unseen = launch.kind is LaunchKind.SUPERVISED or launch.writer is not None
        is_unrecorded = state is ProcessState.ENDED and may_end_unseen
        if is_unrecorded and not any(e.launch_id == launch.id for e in exits):
            record_unseen_exit(self.folder, launch)
            exits = read_exits(self.folder)
        return Observation(state, launch, read_heartbeat(self.folder, launch), exits)

    def stop(self, *, force: bool) -> None:
        """See `Launcher.stop`. With `force`, an agent is first asked to kill its driver."""
        launch = read_launch(self.folder)
        if launch is None or launch.kind is not LaunchKind.SUPERVISED:
            return
        if launch.writer is None:
            # The parent has not started the writer yet, so a graceful end would save nothing.
            if force and launch.parent is not None:
                kill_group(launch.parent)
        elif force:
            # Never kill the parent, which is about to record how the writer ended.
            if not ask_agent_to_kill(self.folder, launch.writer, now_ms=clock.now_ms()):
                kill_group(launch.writer)
        else:
            terminate(launch.writer)

    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:
        launch = read_launch(self.folder)
        if launch is None or launch.kind is not LaunchKind.SUPERVISED:
            return None
        return read_lines(self.folder / LOG_FILE, launch_id=launch.id, since=since, limit_bytes=limit_bytes)

    def _parent_command(self, launch_id: str, request: LaunchRequest) -> list[str]:
        return [
            sys.executable,
            *("-m", "frazil.host.local"),
            *("--folder", str(self.folder)),
            *("--launch-id", launch_id),
            *("--fingerprint", request.spec_fingerprint),
            *("--generation", str(request.generation)),
            *(f"--stream={name}" for name in request.streams),
            "--",
            *request.command,
        ]


def _process_state(launch: Launch) -> ProcessState:
    if not is_alive(launch.writer):
        if not is_alive(launch.parent):
            return ProcessState.ENDED
        if launch.writer is not None:
            return ProcessState.ENDING
    if launch.kind is LaunchKind.FOREGROUND and launch.parent is not None and not is_alive(launch.parent):
        return ProcessState.ORPHANED
    running = {LaunchKind.FOREGROUND: ProcessState.FOREGROUND, LaunchKind.HOSTED: ProcessState.HOSTED}
    return running.get(launch.kind, ProcessState.RUNNING)


STARTED = b"started"
CANNOT_START_CODE = 127
"""Exit code that is recorded if the command cannot be started, as in a shell."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one writer, hold its lock, and record its exit.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--launch-id", required=True)
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--stream", action="append", default=[], dest="streams")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    lock = WriterLock(options.folder)
    try:
        lock_fd = lock.acquire()
    except WriterBusy as busy:
        print(busy, file=sys.stderr)
        return busy.exit_code
    answer, write_end = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        os._exit(_run_detached(options, lock, lock_fd=lock_fd, write_end=write_end))
    os.close(write_end)
    report = os.fdopen(answer, "rb").read()
    if report == STARTED:
        return 0
    print(report.decode() or "the parent process ended before the writer started", file=sys.stderr)
    return 1


def _run_detached(options: argparse.Namespace, lock: WriterLock, *, lock_fd: int, write_end: int) -> int:
    os.setsid()
    launch = Launch(
        id=options.launch_id,
        kind=LaunchKind.SUPERVISED,
        launched_at_ms=clock.now_ms(),
        spec_fingerprint=options.fingerprint,
        generation=options.generation,
        application=options.folder.name,
        streams=tuple(options.streams),
        parent=identify_process(os.getpid()),
    )
    lock.record(launch)
    rotate_log(options.folder)
    redirect_output(options.folder / LOG_FILE)
    try:
        writer = _start(options.command, lock_fd)
    except OSError as error:
        problem = f"cannot start the writer's command {options.command[0]}: {error.strerror}"
        print(problem, file=sys.stderr, flush=True)
        record_exit(options.folder, launch, code=CANNOT_START_CODE, ended_at_ms=clock.now_ms())
        os.write(write_end, problem.encode())
        return 1
    lock.record(dataclasses.replace(launch, writer=identify_process(writer.pid)))
    os.write(write_end, STARTED)
    os.close(write_end)
    # Its JVM and Python workers must end before the lock is free. Until the writer is reaped, its id stays its group's.
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    end_group(writer.pid, timeout_s=GROUP_END_TIMEOUT_S, ask=True)
    code = writer.wait()
    record_exit(options.folder, launch, code=code if code >= 0 else 128 - code, ended_at_ms=clock.now_ms())
    return 0


def _start(command: Sequence[str], lock_fd: int) -> subprocess.Popen[bytes]:
    """Start the writer with the inherited lock, as the leader of its own process group. Forward every SIGTERM to it."""
    started: list[subprocess.Popen[bytes]] = []
    requested = False

    def forward(_number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        for writer in started:
            writer.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    environment = {**os.environ, INHERITED_LOCK: str(lock_fd)}
    writer = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[lock_fd], process_group=0)
    started.append(writer)
    if requested:
        started[0].send_signal(signal.SIGTERM)
    return started[0]


if __name__ == "__main__":
    sys.exit(main())
