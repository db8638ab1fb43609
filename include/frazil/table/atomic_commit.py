"""Changes several tables of a catalog in one step: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one table, based on the metadata of `table`."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


CommitTables = Callable[[Sequence[TableChange]], Sequence[CommitTableResponse] | None]
"""Changes all tables or none. Returns their new metadata in order, or None if the catalog does not return it.

Raises CommitFailedException if a table has been changed meanwhile; then none was changed. After any other error the
outcome is unknown.
"""
