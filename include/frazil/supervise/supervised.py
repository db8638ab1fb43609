"""The programs that a supervisor can supervise: a stream's own writer, or a shared application."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from frazil import clock
from frazil.errors import DesiredMoved, FrazilError, SpecError, error_text
from frazil.history.objects import HistoryStore
from frazil.home import home, run_folder
from frazil.host.launcher import Launcher, LaunchRequest, build_writer_environment
from frazil.host.local import LocalLauncher
from frazil.lineage.facts import PARENT_VARIABLE
from frazil.spec.application import Application, group_applications
from frazil.spec.last_valid import MAX_FOLDER_ABSENCE_MS, STREAMS, find_declared, recall_declaration
from frazil.spec.load import FOLDER_INDEX, find_stream, list_stream_files, load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.references import find_connections as declared_connections
from frazil.spec.references import find_environment_names
from frazil.spec.yaml_file import read_mapping
from frazil.supervise.decision import (
    DesiredMode,
    DesiredState,
    RemovedDeclaration,
    SupervisionPolicy,
    UnreadableState,
    ValidDeclaration,
)
from frazil.supervise.desired_state import DesiredStore, open_desired_store, table_fingerprint
from frazil.table.tables import load_stream_table

FetchConnections = Callable[[frozenset[str]], Mapping[str, str]]
"""Returns Airflow connections, as JSON or URI, by their ids. May block."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run: its name, the folder of the streams' declarations, and its Python file."""

    name: str
    streams: Path
    main: Path
    parent: str | None = None
    """The OpenLineage parent run. OPENLINEAGE_PARENT_ID in the environment takes precedence."""

    def build_launch_request(
        self,
        connections: Mapping[str, str],
        *,
        variables: Collection[str],
        fingerprint: str,
        generation: int,
        streams: tuple[str, ...],
    ) -> LaunchRequest:
        python = sys.executable
        environment = build_writer_environment(
            variables, os.environ, connections=connections, python=python, home=str(home())
        )
        return LaunchRequest(
            command=(python, str(self.main), self.name, "--streams", str(self.streams)),
            environment=environment if self.parent is None else {PARENT_VARIABLE: self.parent, **environment},
            spec_fingerprint=fingerprint,
            generation=generation,
            streams=streams,
        )


class SupervisedProgram(ABC):
    def __init__(self, program: Program, *, clock: Callable[[], int] = clock.now_ms) -> None:
        self._program, self.clock = program, clock

    @property
    def name(self) -> str:
        return self._program.name

    @property
    def folder(self) -> Path:
        return run_folder(self.name)

    def launcher(self) -> Launcher:
        return LocalLauncher(self.name)

    @abstractmethod
    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration: ...

    def policy(self) -> SupervisionPolicy:
        return SupervisionPolicy()

    @abstractmethod
    def desired(self) -> DesiredState | UnreadableState:
        """Read the desired state. Never raises an error."""

    def table_fingerprint(self) -> str | None:
        return None

    @abstractmethod
    def build_launch_request(self, *, generation: int, connections: FetchConnections) -> LaunchRequest:
        """Build the request to launch the writer. Raises SpecError."""

    def on_launch(self) -> None:  # noqa: B027 - only a stream has a table
        """React to a launch: the writer may create a missing table."""

    def history(self) -> HistoryStore | None:
        return None

    @abstractmethod
    def pause(self, *, by: str, reason: str) -> None:
        """Store a pause in the name of the user `by`. Raises the catalog's errors."""

    @abstractmethod
    def resume(self, *, by: str, reason: str) -> None:
        """End a pause that the same user `by` requested. Raises the catalog's errors."""


