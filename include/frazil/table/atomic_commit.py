"""One step that changes several tables of a catalog: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table's part, based on the metadata of `table`."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


CommitTables = Callable[[Sequence[TableChange]], Sequence[CommitTableResponse] | None]
"""Changes all tables or none. Returns their new metadata in the same order, or None if the catalog does not tell it.

Raises CommitFailedException if one of them has been changed meanwhile, and so none was changed. After any other error
the outcome is unknown.
"""
