"""Problems in how the parts of a declared stream fit together, and the error that reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is a dotted path in the YAML. `value` is the declared value; None if it must not be shown."""

    key: str
    value: object
    message: str


class InconsistentError(ValueError):
    """Problems found while the model is validated. `frazil.spec.load` converts it to a SpecError."""

    def __init__(self, found: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(f"{p.key} {p.message}" for p in found))
        self.problems = found


def suggest_names(name: str, known: Mapping[str, object]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or all."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f" ({', '.join(known)})"
