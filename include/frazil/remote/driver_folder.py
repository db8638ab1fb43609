"""Objects next to the journals through which an agent and its stream's driver communicate.

`<state>/driver/order.json`        the agent's: the driver that should run, and whether it should stop
`<state>/driver/<id>/status.json`  the driver's: its heartbeat, and how it ended `<state>/driver/<id>/log.json`
the end of its log

A driver that the order is not, or no longer, for ends: of two submitted drivers, one writes. (The epoch in the table
excludes the other until it notices.)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pyiceberg.table import Table

from frazil.commit.swap import TableHandle
from frazil.host.heartbeat import Heartbeat
from frazil.table.object_store import ObjectStore
from frazil.table.tables import state_location

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a driver is made from. A driver made from the same is attached to; another one is replaced."""

    fingerprint: str
    version: str
    """frazil's version."""
    until_caught_up: bool = False
    restart_generation: int = 0
    """See `frazil.supervise.observed.Desired`."""


@dataclass(frozen=True, slots=True)
class Order:
    """The driver that should run."""

    id: str
    """32 hexadecimal digits, new with each submission."""
    wanted: Wanted
    declared: Mapping[str, Any]
    """The stream as declared, with unresolved references."""
    master: str
    ordered_at_ms: int
    submission: str | None = None
    """The cluster's name of it; None until the cluster has returned it."""
    stop: str | None = None
    """Why it should end after its current batch; None while it should write."""
    kill: bool = False
    """Whether to kill it, because it did not end when asked."""


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A driver's report; a new report has a new number."""

    number: int
    heartbeat: Heartbeat | None
    submission: str | None
    """The cluster's name of it, if the driver knows it."""
    log_bytes: int = 0
    """Total bytes that it has logged."""
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a driver's log."""

    text: str
    bytes: int
    """Total bytes that it has logged, including this."""


@dataclass(frozen=True, slots=True)
class DriverFolder:
    """The objects. Raises what the storage raises, and treats an object of an unknown format as missing."""

    store: ObjectStore = field(repr=False)
    folder: str
    """`<state>/driver`."""

    @classmethod
    def of(cls, table: Table, stream: str) -> Self:
        """The folder of a stream; its store renews temporary credentials of a catalog."""
        return cls(TableHandle.of(table).store, f"{state_location(table, stream)}/driver")

    def order(self) -> Order | None:
        value = self._read("order.json")
        if value is None:
            return None
        return Order(**{**_known(Order, value), "wanted": Wanted(**_known(Wanted, value["wanted"]))})

    def put_order(self, order: Order) -> None:
        self._write("order.json", dataclasses.asdict(order))

    def report(self, driver: str) -> DriverReport | None:
        value = self._read(f"{driver}/status.json")
        if value is None:
            return None
        heartbeat = Heartbeat.from_json(value["heartbeat"]) if value.get("heartbeat") else None
        ended = Exit(**_known(Exit, value["exit"])) if value.get("exit") else None
        return DriverReport(**{**_known(DriverReport, value), "heartbeat": heartbeat, "exit": ended})

    def tell(self, driver: str, report: DriverReport) -> None:
        self._write(f"{driver}/status.json", dataclasses.asdict(report))

    def log_end(self, driver: str) -> LogEnd | None:
        value = self._read(f"{driver}/log.json")
        return None if value is None else LogEnd(**_known(LogEnd, value))

    def put_log_end(self, driver: str, end: LogEnd) -> None:
        self._write(f"{driver}/log.json", dataclasses.asdict(end))

    def forget_all_but(self, driver: str) -> None:
        """Remove reports of earlier drivers."""
        kept = (f"{self.folder}/order.json", f"{self.folder}/{driver}/")
        files = [file.path for file in self.store.list_files(self.folder)]
        self.store.delete(path for path in files if not path.startswith(kept))

    def _read(self, name: str) -> dict[str, Any] | None:
        raw = self.store.get(f"{self.folder}/{name}")
        value = json.loads(raw) if raw else None
        return value if isinstance(value, dict) and value.get("format") == FORMAT_VERSION else None

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self.store.put(f"{self.folder}/{name}", json.dumps({"format": FORMAT_VERSION, **value}).encode())


def _known(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """The value without fields of later versions."""
    return {each.name: value[each.name] for each in dataclasses.fields(kind) if each.name in value}
