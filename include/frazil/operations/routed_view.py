"""The tables of a stream's route as a page shows them: there may be thousands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from frazil.status.state import Level

MAX_ROUTED_TABLES = 60


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """A table of a route. `amiss` says in few words what is wrong with it; empty where nothing is known to be."""

    name: str
    amiss: str = ""
    level: Level = Level.WELL


@dataclass(frozen=True, slots=True)
class RoutedTables:
    """Tables of a route: as many as a page shows of those that were searched for, what is amiss first."""

    tables: tuple[RoutedTable, ...]
    found: int
    in_all: int


def routed_of(
    names: Sequence[str] | None, search: str, *, amiss: Mapping[str, str] | None = None, level: Level = Level.TROUBLE
) -> RoutedTables | None:
    """Those whose name has each word that is searched for; None if the stream has no route, or nothing is known yet.

    `amiss` are those that something is wrong with, by name, also such as are not among `names` because they are
    missing; `level` is that of their stream, which needs a person for them.
    """
    wrong = amiss or {}
    if not names and not wrong:
        return None
    every = sorted({*(names or ()), *wrong}, key=lambda name: (name not in wrong, name))
    words = search.lower().split()
    found = [name for name in every if all(word in f"{name} {wrong.get(name, '')}".lower() for word in words)]
    marked = min(level, Level.TROUBLE)
    shown = (RoutedTable(name, wrong[name], marked) if name in wrong else RoutedTable(name) for name in found)
    return RoutedTables(tuple(islice(shown, MAX_ROUTED_TABLES)), len(found), len(every))
