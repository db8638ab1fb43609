"""Locks a run folder, so that only one writer of an application runs on a host. The lock is a `flock` on its file
`lock`, which the kernel releases if its holder crashes. The file also contains the last holder's launch as JSON.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import time
import uuid
from pathlib import Path

from frazil import clock
from frazil.errors import EnvironmentUnusable, WriterBusy
from frazil.home import make_folder
from frazil.host.processes import GROUP_END_TIMEOUT_S, identify_process, is_alive
from frazil.host.records import Launch, LaunchKind
from frazil.typed_json import convert

LOCK_FILE = "lock"
INHERITED_LOCK = "FRAZIL_WRITER_LOCK_FD"
"""The variable with the file descriptor of the lock that a supervised writer inherits from its parent."""


class WriterLock:
    """The lock of a run folder, held by a foreground writer, or by a supervised writer and its parent."""

    def __init__(self, folder: Path, *, streams: tuple[str, ...] = ()) -> None:
        self._path, self._streams = folder / LOCK_FILE, streams
        self._fd: int | None = None
        self._former: Launch | None = None

    def acquire(self) -> int:
        """Take the lock or inherit it, and return its file descriptor. Raises WriterBusy with the holder's pid."""
        if (inherited := self._inherited_fd()) is not None:
            self._fd = inherited
            return inherited
        make_folder(self._path.parent)
        fd = self._open_file()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise WriterBusy(self._busy_message()) from None
        self._fd, self._former = fd, read_launch(self._path.parent)
        self.record(
            Launch(
                id=uuid.uuid4().hex,
                kind=LaunchKind.FOREGROUND,
                launched_at_ms=clock.now_ms(),
                writer=identify_process(os.getpid()),
                application=self._path.parent.name,
                streams=self._streams,
            )
        )
        return fd

    def _open_file(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            problem = f"{self._path} is a symbolic link, which frazil does not follow: remove the link"
            raise EnvironmentUnusable(problem) from None

    def record(self, launch: Launch) -> None:
        """Write the holder's launch to the lock file. Only the holder may call this."""
        if self._fd is None:
            raise RuntimeError("only the holder of the lock may write to it")
        text = json.dumps(dataclasses.asdict(launch)).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        """Release the lock if it is held. Remove this process, which may continue to run, from the record."""
        if self._fd is None:
            return
        launch = read_launch(self._path.parent)
        if launch is not None and launch.kind in {LaunchKind.FOREGROUND, LaunchKind.HOSTED}:
            self.record(dataclasses.replace(launch, parent=None, writer=None))
        os.close(self._fd)
        self._fd = None

    def __enter__(self) -> WriterLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the last writer's record, which the command that held the lock had replaced."""
        if self._fd is not None and self._former is not None:
            self.record(self._former)
        elif self._fd is not None:
            os.ftruncate(self._fd, 0)
        self.release()

    def _inherited_fd(self) -> int | None:
        raw = os.environ.get(INHERITED_LOCK, "")
        if not raw.isdigit():
            return None
        fd = int(raw)
        try:
            if not os.path.samestat(os.fstat(fd), self._path.stat()):
                return None
        except OSError:
            return None
        os.set_inheritable(fd, False)
        return fd

    def _busy_message(self) -> str:
        application = self._path.parent.name
        holder = read_launch(self._path.parent)
        recorded = (("parent", holder.parent), ("writer", holder.writer)) if holder else ()
        running = {name: process.pid for name, process in recorded if process and is_alive(process)}
        if holder is None or (holder.writer and not running):
            return f"another process holds {self._path}; wait for it to end, or see `frazil status {application}`"
        if holder.writer and "writer" not in running:
            return (
                f"the last writer of {application} has ended, and its parent (pid {running['parent']}) holds "
                f"{self._path} until its JVM and Python workers have ended: try again in {GROUP_END_TIMEOUT_S:.0f} s"
            )
        if holder.kind is LaunchKind.FOREGROUND and holder.parent and "parent" not in running:
            return (
                f"the writer of {application} (pid {running['writer']}) holds {self._path}. Its `frazil run` was "
                "killed, so it ends after its current batch: try again then"
            )
        pids = ", ".join(f"{name} {pid}" for name, pid in running.items())
        stop = (
            f"end that process (Ctrl-C where it runs{f', or `kill {holder.writer.pid}`' if holder.writer else ''})"
            if holder.kind is LaunchKind.FOREGROUND
            else f"stop it with `frazil pause {application}`"
        )
        if holder.kind is LaunchKind.HOSTED:
            stop = f"the application {holder.application} runs the writer: {stop}"
        return (
            f"a {holder.kind} writer of {application} holds {self._path} ({pids or 'starting'}); {stop}, then try again"
        )


def read_launch(folder: Path) -> Launch | None:
    """Return the launch in a lock file, or None. Reads an incomplete record again, because its holder is writing it."""
    for _ in range(5):
        try:
            text = (folder / LOCK_FILE).read_text()
            launch = json.loads(text) if text else None
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)
        else:
            return None if launch is None else convert(launch, Launch)
    return None
