"""Launches a stream's writer as a thread of this process. Its run folder is like a separate process's.
The writers share one Spark engine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, Self

from frazil import clock
from frazil.errors import EnvironmentUnusable, FrazilError, WriterBusy, explain
from frazil.home import run_folder
from frazil.host.exits import ENDED_WITH_APPLICATION, record_exit
from frazil.host.launcher import Launcher, LaunchRequest, LogChunk, LogPosition, Observation, ProcessState
from frazil.host.local import LocalLauncher
from frazil.host.lock import WriterLock
from frazil.host.processes import identify_process
from frazil.host.records import Launch, LaunchKind
from frazil.stream.engine import Engine, TaskAnswer
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows
from frazil.table.parallel import DaemonThreads

log = logging.getLogger(__name__)


class HostedWriter(Protocol):
    def run(self) -> object: ...

    def stop(self) -> None: ...


class HostedLauncher(Launcher):
    """Launches one stream's writer in this process, with the lock and records of a run folder."""

    def __init__(
        self, stream: str, *, application: str, make: Callable[[], HostedWriter], cancel: Callable[[str], None]
    ) -> None:
        self._stream, self._application, self._make, self._cancel = stream, application, make, cancel
        self._outside = LocalLauncher(stream)
        self._folder = run_folder(stream)
        self._launch: Launch | None = None
        self._writer: HostedWriter | None = None
        self._thread: threading.Thread | None = None
        self._ends_with_application = False
        self.killed_at_s: float | None = None
        """Monotonic time of the first request to kill the writer."""
        self.code: int | None = None
        """Exit code of the last writer; None while a writer runs, and before the first."""

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def launch(self, request: LaunchRequest) -> Launch:
        """See `Launcher.launch`. The request's command and environment are ignored."""
        if self._ends_with_application:
            raise WriterBusy(f"the application {self._application} is stopping and starts no more writers")
        lock = WriterLock(self._folder, streams=(self._stream,))
        lock.acquire()
        try:
            launch = Launch(
                id=uuid.uuid4().hex,
                kind=LaunchKind.HOSTED,
                launched_at_ms=clock.now_ms(),
                spec_fingerprint=request.spec_fingerprint,
                generation=request.generation,
                writer=identify_process(os.getpid()),
                application=self._application,
                streams=(self._stream,),
            )
            lock.record(launch)
            writer = self._make()
            # The thread is a daemon, because a writer that hangs must not keep the process alive.
            thread = threading.Thread(target=self._run, args=(lock, launch, writer), name=self._stream, daemon=True)
            previous = self._launch, self._writer, self._thread, self.killed_at_s, self.code
            self._launch, self._writer, self._thread, self.killed_at_s, self.code = launch, writer, thread, None, None
            try:
                thread.start()
            except RuntimeError as error:  # the host allows no more threads
                self._launch, self._writer, self._thread, self.killed_at_s, self.code = previous
                problem = f"cannot start a thread for the writer of stream {self._stream}: {error}"
                raise EnvironmentUnusable(problem) from error
        except BaseException:
            lock.release()
            raise
        return launch

    def observe(self) -> Observation:
        is_running = self.is_running  # checked before the records, which are complete when the writer has ended
        observation = self._outside.observe()
        if self._launch is None or observation.launch is None or observation.launch.id != self._launch.id:
            return observation
        return replace(observation, process=ProcessState.RUNNING if is_running else ProcessState.ENDED)

    def find_launch_elsewhere(self) -> Launch | None:
        observation = self._outside.observe()
        is_other = observation.launch is not None and (self._launch is None or observation.launch.id != self._launch.id)
        return observation.launch if is_other and observation.process.is_alive else None

    def stop_writer_elsewhere(self) -> None:
        self._outside.stop(force=False)

    def stop(self, *, force: bool) -> None:
        if self._writer is None or not self.is_running:
            return
        self._writer.stop()
        if force:
            self.killed_at_s = self.killed_at_s or time.monotonic()
            self._cancel(self._stream)

    def stop_with_application(self) -> None:
        """Ask the writer to end because the process ends, not because of the stream."""
        self._ends_with_application = True
        self.stop(force=False)

    def read_log(self, since: LogPosition | None, *, limit_bytes: int) -> LogChunk | None:  # noqa: ARG002
        """Return None: the writer's log is part of the application's log."""
        return None

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, lock: WriterLock, launch: Launch, writer: HostedWriter) -> None:
        code, cause = 0, None
        try:
            writer.run()
        except FrazilError as failure:
            code, cause = failure.exit_code, explain(failure)
            restart_text = " The stream will be restarted after a delay." if failure.restartable else ""
            log.error("stream %s ended: %s.%s", self._stream, cause, restart_text)  # noqa: TRY400
        except BaseException as failure:
            code, cause = 1, explain(failure)
            log.exception("stream %s crashed", self._stream)
        self.code, ended_at_ms = code, clock.now_ms()
        reason = ENDED_WITH_APPLICATION if self._ends_with_application else None
        try:
            record_exit(self._folder, launch, code=code, ended_at_ms=ended_at_ms, cause=cause, stopped_for=reason)
        except OSError as failure:
            log.warning("stream %s: cannot record how its writer ended: %s", self._stream, failure)
        finally:
            lock.release()


CHECK_INTERVAL_S = 1.0


class CancellableEngine(Engine, Protocol):
    def cancel(self, stream: str) -> None:
        """Cancel the tasks of a stream's current batch, so that the batch fails."""


class SharedEngine:
    """An engine that many writers share. It runs batches in few threads, because each also needs a JVM thread."""

    def __init__(self, engine: CancellableEngine, *, batches: int) -> None:
        self._engine = engine
        self._jobs = DaemonThreads(batches, "batch")
        self._ready, self._over = threading.Event(), threading.Event()
        self._watch = threading.Thread(target=self._watch_engine, name="engine", daemon=True)
        self.failed: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[Self]:
        self._engine.__enter__()
        self._engine.warm_up()
        self._watch.start()
        try:
            yield self
        finally:
            self._over.set()
            self._jobs.close()
            self._engine.__exit__(None, None, None)

    def warm_up(self) -> None:
        """Do nothing: `running` has warmed up the engine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: other writers still use the engine."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        if not plans:
            return ()
        return self._jobs.submit(lambda: self._engine.run(plans, work)).result()

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        if not plans:
            return ()
        return self._jobs.submit(lambda: self._engine.merge(plans, work)).result()

    def ready(self, until: Callable[[], bool]) -> bool:
        return self._engine.ready(until)

    def cancel(self, stream: str) -> None:
        self._engine.cancel(stream)

    def check(self) -> None:
        self._ready.wait()
        if self.failed is not None:
            raise self.failed

    @property
    def parallelism(self) -> int:
        return self._engine.parallelism

    def _watch_engine(self) -> None:
        while True:
            try:
                self._engine.check()
            except Exception as error:  # py4j raises anything when the JVM is gone
                if not self._over.is_set():
                    self.failed = error
                self._ready.set()
                return
            self._ready.set()
            if self._over.wait(CHECK_INTERVAL_S):
                return
