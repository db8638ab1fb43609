"""The types for an atomic commit to several tables of a catalog: all tables change, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate


@dataclass(frozen=True, slots=True)
class TableChange:
    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


CommitTables = Callable[[Sequence[TableChange]], Sequence[CommitTableResponse] | None]
"""Commits all changes, or none. After any error other than CommitFailedException, the outcome is unknown."""
