"""The types for an atomic commit to several tables of a catalog: all tables change, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change of one table: requirements and updates, computed from the metadata of `table`."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


CommitTables = Callable[[Sequence[TableChange]], Sequence[CommitTableResponse] | None]
"""A function that commits all changes, or none.

Returns the tables' new metadata in the order of the changes, or None if the catalog does not return metadata. Raises
CommitFailedException if another commit changed one of the tables; then nothing has changed. After any other error, the
outcome is unknown.
"""
