"""The cost of a batch: CPU time and storage requests. The batch's journal keeps it after the snapshot has expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SUMMARY = {"cpu_ms": "frazil.cpu-ms", "writes": "frazil.storage-writes", "reads": "frazil.storage-reads"}
"""Summary keys by field of `BatchCost`. Iceberg's own key `added-files-size` has the written bytes."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The cost of one batch's tasks, and of the writer since its previous batch."""

    cpu_ms: int = 0
    """CPU (ms) of the tasks, the writer's process and its JVM. Streams of an application share process and JVM."""
    writes: int = 0
    """Requests to object storage that write or list objects."""
    reads: int = 0

    def summary(self) -> dict[str, str]:
        return {key: str(getattr(self, name)) for name, key in SUMMARY.items()}

    def to_json(self) -> list[int]:
        return [self.cpu_ms, self.writes, self.reads]

    @classmethod
    def from_json(cls, raw: Sequence[int]) -> BatchCost:
        """Parse the result of `to_json`. Ignores unknown numbers, which newer versions may add."""
        return cls(*raw[: len(SUMMARY)])
