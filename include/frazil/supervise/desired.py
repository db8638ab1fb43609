"""The desired state of a stream, running or paused: one small object beside its journals.

It is stored with the table and not on a host, so the command line and Airflow see the same state wherever they run. A
missing object means running. Pausing Airflow's DAG does not pause the stream.
"""

from __future__ import annotations

import dataclasses
import json

from pyiceberg.table import Table

from frazil import clock
from frazil.errors import SpecError
from frazil.spec.model import StreamSpec
from frazil.supervise.observed import Desired, DesiredMode
from frazil.table.catalogs import load_catalog
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store
from frazil.table.tables import ensure_table, load_stream_table, state_location

DESIRED_FILE = "desired.json"


class DesiredStore:
    """Reads and writes the desired state of one stream. Of two concurrent writes, the last wins."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._path = store, f"{folder}/{DESIRED_FILE}"

    def read(self) -> Desired:
        """The desired state. Raises AccessDenied, and SpecError if the object was edited and is malformed."""
        raw = self._store.get(self._path)
        if raw is None:
            return Desired()
        try:
            value = json.loads(raw)
            return Desired(**{**value, "mode": DesiredMode(value["mode"])})
        except (ValueError, TypeError, KeyError) as error:
            raise SpecError(
                f"{self._path} is no desired state ({error}); replace it with `frazil pause` or `frazil resume`"
            ) from error

    def pause(self, *, by: str, reason: str) -> Desired:
        """Stop the writer after its current batch, and keep it stopped."""
        return self._act(DesiredMode.PAUSED, by=by, reason=reason)

    def resume(self, *, by: str, reason: str) -> Desired:
        """Let the writer run, and start again one that the supervisor gave up on."""
        return self._act(DesiredMode.RUNNING, by=by, reason=reason)

    def restart(self, *, by: str, reason: str) -> Desired:
        """Replace a running writer after its current batch; if none runs, the same as `resume`."""
        return self._act(DesiredMode.RUNNING, by=by, reason=reason, restart=True)

    def _act(self, mode: DesiredMode, *, by: str, reason: str, restart: bool = False) -> Desired:
        now_ms = clock.now_ms()
        try:
            before = self.read()
        except SpecError:
            # The lost generations were counted up from 0, so the clock exceeds them.
            before = Desired(generation=now_ms)
        generation = before.generation + 1
        desired = Desired(
            mode=mode,
            generation=generation,
            restart_generation=generation if restart else before.restart_generation,
            reason=reason,
            by=by,
            at_ms=now_ms,
        )
        self._store.put(self._path, json.dumps(dataclasses.asdict(desired)).encode())
        return desired


def open_desired(spec: StreamSpec) -> DesiredStore | None:
    """The desired state of a stream; None while its table does not exist. Raises as `load_catalog` does."""
    table = load_stream_table(spec)
    return _store(table, spec) if table is not None else None


def create_desired(spec: StreamSpec) -> DesiredStore:
    """The same, creating a missing table: a stream can be paused before its first run."""
    return _store(ensure_table(load_catalog(spec.table.catalog), spec), spec)


def table_fingerprint(table: Table, stream: str) -> str:
    """Changes with `frazil reset`, `adopt`, and a schema change or its acceptance, not with other streams' commits."""
    marker = table.properties.get(f"frazil.stream.{stream}", "")
    accepted = table.properties.get(ACCEPTED_SCHEMA, "")
    return f"{table.metadata.table_uuid}/{table.metadata.current_schema_id}{accepted and f'+{accepted}'}/{marker}"


def _store(table: Table, spec: StreamSpec) -> DesiredStore:
    folder = state_location(table, spec.name)
    return DesiredStore(open_store(folder, table.io.properties), folder)
