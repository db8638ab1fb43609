"""Builds the page's list of a stream's routed tables; there may be thousands. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from frazil.status.state import Level

MAX_ROUTED_TABLES = 60


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """A routed table. `amiss` describes its problem in a few words; empty without a known problem."""

    name: str
    amiss: str = ""
    level: Level = Level.WELL


@dataclass(frozen=True, slots=True)
class RoutedTables:
    """The tables of a route that match the search: the first `MAX_ROUTED_TABLES`, tables with problems first."""

    tables: tuple[RoutedTable, ...]
    found: int
    in_all: int


def search_routed(
    names: Sequence[str] | None, search: str, *, amiss: Mapping[str, str] | None = None, level: Level = Level.TROUBLE
) -> RoutedTables | None:
    """Return the tables that contain each word of the search; None without a route, or if no tables are known yet.

    `amiss` maps names to problems. It includes missing tables, which `names` does not have. `level` is the level of the
    route's stream.
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
