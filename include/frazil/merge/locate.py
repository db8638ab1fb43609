"""Finds the table's rows that have a batch's keys, reading only the key columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from frazil.merge.changes import NewestChanges, Numbers, column, to_mask
from frazil.merge.contract import TableFile
from frazil.merge.table_files import TableFileReader

CHANGE_ROW, ROW_INDEX = "_change", "_index"


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """A data file's live rows whose keys have changes."""

    file: TableFile
    positions: Numbers
    """Positions in the file, in order."""
    changes: Numbers
    """The change in `NewestChanges.rows` for each position."""
    deleted: Numbers
    """Positions that delete files already delete."""


class KeyIndex:
    """Looks up the changes' keys in many rows."""

    def __init__(self, newest: NewestChanges, key: tuple[str, ...]) -> None:
        self._key = key
        columns = {name: column(newest.rows, name) for name in key}
        # The first filter is the column with the most distinct values, so that few rows are left for the join.
        self._first = max(key, key=lambda name: len(columns[name].unique())) if newest.rows.num_rows else key[0]
        self._values = columns[self._first].unique()
        self.bounds = {name: _min_max(array) for name, array in columns.items()}
        self._keys = pa.table({**columns, CHANGE_ROW: pa.array(np.arange(newest.rows.num_rows))})

    @property
    def batch_rows(self) -> int:
        """Rows to look up at once. The cost of a lookup grows with the number of keys."""
        return max(2**18, int(self._keys.num_rows))

    def find_rows(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Return the indexes of the rows whose key has a change, sorted, and the index of each row's change."""
        columns = {name: column(rows, name) for name in self._key}
        first = columns[self._first]
        if len(columns) == 1:  # keys are distinct, so the index of a value among them is the index of its change
            of = pc.index_in(first, self._values.cast(first.type))
            found = np.flatnonzero(to_mask(of.is_valid()))
            return found, of.drop_null().to_numpy().astype(np.int64)
        likely = np.flatnonzero(to_mask(pc.is_in(first, self._values)))
        if not len(likely):
            return likely, likely
        taken = {name: array.take(pa.array(likely)) for name, array in columns.items()}
        left = pa.table({**taken, ROW_INDEX: pa.array(likely)})
        fields = [*(left.schema.field(name) for name in self._key), self._keys.schema.field(CHANGE_ROW)]
        keys = self._keys.cast(pa.schema(fields))
        joined = left.join(keys, keys=list(self._key), join_type="inner", use_threads=False)
        indexes = column(joined, ROW_INDEX).to_numpy()
        order = np.argsort(indexes, kind="stable")
        return indexes[order], column(joined, CHANGE_ROW).to_numpy()[order]


def _min_max(array: pa.Array) -> tuple[Any, Any]:
    found = pc.min_max(array).as_py()
    return found["min"], found["max"]


def locate_rows(
    reader: TableFileReader, files: tuple[TableFile, ...], index: KeyIndex, keys: Schema
) -> Iterator[LocatedRows]:
    """Yield the rows whose keys have changes, file by file. `keys` is the schema of the key columns."""
    found: list[list[_Match]] = [[] for _ in files]
    pending: list[tuple[int, int, pa.Table]] = []
    yielded = 0
    for number, file in enumerate(files):
        with reader.open(file.path) as data:
            for start, rows in data.row_groups(keys, data.may_hold(keys, index.bounds)):
                pending.append((number, start, rows))
                if sum(rows.num_rows for _, _, rows in pending) >= index.batch_rows:
                    _match_pending(index, pending, found)
                    pending = []
        whole = pending[0][0] if pending else number + 1
        yield from (_make_located(reader, files[n], found[n]) for n in range(yielded, whole))
        yielded = whole
    _match_pending(index, pending, found)
    yield from (_make_located(reader, files[n], found[n]) for n in range(yielded, len(files)))


_Match = tuple[Numbers, Numbers]


def _match_pending(index: KeyIndex, pending: list[tuple[int, int, pa.Table]], found: list[list[_Match]]) -> None:
    """Look up the rows of several row groups at once."""
    if not pending:
        return
    indexes, of = index.find_rows(pa.concat_tables([rows for _, _, rows in pending]))
    first = 0
    for number, start, rows in pending:
        rows_of_group = slice(*np.searchsorted(indexes, (first, first + rows.num_rows)))
        found[number].append((indexes[rows_of_group] - first + start, of[rows_of_group]))
        first += rows.num_rows


def _make_located(reader: TableFileReader, file: TableFile, parts: list[_Match]) -> LocatedRows:
    none = np.zeros(0, np.int64)
    positions = np.concatenate([none, *(positions for positions, _ in parts)])
    changes = np.concatenate([none, *(changes for _, changes in parts)])
    deleted = reader.deleted_positions(file)
    is_live = ~np.isin(positions, deleted)
    return LocatedRows(file, positions[is_live], changes[is_live], deleted)
