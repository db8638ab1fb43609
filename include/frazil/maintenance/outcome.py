"""What an action of maintenance came to, as logs, Airflow and people read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from frazil.maintenance.due import Action


class Ending(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    """There was nothing worth doing, or it is switched off."""
    GAVE_UP = "gave up"
    """Another commit won; the next run tries again."""
    REFUSED = "refused"
    """It would not be safe, or the table forbids it: a person has to look."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one action on one table."""

    table: str
    action: Action
    ending: Ending
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Named with their units, in kebab-case."""
    exit_code: int = 0
    """Of a failure or a refusal, as in `frazil.errors`."""

    def __str__(self) -> str:
        return f"{self.table}: {self.action} {self.ending}: {self.sentence}"
