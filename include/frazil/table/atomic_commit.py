"""Defines the types for changing several tables of a catalog in one step: all of them change, or none."""

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
"""A function that changes all tables or none.

Returns the tables' new metadata in the order of the changes, or None if the catalog does not return metadata. Raises
CommitFailedException, without a change, if another commit changed one of the tables. After any other error, the outcome
is unknown.
"""
