"""Inconsistencies between the parts of a declared stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is the dotted path in the YAML; `value` is the value there, None if it must not be shown."""

    key: str
    value: object
    message: str


class InconsistentError(ValueError):
    """Raised by the model's validation; `frazil.spec.load` turns it into a SpecError."""

    def __init__(self, found: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(f"{p.key} {p.message}" for p in found))
        self.problems = found


def did_you_mean(name: str, known: Mapping[str, object]) -> str:
    """The end of a sentence about an unknown name: a similar known name, or all of them."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f" ({', '.join(known)})"
