"""Chooses the tables that a run checks. Skips tables that an earlier run still works on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

MIN_INTERVAL, MAX_INTERVAL = timedelta(minutes=1), timedelta(hours=1)
ENDED_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

TaskStates = Mapping[str, Mapping[str, Any]]
"""Task states by run id and task id (`<task>_<map index>` if mapped); None for a task that is not scheduled yet."""


@dataclass(frozen=True, slots=True)
class CheckState:
    at_ms: int
    run_id: str | None = None
    """The run that has a task for the table; None once that task has ended."""
    index: int = 0

    def to_json(self) -> list[Any]:
        return [self.at_ms] if self.run_id is None else [self.at_ms, self.run_id, self.index]

    @staticmethod
    def from_json(value: Any) -> CheckState | None:
        """Parse a stored value; None if it is invalid, because other users can write the store."""
        match value:
            case [int(at_ms)] if at_ms >= 0:
                return CheckState(at_ms)
            case [int(at_ms), str(run_id), int(index)] if at_ms >= 0 and index >= 0:
                return CheckState(at_ms, run_id, index)
        return None


def dag_interval(every: Iterable[timedelta]) -> timedelta:
    return max(MIN_INTERVAL, min([MAX_INTERVAL, *every]))


def tables_to_check(every: Mapping[str, timedelta], tables: Mapping[str, CheckState], *, moment_ms: int) -> list[str]:
    """Return the tables to check, the longest waiting first. A retry of the run checks the same tables."""

    def is_due(name: str) -> bool:
        if name not in tables:
            return True
        waited_ms = moment_ms - tables[name].at_ms
        # A time in the future is an error of a clock or a user.
        return waited_ms <= 0 or timedelta(milliseconds=waited_ms) >= every[name]

    return sorted(filter(is_due, every), key=lambda name: (tables[name].at_ms if name in tables else -1, name))


def tables_in_progress(
    tables: Mapping[str, CheckState], states: TaskStates, *, tasks: Collection[str]
) -> dict[str, str]:
    def is_active(run: Mapping[str, Any], index: int) -> bool:
        # Before Airflow has created a mapped task's instances, one without an index stands for all.
        return any(run[key] not in ENDED_STATES for task in tasks for key in (task, f"{task}_{index}") if key in run)

    return {
        name: table.run_id
        for name, table in tables.items()
        if table.run_id is not None and is_active(states.get(table.run_id, {}), table.index)
    }
