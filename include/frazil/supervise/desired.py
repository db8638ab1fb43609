"""The desired state of a stream, running or paused: one small object beside its journals.

It is stored with the table and not on a host, so the command line and Airflow see the same state wherever they run.
While the catalog does not have the table (before the first start, or because the catalog was lost), it is stored in the
run folder and holds on that host alone, because no table is created for it. A missing object means running. Pausing
Airflow's DAG does not pause the stream.
"""

from __future__ import annotations

import dataclasses
import json
from functools import reduce
from pathlib import Path

from pyiceberg.table import Table

from frazil import clock
from frazil.errors import SpecError
from frazil.home import run_folder
from frazil.spec.model import StreamSpec
from frazil.supervise.observed import Desired, DesiredMode
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.local_storage import LocalStore
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store
from frazil.table.tables import load_stream_table, state_location

DESIRED_FILE = "desired.json"


class DesiredStore:
    """Reads and writes the desired state of one stream. Of two concurrent writes, the last wins."""

    def __init__(self, stream: str, table: Table | None) -> None:
        self._places = [_in_folder(run_folder(stream))]
        """Where objects may be; writes go to the first one."""
        if table is not None:
            folder = state_location(table, stream)
            self._places.insert(0, (open_store(folder, table.io.properties), f"{folder}/{DESIRED_FILE}"))

    @classmethod
    def of_application(cls, application: str) -> DesiredStore:
        """The desired state of an application that streams share, on this host alone."""
        return cls(application, None)

    @property
    def beside_table(self) -> bool:
        """Whether what is written holds on every host."""
        return len(self._places) > 1

    def read(self) -> Desired:
        """The newest object. Raises AccessDenied, and SpecError if one was edited and is malformed."""
        return reduce(_newest, (found for place in self._places if (found := _read(*place))), Desired())

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
        if not self.beside_table:  # a table that was lost may have had any number of generations
            before = dataclasses.replace(before, generation=max(before.generation, now_ms))
        generation = before.generation + 1
        desired = Desired(
            mode=mode,
            generation=generation,
            restart_generation=generation if restart else before.restart_generation,
            reason=reason,
            by=by,
            at_ms=now_ms,
        )
        (store, path), *others = self._places
        store.put(path, json.dumps(dataclasses.asdict(desired)).encode())
        for store, path in others:
            store.delete([path])
        return desired


def _in_folder(folder: Path) -> tuple[ObjectStore, str]:
    return LocalStore(), f"{folder}/{DESIRED_FILE}"


def _read(store: ObjectStore, path: str) -> Desired | None:
    raw = store.get(path)
    if raw is None:
        return None
    try:
        value = json.loads(raw)
        return Desired(**{**value, "mode": DesiredMode(value["mode"])})
    except (ValueError, TypeError, KeyError) as error:
        raise SpecError(
            f"{path} is no desired state ({error}); replace it with `frazil pause` or `frazil resume`"
        ) from error


def _newest(one: Desired, other: Desired) -> Desired:
    """The one written last, with a generation above the other's: its writer may not have seen the other."""
    older, newer = sorted((one, other), key=lambda desired: desired.at_ms)
    if newer.generation > older.generation:
        return newer
    above = older.generation
    return dataclasses.replace(
        newer,
        generation=above + newer.generation,
        restart_generation=above + newer.restart_generation if newer.restart_generation else older.restart_generation,
    )


def open_desired(spec: StreamSpec) -> DesiredStore:
    """The desired state of a stream. Raises as `load_stream_table` does."""
    return DesiredStore(spec.name, load_stream_table(spec))


def table_fingerprint(table: Table, stream: str) -> str:
    """Changes with `frazil reset`, `adopt`, and a schema change or its acceptance, not with other streams' commits."""
    marker = table.properties.get(f"frazil.stream.{stream}", "")
    accepted = table.properties.get(ACCEPTED_SCHEMA, "")
    return f"{table.metadata.table_uuid}/{table.metadata.current_schema_id}{accepted and f'+{accepted}'}/{marker}"
