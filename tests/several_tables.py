"""Commits that write the same number to five tables, and a reader that sees all five at one instant.

As a program, it commits up to a number, while responses are lost, commits land late, and the process kills itself:
`python -m tests.several_tables URI WAREHOUSE LAST SEED`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from frazil import clock
from frazil.commit.compare_and_swap import Change, Done, RetryPolicy, TableCommit, TableHandle, commit_snapshots
from frazil.commit.snapshot import SnapshotWriter
from frazil.table.atomic_catalogs import CommitTables, TableChange, find_commit_tables
from frazil.table.faster_commits import reuse_metadata
from frazil.table.metadata_times import keep_times_in_order

NAMESPACE = "several"
NAMES = tuple("abcde")
NUMBER = "test.number"
RETRY_POLICY = RetryPolicy(total_s=60, first_s=0.005, max_s=0.1)


def open_catalog(uri: str, warehouse: str) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    reuse_metadata(keep_times_in_order(catalog))
    return catalog


def make_tables(catalog: SqlCatalog) -> None:
    catalog.create_namespace_if_not_exists(NAMESPACE)
    for name in NAMES:
        catalog.create_table(f"{NAMESPACE}.{name}", Schema(NestedField(1, "x", LongType())))


def handles(catalog: Catalog, names: Sequence[str] = NAMES) -> list[TableHandle]:
    return [TableHandle(catalog, f"{NAMESPACE}.{name}") for name in names]


def commit_number(
    tables: Sequence[TableHandle], number: int, *, commit_atomically: CommitTables | None, key: str = NUMBER
) -> None:
    """Commit a snapshot with this number to each table that has a lower one."""
    commit_snapshots(
        [_numbered(handle, number, key) for handle in tables],
        retry_policy=RETRY_POLICY,
        commit_atomically=commit_atomically,
    )


def _numbered(handle: TableHandle, number: int, key: str) -> TableCommit[int]:
    writer = SnapshotWriter(())

    def propose(table: Table) -> Done[int] | Change[int]:
        if int(table.metadata.properties.get(key, 0)) >= number:
            return Done(number)
        prepared = writer.prepare(table, summary={key: str(number)}, now_ms=clock.now_ms())
        proof = (key, str(number))
        updates = (*prepared.updates, SetPropertiesUpdate(updates=dict([proof])))
        return Change(prepared.requirements, updates, number, proof)

    return TableCommit(handle, propose, (writer,))


class Cuts:
    """Reads the numbers of all tables at the same instant, with one SQL statement."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog, self.io = catalog, PyArrowFileIO()
        self.known: dict[str, int] = {}

    def counts(self) -> dict[str, int]:
        where = IcebergTables.table_namespace == NAMESPACE
        with Session(self.catalog.engine) as session:
            rows = session.execute(select(IcebergTables.table_name, IcebergTables.metadata_location).where(where)).all()
        return {name: self._number(location) for name, location in rows}

    def _number(self, location: str) -> int:
        if location not in self.known:
            metadata = FromInputFile.table_metadata(self.io.new_input(location))
            self.known[location] = int(metadata.properties.get(NUMBER, 0))
        return self.known[location]


class Troubled:
    """Commits to several tables. Some get no response, some land late, and some end the process with SIGKILL."""

    def __init__(self, catalog: SqlCatalog, chance: random.Random) -> None:
        self.inner, self.chance = find_commit_tables(catalog), chance
        self.late: list[Callable[[], object]] = []
        self.dies_at: int | None = None
        event.listen(catalog.engine, "before_cursor_execute", lambda *_: self._step())
        event.listen(catalog.engine, "commit", lambda *_: self._step())
        write = catalog._write_metadata
        catalog._write_metadata = lambda *what, **named: (self._step(), write(*what, **named))  # type: ignore[method-assign, assignment, return-value]

    def _step(self) -> None:
        """Let the process die, if planned, before a file, a statement or a database commit, or after the commit."""
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, changes: Sequence[TableChange]) -> Sequence[CommitTableResponse] | None:
        for late in self.late:
            try:
                late()
            except CommitFailedException:
                continue
        self.late.clear()
        match self.chance.choices(("well", "lost", "late", "dies"), (6, 1, 1, 0.5))[0]:
            case "lost":
                self.inner(changes)
                raise ConnectionError("the answer was lost")
            case "late":
                self.late.append(lambda: self.inner(changes))
                raise ConnectionError("no answer in time")
            case "dies":
                self.dies_at = self.chance.randrange(2 * len(changes) + 2)
        made = self.inner(changes)
        self._step()
        if self.dies_at is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return made


def main() -> None:
    uri, warehouse, last, seed = sys.argv[1:]
    catalog = open_catalog(uri, warehouse)
    commit_atomically, tables = Troubled(catalog, random.Random(seed)), handles(catalog)
    first = int(tables[0].current().metadata.properties.get(NUMBER, 0))
    for number in range(first + 1, int(last) + 1):
        commit_number(tables, number, commit_atomically=commit_atomically)


if __name__ == "__main__":
    main()
