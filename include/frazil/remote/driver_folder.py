"""The objects through which an agent and its stream's driver communicate, next to the journals:

- `<state>/driver/order.json`, written by the agent: the driver that should run, and whether it should stop.
- `<state>/driver/<id>/status.json`, written by the driver: its heartbeat, and how it ended.
- `<state>/driver/<id>/log.json`, written by the driver: the end of its log.

Any driver that `order.json` does not name ends when it reads the order. Until then, the epoch prevents its commits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pyiceberg.table import Table

from frazil.commit.compare_and_swap import TableHandle
from frazil.host.heartbeat import Heartbeat
from frazil.table.object_store import ObjectStore
from frazil.table.tables import state_location
from frazil.typed_json import convert

T = TypeVar("T")

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class WantedDriver:
    """The properties of the driver that should run. A driver with other properties is replaced."""

    fingerprint: str
    version: str
    until_caught_up: bool = False
    restart_generation: int = 0
    """The desired state's restart generation; see `frazil.supervise.decision.DesiredState`."""


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    """The driver's id: 32 hexadecimal digits, new for each submission."""
    wanted: WantedDriver
    declared: Mapping[str, Any]
    """The stream's declaration with unresolved references."""
    master: str
    submission: str | None = None
    """The driver's name in the cluster, once known."""
    stop: str | None = None
    """Why the driver should end after its current batch."""
    kill: bool = False


@dataclass(frozen=True, slots=True)
class DriverExit:
    code: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A driver's report. Each new report has a new number."""

    number: int
    heartbeat: Heartbeat | None
    submission: str | None
    log_bytes: int = 0
    exit: DriverExit | None = None


@dataclass(frozen=True, slots=True)
class LogEnd:
    text: str
    bytes: int
    """Total number of bytes that the driver has logged, including `text`."""


@dataclass(frozen=True, slots=True)
class DriverFolder:
    """Methods raise the storage's errors. An object of an unknown format counts as missing."""

    store: ObjectStore = field(repr=False)
    folder: str

    @classmethod
    def open(cls, table: Table, stream: str) -> Self:
        """Open the folder of a stream. Its store renews temporary credentials through the catalog."""
        return cls(TableHandle.from_table(table).store, f"{state_location(table, stream)}/driver")

    def order(self) -> Order | None:
        return self._read("order.json", Order)

    def put_order(self, order: Order) -> None:
        self._write("order.json", dataclasses.asdict(order))

    def report(self, driver: str) -> DriverReport | None:
        return self._read(f"{driver}/status.json", DriverReport)

    def write_report(self, driver: str, report: DriverReport) -> None:
        self._write(f"{driver}/status.json", dataclasses.asdict(report))

    def log_end(self, driver: str) -> LogEnd | None:
        return self._read(f"{driver}/log.json", LogEnd)

    def put_log_end(self, driver: str, end: LogEnd) -> None:
        self._write(f"{driver}/log.json", dataclasses.asdict(end))

    def delete_all_but(self, driver: str) -> None:
        prefixes = (f"{self.folder}/order.json", f"{self.folder}/{driver}/")
        files = [file.path for file in self.store.list_files(self.folder)]
        self.store.delete(path for path in files if not path.startswith(prefixes))

    def _read(self, name: str, kind: type[T]) -> T | None:
        """Read an object. Ignores fields that a later version added."""
        raw = self.store.get(f"{self.folder}/{name}")
        value = json.loads(raw) if raw else None
        is_known = isinstance(value, dict) and value.get("format") == FORMAT_VERSION
        return convert(value, kind) if is_known else None

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self.store.put(f"{self.folder}/{name}", json.dumps({"format": FORMAT_VERSION, **value}).encode())
