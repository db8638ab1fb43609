"""The small parent process of a supervised writer: `python -m frazil.host.parent --folder F ... -- COMMAND...`

A detached child's exit code is lost unless a process waits for the child. The parent takes the writer's lock, leaves
the caller's session, starts the command, forwards SIGTERM, waits, and records how the writer ended.

The parent answers its caller with exit code 0 once the command runs. It answers with the exit code of WriterBusy if
another writer holds the lock, and with 1 if the command cannot be started. If the parent is killed, the writer
continues to run, and holds the lock through the inherited file descriptor.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from frazil import clock
from frazil.errors import WriterBusy
from frazil.host.endings import record_exit
from frazil.host.lock import INHERITED_LOCK, WriterLock
from frazil.host.processes import end_group, mark
from frazil.host.records import Launch, LaunchKind
from frazil.host.writer_log import LOG_FILE, redirect, rotate

STARTED = b"started"
CANNOT_START = 127
GROUP_ENDS_WITHIN_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the lock, go into the background, and report to the caller whether the writer runs."""
    options = _parser().parse_args(arguments)
    lock = WriterLock(options.folder)
    try:
        lock_fd = lock.acquire()
    except WriterBusy as busy:
        print(busy, file=sys.stderr)
        return busy.exit_code
    answer, tell = os.pipe()
    if os.fork() == 0:
        os.close(answer)
        os._exit(_run_detached(options, lock, lock_fd=lock_fd, tell=tell))
    os.close(tell)
    said = os.fdopen(answer, "rb").read()
    if said == STARTED:
        return 0
    print(said.decode() or "the parent ended before the writer ran", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one writer, hold its lock, write down its exit.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--launch-id", required=True)
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--stream", action="append", default=[], dest="streams")
    parser.add_argument("command", nargs="+")
    return parser


def _run_detached(options: argparse.Namespace, lock: WriterLock, *, lock_fd: int, tell: int) -> int:
    """Start the writer in the background, in a separate session; report, wait, record the exit."""
    os.setsid()
    launch = Launch(
        id=options.launch_id,
        kind=LaunchKind.SUPERVISED,
        launched_at_ms=clock.now_ms(),
        spec_fingerprint=options.fingerprint,
        generation=options.generation,
        application=options.folder.name,
        streams=tuple(options.streams),
        parent=mark(os.getpid()),
    )
    lock.record(launch)
    rotate(options.folder)
    redirect(options.folder / LOG_FILE)
    try:
        writer = _start(options.command, lock_fd)
    except OSError as error:
        problem = f"the writer's command {options.command[0]} cannot be started: {error.strerror}"
        print(problem, file=sys.stderr, flush=True)
        record_exit(options.folder, launch, code=CANNOT_START, ended_at_ms=clock.now_ms())
        os.write(tell, problem.encode())
        return 1
    lock.record(dataclasses.replace(launch, writer=mark(writer.pid)))
    os.write(tell, STARTED)
    os.close(tell)
    code = writer.wait()
    # Its JVM and Python workers must end before the lock is free for the next writer.
    end_group(writer.pid, within_s=GROUP_ENDS_WITHIN_S, ask=True)
    record_exit(options.folder, launch, code=code if code >= 0 else 128 - code, ended_at_ms=clock.now_ms())
    return 0


def _start(command: Sequence[str], lock_fd: int) -> subprocess.Popen[bytes]:
    """Start the writer with the lock, as the leader of its own process group. Forward every SIGTERM to the writer."""
    started: list[subprocess.Popen[bytes]] = []
    requested = False

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        for writer in started:
            writer.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started.append(
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, INHERITED_LOCK: str(lock_fd)},
            pass_fds=[lock_fd],
            process_group=0,
        )
    )
    if requested:
        started[0].send_signal(signal.SIGTERM)
    return started[0]


if __name__ == "__main__":
    sys.exit(main())