class SupervisedStream(SupervisedProgram):
    def __init__(
        self, program: Program, declaration: Declaration | None = None, *, clock: Callable[[], int] = clock.now_ms
    ) -> None:
        super().__init__(program, clock=clock)
        self._declaration = declaration or Declaration(program.name, program.streams, clock=clock)
        self._removed_since_ms: int | None = None
        self._table = TableReader(clock=clock)

    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration:
        """Read the declaration. A stream that a shared application supervises counts as removed."""
        declared, spec = self._declaration.read(), self._declaration.spec
        if spec is None or spec.application is None or isinstance(declared, RemovedDeclaration):
            self._removed_since_ms = None
            return declared
        self._removed_since_ms = self._removed_since_ms or self.clock()
        return RemovedDeclaration(self._removed_since_ms)

    def policy(self) -> SupervisionPolicy:
        return SupervisionPolicy.for_stream(self._declaration.spec) if self._declaration.spec else SupervisionPolicy()

    def desired(self) -> DesiredState | UnreadableState:
        return self._table.desired(self._declaration.spec)

    def table_fingerprint(self) -> str | None:
        spec = self._declaration.spec
        return None if spec is None else self._table.fingerprint(spec)

    def build_launch_request(self, *, generation: int, connections: FetchConnections) -> LaunchRequest:
        spec = self._valid_spec()
        return self._program.build_launch_request(
            connections(declared_connections(spec)),
            variables=find_environment_names(spec),
            fingerprint=spec.fingerprint(),
            generation=generation,
            streams=(self.name,),
        )

    def on_launch(self) -> None:
        self._table.forget()

    def history(self) -> HistoryStore | None:
        spec = self._declaration.spec
        table = load_stream_table(spec) if spec is not None else None
        return None if table is None else HistoryStore.open(table, self.name)

    def pause(self, *, by: str, reason: str) -> None:
        spec = self._valid_spec()
        if not _is_paused(self._table.desired(spec)):
            self._table.store(spec).pause(by=by, reason=reason)

    def resume(self, *, by: str, reason: str) -> None:
        spec = self._valid_spec()
        _undo_pause(self._table.store(spec), self._table.desired(spec), by=by, reason=reason)

    def _valid_spec(self) -> StreamSpec:
        if self._declaration.spec is None:
            self._declaration.read()
        if self._declaration.spec is None:
            raise SpecError(f"{self._program.streams} has no valid declaration of stream {self.name}")
        return self._declaration.spec


class SupervisedApplication(SupervisedProgram):
    """A shared application, which supervises its streams' writers itself. Its pause is stored on this host."""

    def __init__(self, program: Program, *, clock: Callable[[], int] = clock.now_ms) -> None:
        super().__init__(program, clock=clock)
        self._application: Application | None = None
        self._missing_since_ms: int | None = None

    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration:
        now_ms = self.clock()
        files = find_declared(self._program.streams, STREAMS, now_ms=now_ms)
        specs = [stream.spec for stream in files if stream.spec is not None and not stream.removed]
        if any(spec.name == self.name for spec in specs):  # they would share a run folder, and end each other
            return UnreadableState(f"a stream and an application are both named {self.name!r}; rename one of them")
        application = group_applications(specs).get(self.name)
        if application is not None:
            self._application, self._missing_since_ms = application, None
            return ValidDeclaration(application.fingerprint())
        if problems := [stream.problem for stream in files if stream.spec is None and stream.problem]:
            return UnreadableState("\n".join(problems))  # a file that was never valid might declare it
        self._missing_since_ms = min(self._missing_since_ms or now_ms, now_ms)
        return RemovedDeclaration(self._missing_since_ms)

    def desired(self) -> DesiredState | UnreadableState:
        try:
            return self._store.read()
        except (FrazilError, OSError) as error:
            return UnreadableState(error_text(error))

    def build_launch_request(self, *, generation: int, connections: FetchConnections) -> LaunchRequest:
        if (application := self._application) is None:
            raise SpecError(f"no stream in {self._program.streams} belongs to the application {self.name!r}")
        return self._program.build_launch_request(
            connections(application.connections),
            variables=application.environment,
            fingerprint=application.fingerprint(),
            generation=generation,
            streams=tuple(spec.name for spec in application.streams),
        )

    def pause(self, *, by: str, reason: str) -> None:
        if not _is_paused(self.desired()):
            self._store.pause(by=by, reason=reason)

    def resume(self, *, by: str, reason: str) -> None:
        _undo_pause(self._store, self.desired(), by=by, reason=reason)

    @property
    def _store(self) -> DesiredStore:
        return DesiredStore(self.name, None)


def _undo_pause(store: DesiredStore, observed: DesiredState | UnreadableState, *, by: str, reason: str) -> None:
    if isinstance(observed, DesiredState) and _is_paused(observed) and observed.by == by:
        with suppress(DesiredMoved):
            store.resume(by=by, reason=reason, after=observed.generation)


