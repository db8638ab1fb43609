"""Reads chunks into Arrow with the compiled loop, and marks the records about which the loop is unsure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg import types as iceberg

from frazil.ingest.binary_arrays import fixed
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.formats.columns import Columns
from frazil.ingest.formats.json import new_keys
from frazil.ingest.formats.json.rows import NEW, SAMPLE, read_records
from frazil.ingest.formats.json.scan import room
from frazil.ingest.formats.json.types import Units, depth
from frazil.ingest.no_rows import no_rows
from frazil.ingest.schema_drift import Path

_MAX_KEYS = 4096
"""Maximum number of keys in a map that the loop reads. Records with a larger map are read one by one."""


class ChunkReader:
    """Reads chunks with one schema. The memory is reused for the next chunk; results are copies."""

    def __init__(self, schema: iceberg.StructType, arrow_schema: pa.Schema, units: Units) -> None:
        self._columns = Columns(schema, arrow_schema, units)
        self._frames = np.zeros((1 + depth(schema), 5), np.int64)
        self._scratch = room()
        self._slots = np.zeros(2 * _MAX_KEYS, np.int64)
        self._new_keys = new_keys.memory(on=False)
        self.new, self.samples = 0, np.zeros(0, np.int64)
        """Number of records with keys outside the schema that the loop read in the last call, and the positions of a
        sample.
        """

    def find_new_keys(self, within: Sequence[Path] | None = None) -> None:
        """Search for new keys from now on, without counting earlier ones. `within` limits the search to structs at
        these paths.
        """
        self._new_keys = new_keys.memory(on=True)
        if within is not None:
            self._columns.watch(within)

    def __call__(self, values: BinaryColumn) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return the rows of the records that the loop is sure about, in order, and the mask of the unsure values."""
        unsure = np.ones(len(values), np.uint8)
        tables = [self._read(values[part], unsure[part]) for part in self._columns.parts(len(values))]
        rows = pa.concat_tables(tables) if tables else no_rows(self._columns.arrow_schema)
        if self._new_keys[new_keys.ON]:
            self.new, self.samples = int(np.count_nonzero(unsure & NEW)), np.flatnonzero(unsure & SAMPLE)
            unsure &= 1
        return rows, unsure.view(np.bool_)

    def _read(self, values: BinaryColumn, unsure: NDArray[np.uint8]) -> pa.Table:
        columns = self._columns
        columns.begin(len(values))
        data, starts, lengths = fixed(values)
        read = 0
        while True:
            read, missing = read_records(
                data,
                starts,
                lengths,
                read,
                columns.nodes,
                columns.lists,
                columns.names,
                columns.words,
                columns.valid,
                columns.text,
                columns.domains,
                self._frames,
                self._scratch,
                self._slots,
                self._new_keys,
                unsure,
            )
            if read == len(values):
                return columns.table(data)
            columns.grow(missing)
