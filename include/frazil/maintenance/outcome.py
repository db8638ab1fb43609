"""The result of a maintenance action, for logs, Airflow and operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from frazil.maintenance.due import Action


class Ending(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    """Nothing was worth doing, or the action is switched off."""
    GAVE_UP = "gave up"
    """Another commit won; the next run tries again."""
    REFUSED = "refused"
    """The action would be unsafe, or the table forbids it: an operator must check."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one action on one table."""

    table: str
    action: Action
    ending: Ending
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Named with their units, in kebab-case."""
    exit_code: int = 0
    """Exit code of a failure or a refusal, as in `frazil.errors`."""

    def __str__(self) -> str:
        return f"{self.table}: {self.action} {self.ending}: {self.sentence}"
