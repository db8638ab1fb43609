"""Stores the desired state of a stream, running or paused, in a small object next to its journals.

Commands and Airflow see the same state on every host. As long as the stream has no table, the state is in the run
folder, and applies to one host only. If no state is stored, the stream should run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from functools import reduce

from pyiceberg.table import Table

from frazil import clock
from frazil.errors import DesiredMoved, SpecError
from frazil.home import run_folder
from frazil.spec.model import StreamSpec
from frazil.supervise.decision import DesiredMode, DesiredState
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.object_store import ObjectStore
from frazil.table.storage import LocalStore, open_store
from frazil.table.tables import load_stream_table, state_location

DESIRED_FILE = "desired.json"
CHAIN_FOLDER = "desired-after"
MAX_ATTEMPTS = 20


class DesiredStore:
    """Reads and writes the desired state of a stream. Each write is based on the newest state."""

    def __init__(self, stream: str, table: Table | None) -> None:
        self._name = stream
        self._folders = [_DesiredStateFolder(LocalStore(), f"{run_folder(stream)}")]
        """Folders with the state; writes go to the first one."""
        if table is not None:
            folder = state_location(table, stream)
            self._folders.insert(0, _DesiredStateFolder(open_store(folder, table.io.properties), folder))

    @property
    def is_with_table(self) -> bool:
        """Whether the state is stored with the table, and therefore applies on every host."""
        return len(self._folders) > 1

    def read(self) -> DesiredState:
        """Return the newest state. Raises AccessDenied, and SpecError for a malformed object."""
        return _newest_state(folder.read() for folder in self._folders)

    def pause(self, *, by: str, reason: str, after: int | None = None) -> DesiredState:
        """Store a pause. Raises DesiredMoved if the state has changed since the generation `after`."""
        return self._set(DesiredMode.PAUSED, by=by, reason=reason, after=after)

    def resume(self, *, by: str, reason: str, after: int | None = None) -> DesiredState:
        """Store that the writer runs, even if the supervisor gave up on it. Return the new state."""
        return self._set(DesiredMode.RUNNING, by=by, reason=reason, after=after)

    def restart(self, *, by: str, reason: str, after: int | None = None) -> DesiredState:
        """Store a restart: a new writer replaces a running one after its current batch. Also ends a pause."""
        return self._set(DesiredMode.RUNNING, by=by, reason=reason, after=after, restart=True)

    def _set(
        self, mode: DesiredMode, *, by: str, reason: str, after: int | None, restart: bool = False
    ) -> DesiredState:
        for _ in range(MAX_ATTEMPTS):
            try:
                own_state, *other_states = [folder.read() for folder in self._folders]
                previous = _newest_state([own_state, *other_states])
            except SpecError:
                # The lost generations were counted up from 0, so the clock exceeds them.
                previous, own_state = DesiredState(generation=clock.now_ms()), None
                self._folders[0].clear()
            if after is not None and previous.generation != after:
                break
            desired = self._next_state(previous, mode, by=by, reason=reason, restart=restart)
            if self._folders[0].put(desired, previous=own_state):
                for folder in self._folders[1:]:
                    folder.clear()
                return desired
        raise DesiredMoved(
            f"{self._name} was paused, resumed or restarted by another user at the same time: check its state and "
            "try again"
        )

    def _next_state(
        self, previous: DesiredState, mode: DesiredMode, *, by: str, reason: str, restart: bool
    ) -> DesiredState:
        now_ms = clock.now_ms()
        # A lost table may have had any number of generations.
        generation = 1 + (previous.generation if self.is_with_table else max(previous.generation, now_ms))
        restarted = generation if restart else previous.restart_generation
        return DesiredState(mode, generation, restart_generation=restarted, reason=reason, by=by, at_ms=now_ms)


class _DesiredStateFolder:
    """A folder with the desired state: the current object, and a chain of objects, each named after its predecessor.

    A write first creates its object in the chain, unless it exists: this decides which of several writes came first.
    Then it replaces the current object, which may be outdated, so reads follow the chain from there.
    """

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._path, self._after = store, f"{folder}/{DESIRED_FILE}", f"{folder}/{CHAIN_FOLDER}"

    def read(self) -> DesiredState | None:
        """Return the newest state, or None. Raises SpecError for a malformed object."""
        state = self._read_object(self._path)
        while (newer := self._read_object(self._path_after(state))) is not None:
            if state is not None and newer.generation <= state.generation:
                raise SpecError(
                    f"{self._path_after(state)} does not have a later generation than {state.generation}; overwrite "
                    "it with `frazil pause` or `frazil resume`"
                )
            state = newer
        return state

    def put(self, desired: DesiredState, *, previous: DesiredState | None) -> bool:
        """Append a state after the state `previous`. Return False if another state already follows that one."""
        path, data = self._path_after(previous), json.dumps(dataclasses.asdict(desired)).encode()
        if not self._store.put_if_absent(path, data) and self._store.get(path) != data:
            return False
        self._store.put(self._path, data)
        return True

    def clear(self) -> None:
        self._store.delete([*(file.path for file in self._store.list_files(self._after)), self._path])

    def _path_after(self, desired: DesiredState | None) -> str:
        return f"{self._after}/{desired.generation if desired else 0:020d}.json"

    def _read_object(self, path: str) -> DesiredState | None:
        raw = self._store.get(path)
        if raw is None:
            return None
        try:
            value = json.loads(raw)
            return DesiredState(**{**value, "mode": DesiredMode(value["mode"])})
        except (ValueError, TypeError, KeyError) as error:
            raise SpecError(
                f"{path} is not a valid desired state ({error}); overwrite it with `frazil pause` or `frazil resume`"
            ) from error


def _newest_state(states: Iterable[DesiredState | None]) -> DesiredState:
    return reduce(_later_state, (state for state in states if state is not None), DesiredState())


def _later_state(first: DesiredState, other: DesiredState) -> DesiredState:
    """Return the state that was written last. Its generation becomes higher than the other's."""
    older, newer = sorted((first, other), key=lambda desired: desired.at_ms)
    if newer.generation > older.generation:
        return newer
    above = older.generation
    return dataclasses.replace(
        newer,
        generation=above + newer.generation,
        restart_generation=above + newer.restart_generation if newer.restart_generation else older.restart_generation,
    )


def open_desired_store(spec: StreamSpec) -> DesiredStore:
    return DesiredStore(spec.name, load_stream_table(spec))


def table_fingerprint(table: Table, stream: str) -> str:
    """Return a token that changes when the stream's marker or the table's schema changes."""
    marker = table.properties.get(f"frazil.stream.{stream}", "")
    accepted = table.properties.get(ACCEPTED_SCHEMA, "")
    return f"{table.metadata.table_uuid}/{table.metadata.current_schema_id}{accepted and f'+{accepted}'}/{marker}"
