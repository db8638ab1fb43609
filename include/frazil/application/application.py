"""Runs a shared application: supervises the writers of its streams, each in a thread of this process. Each stream has
its own supervisor and its own decisions: if one ends or is paused, the others continue.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from frazil import clock
from frazil.application.launcher import HostedLauncher, SharedEngine
from frazil.errors import FrazilError, SpecError, WorkerDied
from frazil.events import BatchCommitted, Event, Sink
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import LaunchRequest
from frazil.host.records import LaunchKind
from frazil.host.supervising_run import confirm_given_up
from frazil.host.writer_log import rotate_full_log
from frazil.spec.last_valid import STREAMS, DeclaredFile, find_declared
from frazil.spec.model import StreamSpec
from frazil.stream.hosting import Hosting
from frazil.stream.writer import Writer
from frazil.supervise.decision import RemovedDeclaration, UnreadableState, ValidDeclaration, WriterAction
from frazil.supervise.supervised import Declaration, FetchConnections, Program, SupervisedStream
from frazil.supervise.supervisor import SupervisionStep, Supervisor
from frazil.table.parallel import DaemonThreads

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
MAX_CHECKS_PER_SECOND = 20
"""Maximum number of streams checked per second. A check takes 1 ms or more, and two requests to an object store."""
CHECK_INTERVAL_S = 2.0
MAX_CHECK_THREADS = 2
"""Maximum number of threads per catalog: an unresponsive catalog delays only the checks of its own streams."""
KILL_TIMEOUT_S = 120.0
"""Time in which a killed writer must end. Otherwise the application ends, because a thread cannot be killed."""


@dataclass(slots=True)
class HostedState:
    launcher: HostedLauncher
    supervisor: Supervisor
    catalog: str | None = None
    next_check_at_s: float = 0.0
    pending_check: Future[SupervisionStep | None] | None = None
    last_logged: tuple[object, ...] = ()
    last_commit_at_ms: int | None = None


class HostedStream(SupervisedStream):
    """A supervised stream whose writer runs in this process, without a command or environment."""

    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration:
        return self._declaration.read()

    def build_launch_request(self, *, generation: int, connections: FetchConnections) -> LaunchRequest:  # noqa: ARG002
        spec = self._valid_spec()
        return LaunchRequest((), {}, spec.fingerprint(), generation, (self.name,))


@dataclass(slots=True)
class WriterApplication:
    """Supervises the streams of one application until `stop`, which a signal handler may call."""

    name: str
    folder: Path
    engine: SharedEngine
    fingerprint: str
    hosting: Hosting
    sinks: tuple[Sink, ...] = ()
    stopping: threading.Event = field(default_factory=threading.Event)
    hosted: dict[str, HostedState] = field(default_factory=dict)
    _streams: DeclaredStreams = field(init=False)
    _check_threads: dict[str | None, DaemonThreads] = field(default_factory=dict)
    _log_checked_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._streams = DeclaredStreams(self.name, self.folder, clock.now_ms)

    def stop(self) -> None:
        self.stopping.set()

    def run(self) -> None:
        """Supervise the writers until stopped. Raises errors that end all writers, such as a dead JVM."""
        try:
            while not self.stopping.is_set():
                self.check_streams()
                self._write_heartbeat(Phase.WAITING)
                self._raise_if_failed()
                self.stopping.wait(POLL_INTERVAL_S)
        finally:
            for threads in self._check_threads.values():
                threads.close()
            self._end_all()

    def catch_up(self) -> dict[str, int]:
        """Run each stream's writer until all records now in Kafka are committed. Returns the exit codes by stream."""
        self._streams.refresh()
        for name, file in self._streams.declared.items():
            if file.spec is not None and not file.problem:
                host = self._host(name, until_caught_up=True)
                try:
                    host.launcher.launch(LaunchRequest((), {}, file.spec.fingerprint(), 0, (name,)))
                except FrazilError as error:  # for example, another process runs the stream
                    log.error("cannot start the writer of stream %s: %s", name, error)  # noqa: TRY400
                    host.launcher.code = error.exit_code
        while any(host.launcher.is_running for host in self.hosted.values()):
            if self.stopping.wait(POLL_INTERVAL_S):
                self._end_all()
            self._write_heartbeat(Phase.WAITING)
            self._raise_if_failed()
        self._write_heartbeat(Phase.ENDED)
        return {name: host.launcher.code or 0 for name, host in self.hosted.items()}

    def check_streams(self) -> None:
        self._streams.refresh()
        for name, file in self._streams.declared.items():
            if name not in self.hosted:
                self._host(name)
            if file.spec is not None:
                self.hosted[name].catalog = file.spec.table.catalog
        now_s, every_s = time.monotonic(), max(CHECK_INTERVAL_S, len(self.hosted) / MAX_CHECKS_PER_SECOND)
        for name, host in list(self.hosted.items()):
            if host.pending_check is not None and host.pending_check.done():
                self._handle_result(name, host, host.pending_check)
                host.pending_check = None
            if host.pending_check is None and now_s >= host.next_check_at_s and name in self.hosted:
                host.next_check_at_s = now_s + every_s
                if (threads := self._check_threads.get(host.catalog)) is None:
                    threads = DaemonThreads(MAX_CHECK_THREADS, f"supervisor-{host.catalog or 'default'}")
                    self._check_threads[host.catalog] = threads
                host.pending_check = threads.submit(partial(self._check_stream, name, host))

    def _host(self, name: str, *, until_caught_up: bool = False) -> HostedState:
        def make() -> Writer:
            file = self._streams.declared.get(name)
            if file is None or file.spec is None:
                raise SpecError(f"stream {name} no longer belongs to the application {self.name}")
            sinks = (record_commit, *self.sinks)
            return Writer(file.spec, self.engine, until_caught_up=until_caught_up, sinks=sinks, hosting=self.hosting)

        def record_commit(event: Event) -> None:
            if isinstance(event.payload, BatchCommitted):
                self.hosted[name].last_commit_at_ms = event.at_ms

        launcher = HostedLauncher(name, application=self.name, make=make, cancel=self.engine.cancel)
        stream = HostedStream(Program(name, self.folder, Path()), HostedDeclaration(name, self._streams))
        host = HostedState(launcher, Supervisor(stream, launcher=launcher))
        self.hosted[name] = host
        return host

    def _check_stream(self, name: str, host: HostedState) -> SupervisionStep | None:
        """Carry out the stream's due action. Returns None while another process runs the stream."""
        if (other := host.launcher.find_launch_elsewhere()) is not None:
            if other.kind is LaunchKind.SUPERVISED:  # a foreground writer runs until its user stops it
                host.launcher.stop_writer_elsewhere()
            if host.last_logged != (other.id,):
                host.last_logged = (other.id,)
                sentence = "another process on this host still runs the writer"
                log.info(f"%s: {sentence} (%s); it starts here when that process ends", name, other.kind)
            return None
        return host.supervisor.step()

    def _handle_result(self, name: str, host: HostedState, pending_check: Future[SupervisionStep | None]) -> None:
        try:
            step = pending_check.result()
        except Exception:  # a full disk, or an unreadable run folder; the others continue
            log.exception("cannot supervise stream %s", name)
            return
        if step is None:
            return
        decision = step.decision
        if decision.action is WriterAction.GIVE_UP:
            fingerprint = step.observed.table_fingerprint
            confirm_given_up(name, decision.subject, reason=decision.reason, table_fingerprint=fingerprint)
        if decision.action is WriterAction.END:
            del self.hosted[name]
        state = (decision.action, decision.cause, decision.until_ms, step.problem)
        if state == host.last_logged:
            return
        host.last_logged = state
        level = logging.ERROR if decision.action is WriterAction.GIVE_UP or step.problem else logging.INFO
        problem = f"; the action failed and will be retried: {step.problem}" if step.problem else ""
        log.log(level, "%s: %s (%s): %s%s", name, decision.action, decision.cause, decision.reason, problem)

    def _raise_if_failed(self) -> None:
        """Raise the engine's error, or WorkerDied if a killed writer does not end."""
        if self.engine.failed is not None:
            raise self.engine.failed
        now_s = time.monotonic()
        for name, host in self.hosted.items():
            killed_s = host.launcher.killed_at_s
            if killed_s is not None and host.launcher.is_running and now_s - killed_s > KILL_TIMEOUT_S:
                raise WorkerDied(
                    f"the writer of stream {name!r} hangs and cannot be stopped, so the application {self.name} ends; "
                    "after its next start, each stream continues from the position in its table"
                )

    def _write_heartbeat(self, phase: Phase) -> None:
        now_ms = clock.now_ms()
        commits = [host.last_commit_at_ms for host in self.hosted.values() if host.last_commit_at_ms]
        heartbeat = Heartbeat(
            stream=self.name,
            pid=os.getpid(),
            spec_fingerprint=self.fingerprint,
            phase=phase,
            written_at_ms=now_ms,
            advanced_at_ms=self._advanced_at_ms() if phase is Phase.STOPPING else now_ms,
            last_commit_at_ms=max(commits, default=None),
            error=None if self.engine.failed is None else str(self.engine.failed),
        )
        folder = run_folder(self.name)
        try:
            heartbeat.write(folder)
            if time.monotonic() - self._log_checked_s >= 60.0:
                self._log_checked_s = time.monotonic()
                rotate_full_log(folder)
        except OSError as error:
            log.warning("application %s: cannot write to its run folder: %s", self.name, error)

    def _advanced_at_ms(self) -> int:
        """Return when a writer last made progress. Without progress, the supervisor kills the application."""
        heartbeats = [host.launcher.observe().heartbeat for host in self.hosted.values() if host.launcher.is_running]
        return max(
            (heartbeat.advanced_at_ms for heartbeat in heartbeats if heartbeat is not None), default=clock.now_ms()
        )

    def _end_all(self) -> None:
        hosted = list(self.hosted.values())
        for host in hosted:
            host.launcher.stop_with_application()
        while running := [host for host in hosted if host.launcher.is_running and not host.launcher.killed_at_s]:
            for host in running:
                host.launcher.stop_with_application()  # a concurrent check may have launched a new writer
            self._write_heartbeat(Phase.STOPPING)
            running[0].launcher.join(POLL_INTERVAL_S)
            if self.engine.failed is not None and not self._join_all():
                break
        self._write_heartbeat(Phase.ENDED)

    def _join_all(self) -> bool:
        deadline_s = time.monotonic() + 10.0
        for host in self.hosted.values():
            host.launcher.join(max(0.0, deadline_s - time.monotonic()))
        return not any(host.launcher.is_running for host in self.hosted.values())


