"""The numbers of a simulated day, one per line, so that the plot can be drawn again without a new simulation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    hour: int
    """The hour that just ended."""
    table: str
    measure: str
    value: float


@dataclass
class Samples:
    taken: list[Sample] = field(default_factory=list)

    def add(self, hour: int, table: str, measures: dict[str, float]) -> None:
        self.taken += [Sample(hour, table, measure, value) for measure, value in measures.items()]

    def line(self, table: str, measure: str) -> tuple[list[int], list[float]]:
        """Return hours and values, ordered by time. If an hour has two values, they are from before and after
        maintenance.
        """
        found = [s for s in self.taken if (s.table, s.measure) == (table, measure)]
        return [s.hour for s in found], [s.value for s in found]

    def p95(self, table: str, measure: str) -> dict[int, float]:
        """Return the 95th percentile of each hour, by nearest rank."""
        by_hour: dict[int, list[float]] = {}
        for hour, value in zip(*self.line(table, measure), strict=True):
            by_hour.setdefault(hour, []).append(value)
        return {hour: sorted(values)[-(-len(values) * 95 // 100) - 1] for hour, values in by_hour.items()}

    def save(self, path: Path) -> None:
        path.write_text("".join(json.dumps(dataclasses.asdict(s)) + "\n" for s in self.taken))

    @classmethod
    def load(cls, lines: Iterable[str]) -> Samples:
        return cls([Sample(**json.loads(line)) for line in lines])