def _is_paused(desired: DesiredState | UnreadableState) -> bool:
    return isinstance(desired, DesiredState) and desired.mode is DesiredMode.PAUSED


RELOAD_INTERVAL_MS = 10_000


class TableReader:
    def __init__(self, *, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._store: DesiredStore | None = None
        self._problem: str | None = None
        self._reload_at_ms = 0
        self._fingerprint: tuple[int, str | None] = (0, None)

    def desired(self, spec: StreamSpec | None) -> DesiredState | UnreadableState:
        if spec is None:
            return UnreadableState("the stream's table is unknown, because the stream has no valid declaration")
        try:
            store = self._open(spec)
            problem = self._problem or "the table is not loaded yet; frazil will retry"
            return store.read() if store else UnreadableState(problem)
        except Exception as error:  # catalogs and storage raise what their clients raise
            self._store = self._store if isinstance(error, FrazilError) else None
            return UnreadableState(error_text(error))

    def fingerprint(self, spec: StreamSpec) -> str | None:
        read_at_ms, current = self._fingerprint
        if self._clock() - read_at_ms < RELOAD_INTERVAL_MS:
            return current
        try:
            table = load_stream_table(spec)
            current = table_fingerprint(table, spec.name) if table is not None else None
        except Exception:  # read again soon; until then nothing counts as changed
            current = None
        self._fingerprint = (self._clock(), current)
        return current

    def store(self, spec: StreamSpec) -> DesiredStore:
        if self._store is None or not self._store.is_with_table:
            self._store = open_desired_store(spec)
        return self._store

    def forget(self) -> None:
        self._store, self._reload_at_ms = None, 0

    def _open(self, spec: StreamSpec) -> DesiredStore | None:
        if (self._store is None or not self._store.is_with_table) and self._clock() >= self._reload_at_ms:
            self._reload_at_ms = self._clock() + RELOAD_INTERVAL_MS
            self._problem = None
            try:
                self._store = open_desired_store(spec)
            except Exception as error:  # as in `desired`; kept until the next load
                self._store = None
                self._problem = error_text(error)
        return self._store


class Declaration:
    def __init__(self, stream: str, folder: Path, *, clock: Callable[[], int]) -> None:
        self.spec: StreamSpec | None = None
        self._stream, self._folder, self._clock = stream, folder, clock
        self._missing_since_ms: int | None = None

    def read(self) -> ValidDeclaration | UnreadableState | RemovedDeclaration:
        """Read the current declaration. A stream does not count as removed while the folder or a file is unreadable."""
        if (own_spec := self._read_own_file()) is not None:
            self.spec, self._missing_since_ms = own_spec, None
            return ValidDeclaration(own_spec.fingerprint())
        try:
            os.listdir(self._folder)  # noqa: PTH208 - glob() returns nothing for an unreadable folder
        except OSError as error:
            return UnreadableState(f"cannot read {self._folder}: {error.strerror}")
        try:
            self.spec = find_stream(self._folder, self._stream)
        except SpecError as error:
            self.spec = self.spec or recall_declaration(self._folder, self._stream, STREAMS)
            if not self._is_missing():
                return UnreadableState(str(error))
            now_ms = self._clock()
            self._missing_since_ms = min(self._missing_since_ms or now_ms, now_ms)
            if not list_stream_files(self._folder) and now_ms - self._missing_since_ms < MAX_FOLDER_ABSENCE_MS:
                removed = f"its streams count as removed after {MAX_FOLDER_ABSENCE_MS // 1000} s"
                return UnreadableState(f"{self._folder} is empty (an unmounted volume?); {removed}")
            return RemovedDeclaration(self._missing_since_ms)
        self._missing_since_ms = None
        return ValidDeclaration(self.spec.fingerprint())

    def _read_own_file(self) -> StreamSpec | None:
        """Return the spec of the stream's own file; None makes the caller read the whole folder."""
        path = FOLDER_INDEX.find_file(self._folder, self._stream)
        try:
            spec = load_stream(path) if path is not None else None
        except SpecError:
            return None
        return spec if spec is not None and spec.name == self._stream else None

    def _is_missing(self) -> bool:
        """Whether no file declares the stream. False while an unreadable file may declare it."""
        try:
            return all(read_mapping(path).get("name") != self._stream for path in list_stream_files(self._folder))
        except SpecError:
            return False
