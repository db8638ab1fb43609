"""The two objects beside the journals through which an agent and the driver of its stream speak to each other.

`<state>/driver/order.json`        the agent's: which driver there is to be, and whether it is to stop
`<state>/driver/<id>/status.json`    that driver's: its heartbeat, and how it ended
`<state>/driver/<id>/log.json`     the end of its log

A driver that the order does not name, or no longer, ends: of two that were submitted, one writes. (The epoch in the
table excludes the other until it has seen that.)
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
    """What a driver is made from. One that was made from the same is attached to, else replaced."""

    fingerprint: str
    version: str
    """Of frazil."""
    until_caught_up: bool = False
    restart_generation: int = 0
    """See `frazil.supervise.observed.Desired`."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which driver there is to be."""

    id: str
    """32 hexadecimal digits, new with each submission."""
    wanted: Wanted
    declared: Mapping[str, Any]
    """The stream as it is declared, with its references unresolved."""
    master: str
    ordered_at_ms: int
    submission: str | None = None
    """The cluster's name of it; None until the cluster has told it."""
    stop: str | None = None
    """Why it is to end after its current batch; None while it is to write."""
    kill: bool = False
    """It is to be killed, because it did not end when it was asked."""


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a driver tells. Each is new by its number."""

    number: int
    beat: Heartbeat | None
    submission: str | None
    """The cluster's name of it, where the driver knows that."""
    log_bytes: int = 0
    """How much it has logged in all."""
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a driver's log."""

    text: str
    bytes: int
    """How much it has logged in all, with this."""


@dataclass(frozen=True, slots=True)
class DriverFolder:
    """Raises what the storage raises, and treats an object of an unknown format as missing."""

    store: ObjectStore = field(repr=False)
    folder: str
    """`<state>/driver`."""

    @classmethod
    def of(cls, table: Table, stream: str) -> Self:
        """That of a stream; its store renews credentials that a catalog gives for a while."""
        return cls(TableHandle.of(table).store, f"{state_location(table, stream)}/driver")

    def order(self) -> Order | None:
        value = self._read("order.json")
        if value is None:
            return None
        return Order(**{**_known(Order, value), "wanted": Wanted(**_known(Wanted, value["wanted"]))})

    def put_order(self, order: Order) -> None:
        self._write("order.json", dataclasses.asdict(order))

    def told(self, driver: str) -> Told | None:
        value = self._read(f"{driver}/status.json")
        if value is None:
            return None
        beat = Heartbeat.from_json(value["beat"]) if value.get("beat") else None
        ended = Exit(**_known(Exit, value["exit"])) if value.get("exit") else None
        return Told(**{**_known(Told, value), "beat": beat, "exit": ended})

    def tell(self, driver: str, told: Told) -> None:
        self._write(f"{driver}/status.json", dataclasses.asdict(told))

    def log_end(self, driver: str) -> LogEnd | None:
        value = self._read(f"{driver}/log.json")
        return None if value is None else LogEnd(**_known(LogEnd, value))

    def put_log_end(self, driver: str, end: LogEnd) -> None:
        self._write(f"{driver}/log.json", dataclasses.asdict(end))

    def forget_all_but(self, driver: str) -> None:
        """Remove what earlier drivers told."""
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
    """Without the fields of later versions."""
    return {each.name: value[each.name] for each in dataclasses.fields(kind) if each.name in value}
