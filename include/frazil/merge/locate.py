"""Finds the rows of the table that a batch's keys are of, by their key columns alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from frazil.merge.changes import Newest, column
from frazil.merge.contract import TableFile
from frazil.merge.table_files import Reader

CHANGE_ROW, PLACE = "_change", "_place"


@dataclass(frozen=True, slots=True)
class Located:
    """Rows of one data file whose keys changes have. A deleted row has no key any more."""

    file: TableFile
    positions: NDArray[np.int64]
    """Of rows in the file, in order."""
    changes: NDArray[np.int64]
    """The row of `Newest.rows` that has the key of each."""
    deleted: NDArray[np.int64]
    """Positions that delete files name already."""


class KeyIndex:
    """The keys of changes, made to be found in many rows."""

    def __init__(self, newest: Newest, key: tuple[str, ...]) -> None:
        self._key = key
        columns = {name: column(newest.rows, name) for name in key}
        # The first filter is the column that tells most keys apart; few rows are left for the join.
        self._first = max(key, key=lambda name: len(columns[name].unique())) if newest.rows.num_rows else key[0]
        self._values = columns[self._first].unique()
        self._keys = pa.table({**columns, CHANGE_ROW: pa.array(np.arange(newest.rows.num_rows))})

    def places(self, rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of rows that have one of the keys, in order, and the change of each."""
        columns = {name: column(rows, name) for name in self._key}
        first = columns[self._first]
        likely = np.flatnonzero(pc.is_in(first, self._values).to_numpy(zero_copy_only=False))
        if not len(likely):
            return likely, likely
        taken = {name: array.take(pa.array(likely)) for name, array in columns.items()}
        left = pa.table({**taken, PLACE: pa.array(likely)})
        keys = self._keys.cast(
            pa.schema([*(left.schema.field(name) for name in self._key), self._keys.schema.field(CHANGE_ROW)])
        )
        joined = left.join(keys, keys=list(self._key), join_type="inner", use_threads=False)
        places = column(joined, PLACE).to_numpy()
        order = np.argsort(places, kind="stable")
        return places[order], column(joined, CHANGE_ROW).to_numpy()[order]


def located(reader: Reader, files: tuple[TableFile, ...], index: KeyIndex, keys: Schema) -> Iterator[Located]:
    """What of each file the changes have, file by file; `keys` is the schema of the key columns."""
    for file in files:
        positions, changes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        with reader.open(file.path) as data:
            for start, rows in data.groups(keys):
                places, of = index.places(rows)
                positions.append(places + start)
                changes.append(of)
        deleted = reader.deleted(file)
        found, of = np.concatenate(positions), np.concatenate(changes)
        there = ~np.isin(found, deleted)
        yield Located(file, found[there], of[there], deleted)
