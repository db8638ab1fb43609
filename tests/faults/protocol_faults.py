"""Faults of single operations of one process (storage, files, catalog, Kafka), and a clock for the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from frazil.table.storage import LocalStore


class InjectedError(OSError):
    """The network, the catalog or the storage failed. The caller does not know whether the operation took effect."""


class KilledError(BaseException):
    """SIGKILL: the process runs nothing after it, not even clean-up code."""


def never(_: Callable[[], Any]) -> None:
    raise AssertionError("only commits land late")


@dataclass(eq=False)
class Faults:
    """The faults of one process's next operations, by kind of operation. After them, all operations succeed."""

    others: Callable[[], None]
    """What other programs do to the table at the moment of a fault that includes them."""
    stream: str
    """The stream of the process."""
    planned: dict[str, list[str]] = field(default_factory=dict)
    dead: bool = False

    def stale(self, operation: str) -> int:
        """Return how many changes the response to the next such operation is behind."""
        queue = self.planned.get(operation)
        if self.dead or not queue or not queue[0].startswith("stale"):
            return 0
        return int(queue.pop(0).removeprefix("stale-"))

    def torn(self, operation: str) -> bool:
        """Return whether the next such operation stops half-way, as the last one of the process."""
        queue = self.planned.get(operation)
        if self.dead or not queue or queue[0] != "torn":
            return False
        queue.pop(0)
        self.dead = True
        return True

    def meet(self, operation: str, effect: Callable[[], Any], late: Callable[[Callable[[], Any]], None] = never) -> Any:
        if self.dead:
            raise KilledError
        queue = self.planned.get(operation)
        fault = queue.pop(0) if queue else "ok"
        if fault == "late":
            late(effect)
        if fault.startswith("others"):
            self.others()
        if fault.endswith("before") or fault == "late":
            self._fail(fault)
        answer = effect()
        if fault == "overtaken":
            self.others()
        if fault.endswith("after") or fault == "overtaken":
            self._fail(fault)
        return answer

    def _fail(self, fault: str) -> None:
        if fault.startswith("kill"):
            self.dead = True
            raise KilledError
        raise InjectedError(fault)


class ProcessStore(LocalStore):
    """The storage as one process accesses it."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.faults.torn("put"):
            super().put_if_absent(path, data[: len(data) // 2])
            raise KilledError
        put = super().put_if_absent
        answer: bool = self.faults.meet("put", lambda: put(path, data))
        return answer

    def put(self, path: str, data: bytes) -> None:
        put = super().put
        self.faults.meet("put", lambda: put(path, data))

    def get(self, path: str) -> bytes | None:
        get = super().get
        answer: bytes | None = self.faults.meet("get", lambda: get(path))
        return answer

    def sync_files(self, paths: Iterable[str]) -> None:
        """Do nothing: unlike a local folder, an object store does not check that the files exist."""

    def delete(self, paths: Iterable[str]) -> None:
        delete = super().delete
        for path in paths:
            self.faults.meet("delete", lambda path=path: delete([path]))


class ProcessIO(PyArrowFileIO):
    """Manifests and manifest lists as one process writes them."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    def new_output(self, location: str) -> OutputFile:
        if self.faults.torn("write"):
            super().new_output(location).create(overwrite=True).write(b"Obj")
            raise KilledError
        write = super().new_output
        answer: OutputFile = self.faults.meet("write", lambda: write(location))
        return answer


@dataclass
class Clock:
    """Seconds that advance only by waiting. They begin far in the future, so the machine's clock is never used."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += max(seconds, 1.0)

    @property
    def now_ms(self) -> int:
        return 4_000_000_000_000 + int(self.now_s * 1000)