@dataclass(slots=True)
class DeclaredStreams:
    application: str
    folder: Path
    clock: Callable[[], int]
    declared: dict[str, DeclaredFile[StreamSpec]] = field(default_factory=dict)

    def refresh(self) -> None:
        files: dict[str, list[DeclaredFile[StreamSpec]]] = defaultdict(list)
        for stream in find_declared(self.folder, STREAMS, now_ms=self.clock()):
            if stream.spec is not None and not stream.removed:
                files[stream.spec.name].append(stream)
        self.declared = {
            name: declarations[0] if len(declarations) == 1 else self._mark_duplicate(name, declarations)
            for name, declarations in files.items()
            if any(stream.spec is not None and stream.spec.application == self.application for stream in declarations)
        }

    def _mark_duplicate(self, name: str, files: Sequence[DeclaredFile[StreamSpec]]) -> DeclaredFile[StreamSpec]:
        """Return a declaration whose problem keeps a new writer from starting. A running writer continues."""
        previous = self.declared.get(name)
        paths = " and ".join(str(file.path) for file in files)
        problem = f"the stream {name!r} is declared in {paths}; rename or remove all but one"
        return replace(files[0], spec=None if previous is None else previous.spec, problem=problem)


class HostedDeclaration(Declaration):
    """Reads one stream's declaration. A stream that left the application counts as removed."""

    def __init__(self, stream: str, streams: DeclaredStreams) -> None:
        super().__init__(stream, streams.folder, clock=streams.clock)
        self._streams = streams

    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration:
        file = self._streams.declared.get(self._stream)
        if file is None:
            self._missing_since_ms = self._missing_since_ms or self._streams.clock()
            return RemovedDeclaration(self._missing_since_ms)
        self._missing_since_ms, self.spec = None, file.spec
        if file.problem or file.spec is None:
            return UnreadableState(file.problem or f"{file.path} has never been valid")
        return ValidDeclaration(file.spec.fingerprint())
