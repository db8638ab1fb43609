"""Which tables are maintained: those that declared streams feed, their dead-letter tables, and the signals.

It loads no PyIceberg, for Airflow's DAG processor asks it again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from frazil.errors import SpecError
from frazil.spec.maintenance import Maintenance
from frazil.spec.model import StreamSpec

SIGNALS = "frazil.signals"
"""`frazil.signals.signal_table.IDENTIFIER`, which loads PyIceberg."""


class TableKind(StrEnum):
    MAIN = "main"
    DEAD_LETTERS = "dead letters"
    SIGNALS = "signals"


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """One table, and what its streams declare of its maintenance."""

    name: str
    """The identifier; with its catalog before it where another catalog has a table of that name too."""
    identifier: str
    catalog: str | None
    kind: TableKind
    settings: Maintenance
    streams: tuple[StreamSpec, ...]
    """That write it, by name; of the signals, those whose windows are signalled."""


def maintained_tables(specs: Iterable[StreamSpec]) -> tuple[MaintainedTable, ...]:
    """Every table that these streams have a part in; the signals once a catalog. By identifier.

    Streams of one table declare the same (`frazil.spec.conflicts`): the first one's settings are the table's.
    """
    writers: dict[tuple[str | None, str, TableKind], list[StreamSpec]] = {}
    for spec in sorted(specs, key=lambda s: s.name):
        catalog = spec.table.catalog
        writers.setdefault((catalog, spec.table.identifier, TableKind.MAIN), []).append(spec)
        writers.setdefault((catalog, spec.dead_letter_table, TableKind.DEAD_LETTERS), []).append(spec)
        if spec.window is not None:
            writers.setdefault((catalog, SIGNALS, TableKind.SIGNALS), []).append(spec)
    times = Counter(identifier for _, identifier, _ in writers)
    made = []
    for (catalog, identifier, kind), streams in writers.items():
        name = identifier if times[identifier] == 1 else f"{catalog or 'default'}.{identifier}"
        settings = Maintenance() if kind is TableKind.SIGNALS else streams[0].maintenance
        made.append(MaintainedTable(name, identifier, catalog, kind, settings, tuple(streams)))
    return tuple(sorted(made, key=lambda t: t.name))


def maintained_together(specs: Iterable[StreamSpec]) -> dict[str, tuple[MaintainedTable, ...]]:
    """The tables that one Spark session maintains, by the name of the first: a table with its dead-letter tables.

    Every maintained table is in exactly one. A dead-letter table that several tables' streams share is with the first.
    """
    tables = maintained_tables(specs)
    together = {table.name: [table] for table in tables if table.kind is not TableKind.DEAD_LETTERS}
    fed = {spec.name: table.name for table in tables if table.kind is TableKind.MAIN for spec in table.streams}
    for table in tables:
        if table.kind is TableKind.DEAD_LETTERS:
            together[fed[table.streams[0].name]].append(table)
    return {name: tuple(found) for name, found in together.items()}


def find_maintained(specs: Iterable[StreamSpec], name: str, *, problems: Sequence[str] = ()) -> MaintainedTable:
    """Raises SpecError where no stream has a part in the table, with the tables that are known.

    `problems` are what is wrong with files that could not be read: one of them may have a part in it.
    """
    tables = maintained_tables(specs)
    for table in tables:
        if table.name == name:
            return table
    known = ", ".join(table.name for table in tables) or "none"
    message = f"no declared stream has a part in the table {name!r}; maintained are: {known}"
    raise SpecError("\n".join([message, *problems]))
