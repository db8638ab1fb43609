"""The result of a maintenance action, for logs, Airflow and operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from frazil.maintenance.due import Action


class Ending(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    """The action had no useful work, or is switched off."""
    GAVE_UP = "gave up"
    """Another commit won the race; the next run tries again."""
    REFUSED = "refused"
    """The action would be unsafe, or the table's settings forbid it: an operator must check."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one action on one table."""

    table: str
    action: Action
    ending: Ending
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Measured numbers of the action, by name; names are in kebab-case, and some include the unit, such as
    `mb-per-second`.
    """
    exit_code: int = 0
    """Exit code of a failure or a refusal, as in `frazil.errors`; else 0."""

    def __str__(self) -> str:
        return f"{self.table}: {self.action} {self.ending}: {self.sentence}"
