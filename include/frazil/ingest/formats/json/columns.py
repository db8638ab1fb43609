"""Reads chunks of records into Arrow with the compiled loop: rows where it is sure, and which records are unsure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg import types as iceberg

from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.formats.json import new_keys
from frazil.ingest.formats.json import nodes as kinds
from frazil.ingest.formats.json.nodes import (
    BASE,
    CHILDREN,
    DOMAIN,
    FIELDS,
    FIXED,
    FLAG,
    KIND,
    LIST,
    MAP,
    STRUCT,
    WORDS,
    Numbers,
    nodes,
)
from frazil.ingest.formats.json.rows import NEW, SAMPLE, read_records
from frazil.ingest.formats.json.scan import room
from frazil.ingest.formats.json.types import Units, depth
from frazil.ingest.formats.json.words import ROOM, USED, gathered

WORDS_AT_ONCE = 4 * 2**20
"""Chunks of wide rows are read in parts of about this many 64-bit words, whose memory is reused."""
LEAST_ROOM = 1024
"""At least this many records are read together."""
_MOST_KEYS = 4096
"""A record with a larger map is read singly."""


class ChunkReader:
    """Reads chunks of one schema. It reuses its memory for the next chunk; what it returns has its own."""

    def __init__(self, schema: iceberg.StructType, arrow_schema: pa.Schema, units: Units) -> None:
        self._arrow_schema = arrow_schema
        self._nodes, self._lists, self._names = nodes(schema, units)
        self._width = WORDS[self._nodes[:, KIND]]
        self._domains = np.zeros((2 + int((self._nodes[:, KIND] >= LIST).sum()), 3), np.int64)
        self._domains[1:, ROOM] = LEAST_ROOM
        self._frames = np.zeros((1 + depth(schema), 5), np.int64)
        self._scratch = room()
        self._slots = np.zeros(2 * _MOST_KEYS, np.int64)
        self._new_keys = new_keys.memory(on=False)
        self.new, self.samples = 0, np.zeros(0, np.int64)
        """Of the last call: how many sure records have keys that are no fields of the schema, and where those are that
        show what is in them."""
        self._allocate()

    def look_for_new_keys(self) -> None:
        """From now on, or once more from the first."""
        self._new_keys = new_keys.memory(on=True)

    def __call__(self, values: BinaryColumn) -> tuple[pa.Table, NDArray[np.bool_]]:
        """The rows of the sure records, in order, and for each value whether it is unsure."""
        of_row = int(self._width[self._nodes[:, DOMAIN] == 0].sum()) + 1
        step = max(LEAST_ROOM, WORDS_AT_ONCE // of_row)
        unsure = np.ones(len(values), np.uint8)
        tables = []
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            tables.append(self._read(values[part], unsure[part]))
        rows = pa.concat_tables(tables) if tables else self._arrow_schema.empty_table()
        if self._new_keys[new_keys.ON]:
            self.new, self.samples = int(np.count_nonzero(unsure & NEW)), np.flatnonzero(unsure & SAMPLE)
            unsure &= 1
        return rows, unsure.view(np.bool_)

    def _read(self, values: BinaryColumn, unsure: NDArray[np.uint8]) -> pa.Table:
        if len(values) > self._domains[0, ROOM]:
            self._domains[0, ROOM] = len(values)
            self._allocate()
        data, starts, lengths = _fixed(values.data), _fixed(values.starts), _fixed(values.lengths)
        self._domains[:, USED] = 0
        read = 0
        while True:
            read, lacking = read_records(
                data,
                starts,
                lengths,
                read,
                self._nodes,
                self._lists,
                self._names,
                self._words,
                self._valid,
                self._text,
                self._domains,
                self._frames,
                self._scratch,
                self._slots,
                self._new_keys,
                unsure,
            )
            if read == len(values):
                return self._table(data)
            self._grow(lacking)

    def _allocate(self) -> None:
        entries = self._domains[self._nodes[:, DOMAIN], ROOM]
        words = self._width * entries
        self._nodes[:, BASE] = np.cumsum(words) - words
        self._nodes[:, FLAG] = np.cumsum(entries) - entries
        self._words = np.zeros(max(1, words.sum()), np.int64)
        self._valid = np.zeros(max(1, entries.sum()), np.uint8)
        self._text = np.zeros(self._domains[-1, ROOM], np.uint8)

    def _grow(self, domain: int) -> None:
        """Double the room of one domain; what is written stays."""
        table, words, valid, text = self._nodes.copy(), self._words, self._valid, self._text
        self._domains[domain, ROOM] *= 2
        self._allocate()
        self._text[: len(text)] = text
        for old, new, width in zip(table, self._nodes, self._width, strict=True):
            count = self._domains[old[DOMAIN], USED]
            self._words[new[BASE] :][: width * count] = words[old[BASE] :][: width * count]
            self._valid[new[FLAG] :][:count] = valid[old[FLAG] :][:count]

    def _table(self, data: NDArray[np.uint8]) -> pa.Table:
        arrays = [
            self._array(int(child), field.type, data)
            for child, field in zip(self._fields(0), self._arrow_schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._arrow_schema)

    def _fields(self, k: int) -> Numbers:
        first = self._nodes[k, CHILDREN]
        return self._lists[first : first + self._nodes[k, FIELDS]]

    def _array(self, k: int, target: pa.DataType, data: NDArray[np.uint8]) -> pa.Array:
        node = self._nodes[k]
        kind, count = int(node[KIND]), int(self._domains[node[DOMAIN], USED])
        valid = self._valid[node[FLAG] :][:count].view(np.bool_)
        mask = None if valid.all() else ~valid
        words = self._words[node[BASE] :][: self._width[k] * count]
        if kind == STRUCT:
            parts = [self._array(int(child), target.field(i).type, data) for i, child in enumerate(self._fields(k))]
            return pa.StructArray.from_arrays(parts, fields=list(target), mask=None if mask is None else pa.array(mask))
        if kind == LIST:
            elements = self._array(k + 1, target.value_type, data)
            return pa.LargeListArray.from_arrays(
                _offsets(words, np.int64), elements, type=target, mask=None if mask is None else pa.array(mask)
            )
        if kind == MAP:
            parts = [self._array(k + 1, target.key_type, data), self._array(k + 2, target.item_type, data)]
            return pa.MapArray.from_arrays(
                _offsets(words, np.int32), *parts, type=target, mask=None if mask is None else pa.array(mask)
            )
        buffers = self._buffers(kind, words, count, data)
        if kind == FIXED and mask is not None:
            buffers = [_spread(buffers[0], valid, target.byte_width)]
        bits = None if mask is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        storage = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
        array = pa.Array.from_buffers(storage, count, [bits, *map(pa.py_buffer, buffers)])
        return array if storage is target else pa.ExtensionArray.from_storage(target, array)

    def _buffers(self, kind: int, words: Numbers, count: int, data: NDArray[np.uint8]) -> list[NDArray[Any]]:
        match kind:
            case kinds.STRING | kinds.BINARY | kinds.FIXED:
                offsets = np.zeros(count + 1, np.int64)
                octets = np.empty(int(words[1::2].sum()), np.uint8)
                gathered(data, self._text, words, offsets, octets)
                return [octets] if kind == FIXED else [offsets, octets]
            case kinds.INT | kinds.DATE:
                return [words.astype(np.int32)]
            case kinds.FLOAT:
                return [words.view(np.float64).astype(np.float32)]
            case kinds.BOOLEAN:
                return [np.packbits(words.astype(np.bool_), bitorder="little")]
        return [words.copy()]


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    """The array as the type that the loop is compiled for: contiguous and read-only."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _offsets(ends: Numbers, kind: type[np.signedinteger[Any]]) -> pa.Array:
    return pa.array(np.concatenate([[0], ends]).astype(kind))


def _spread(octets: NDArray[np.uint8], valid: NDArray[np.bool_], length: int) -> NDArray[np.uint8]:
    """Values of one length, with zeros where a value is missing."""
    spread = np.zeros((len(valid), length), np.uint8)
    spread[valid] = octets.reshape(-1, length)
    return spread
