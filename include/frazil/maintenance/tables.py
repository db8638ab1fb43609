"""Which tables are maintained: those that declared streams feed, their dead-letter tables, and the signals.

It loads no PyIceberg, for Airflow's DAG processor asks it again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from frazil.errors import SpecError
from frazil.spec.maintenance import Maintenance
from frazil.spec.model import StreamSpec

SIGNALS = "frazil.signals"
"""`frazil.commit.signals.IDENTIFIER`, which loads PyIceberg."""


class Kind(StrEnum):
    MAIN = "main"
    DEAD_LETTERS = "dead letters"
    SIGNALS = "signals"


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """One table, and what its streams declare of its maintenance."""

    identifier: str
    catalog: str | None
    kind: Kind
    settings: Maintenance
    streams: tuple[StreamSpec, ...]
    """That write it, by name; of the signals, those whose windows are signalled."""


def maintained_tables(specs: Iterable[StreamSpec]) -> tuple[MaintainedTable, ...]:
    """Every table that these streams have a part in; the signals once a catalog. By identifier.

    Streams of one table declare the same (`frazil.spec.load.conflicts`): the first one's settings are the table's.
    """
    writers: dict[tuple[str | None, str, Kind], list[StreamSpec]] = {}
    for spec in sorted(specs, key=lambda s: s.name):
        catalog = spec.table.catalog
        writers.setdefault((catalog, spec.table.identifier, Kind.MAIN), []).append(spec)
        writers.setdefault((catalog, spec.dead_letter_table, Kind.DEAD_LETTERS), []).append(spec)
        if spec.window is not None:
            writers.setdefault((catalog, SIGNALS, Kind.SIGNALS), []).append(spec)
    made = [
        MaintainedTable(
            identifier, catalog, kind, Maintenance() if kind is Kind.SIGNALS else streams[0].maintenance, tuple(streams)
        )
        for (catalog, identifier, kind), streams in writers.items()
    ]
    return tuple(sorted(made, key=lambda t: (t.identifier, t.catalog or "")))


def find_maintained(specs: Iterable[StreamSpec], identifier: str) -> MaintainedTable:
    """Raises SpecError where no stream has a part in the table, with the tables that are known."""
    tables = maintained_tables(specs)
    for table in tables:
        if table.identifier == identifier:
            return table
    known = ", ".join(table.identifier for table in tables) or "none"
    raise SpecError(f"no declared stream has a part in the table {identifier!r}; maintained are: {known}")
