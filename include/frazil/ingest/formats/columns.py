"""Allocates the memory of the columns that a compiled loop fills (layout: `json.words`), and converts it to Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.rest import is_rest
from frazil.ingest.formats.json.types import Units
from frazil.ingest.formats.json.words import ROOM, USED, Memory, copy_strings
from frazil.ingest.schema_drift import Path

TARGET_WORDS = 4 * 2**20
"""Approximate memory, in 64-bit words, for records that are read together."""
MIN_RECORDS = 1024


class ColumnMemory:
    """Memory for the columns of one schema, reused for the next records. Arrow tables are copies of it."""

    def __init__(self, schema: Schema, units: Units, hidden: Collection[Path] = ()) -> None:
        """`hidden` has the lower-case paths of the fields that `rest` columns omit."""
        self.arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._schema, self._units = schema.as_struct(), units
        self.nodes, self.lists, self.names, self.fields = tree.build_nodes(self._schema, units, hidden)
        self._by_path = {field.path: k for k, field in enumerate(self.fields)}
        self._width = tree.WORDS[self.nodes[:, tree.KIND]]
        self.entry_counts = np.zeros((2 + int((self.nodes[:, tree.KIND] >= tree.LIST).sum()), 3), np.int64)
        self.entry_counts[1:, ROOM] = MIN_RECORDS
        self._casts: Mapping[str, Path] = {}
        self._allocate()

    @property
    def memory(self) -> Memory:
        """The current arrays; `begin` and `grow` may replace them."""
        return Memory(self.nodes, self.words, self.valid, self.entry_counts)

    @property
    def field_names(self) -> frozenset[str]:
        return frozenset(field.name for field in self._schema.fields if not is_rest(field, self._units))

    def cast(self, columns: Mapping[str, Path]) -> None:
        self._casts = columns
        for k in map(self._by_path.__getitem__, columns.values()):
            self.nodes[k, tree.CAST] = self.nodes[k, tree.KIND] in tree.CASTABLE

    def take_casts(self) -> Counter[str]:
        """Return the number of cast values by column, and clear their marks."""
        casts: Counter[str] = Counter()
        for name, path in self._casts.items():
            flags = self.valid[self.nodes[self._by_path[path], tree.FLAG] :][: self.entry_counts[0, USED]]
            casts[name] = int(np.count_nonzero(flags == 2))
            np.minimum(flags, 1, out=flags)
        return casts

    def watch(self, paths: Sequence[Path]) -> None:
        """Search for new keys only in the structs at these paths, including nested structs."""
        self.nodes[:, tree.WATCHED] = 0
        for path in paths:
            k = self._by_path[path]
            self.nodes[k : self.nodes[k, tree.AFTER], tree.WATCHED] = (
                self.nodes[k : self.nodes[k, tree.AFTER], tree.KIND] != tree.LISTED
            )

    def parts(self, count: int) -> Iterator[slice]:
        of_row = int(self._width[self.nodes[:, tree.ENTRY_SET] == 0].sum()) + 1
        step = max(MIN_RECORDS, TARGET_WORDS // of_row)
        return (slice(start, start + step) for start in range(0, count, step))

    def begin(self, rows: int, text: bytes = b"") -> None:
        """Remove all values, and make room for `rows` rows. `text` becomes the start of the memory for strings."""
        if rows > self.entry_counts[0, ROOM] or len(text) > self.entry_counts[-1, ROOM]:
            self.entry_counts[0, ROOM] = max(rows, self.entry_counts[0, ROOM])
            self.entry_counts[-1, ROOM] = max(len(text), self.entry_counts[-1, ROOM])
            self._allocate()
        self.entry_counts[:, USED] = 0
        self.entry_counts[-1, USED] = len(text)
        self.text[: len(text)] = np.frombuffer(text, np.uint8)

    def _allocate(self) -> None:
        entries = self.entry_counts[self.nodes[:, tree.ENTRY_SET], ROOM]
        words = self._width * entries
        self.nodes[:, tree.BASE] = np.cumsum(words) - words
        self.nodes[:, tree.FLAG] = np.cumsum(entries) - entries
        self.words = np.zeros(max(1, words.sum()), np.int64)
        self.valid = np.zeros(max(1, entries.sum()), np.uint8)
        self.text = np.zeros(self.entry_counts[-1, ROOM], np.uint8)

    def grow(self, entry_set: int) -> None:
        """Double the room of one entry set (see `json.nodes`), and keep its values."""
        table, words, valid, text = self.nodes.copy(), self.words, self.valid, self.text
        self.entry_counts[entry_set, ROOM] *= 2
        self._allocate()
        self.text[: len(text)] = text
        for old, new, width in zip(table, self.nodes, self._width, strict=True):
            count = self.entry_counts[old[tree.ENTRY_SET], USED]
            self.words[new[tree.BASE] :][: width * count] = words[old[tree.BASE] :][: width * count]
            self.valid[new[tree.FLAG] :][:count] = valid[old[tree.FLAG] :][:count]

    def table(self, data: NDArray[np.uint8]) -> pa.Table:
        arrays = [
            self._to_array(int(child), field.type, data)
            for child, field in zip(self._child_nodes(0), self.arrow_schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.arrow_schema)

    def _child_nodes(self, k: int) -> Numbers:
        first = self.nodes[k, tree.CHILDREN]
        return self.lists[first : first + self.nodes[k, tree.FIELDS]]

    def _to_array(self, k: int, target: pa.DataType, data: NDArray[np.uint8]) -> pa.Array:
        node = self.nodes[k]
        kind, count = int(node[tree.KIND]), int(self.entry_counts[node[tree.ENTRY_SET], USED])
        valid = self.valid[node[tree.FLAG] :][:count].view(np.bool_)
        mask = None if valid.all() else ~valid
        words = self.words[node[tree.BASE] :][: self._width[k] * count]
        if kind in {tree.STRUCT, tree.LISTED}:
            parts = [
                self._to_array(int(child), target.field(i).type, data) for i, child in enumerate(self._child_nodes(k))
            ]
            return pa.StructArray.from_arrays(parts, fields=list(target), mask=None if mask is None else pa.array(mask))
        if kind == tree.LIST:
            elements = self._to_array(k + 1, target.value_type, data)
            return pa.LargeListArray.from_arrays(
                _offsets(words, np.int64), elements, type=target, mask=None if mask is None else pa.array(mask)
            )
        if kind == tree.MAP:
            parts = [self._to_array(k + 1, target.key_type, data), self._to_array(k + 2, target.item_type, data)]
            return pa.MapArray.from_arrays(
                _offsets(words, np.int32), *parts, type=target, mask=None if mask is None else pa.array(mask)
            )
        buffers = self._buffers(kind, words, count, data)
        if kind == tree.FIXED and mask is not None:
            spread = np.zeros((len(valid), target.byte_width), np.uint8)
            spread[valid] = buffers[0].reshape(-1, target.byte_width)
            buffers = [spread]
        bits = None if mask is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
        storage = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
        array = pa.Array.from_buffers(storage, count, [bits, *map(pa.py_buffer, buffers)])
        return array if storage is target else pa.ExtensionArray.from_storage(target, array)

    def _buffers(self, kind: int, words: Numbers, count: int, data: NDArray[np.uint8]) -> list[NDArray[Any]]:
        match kind:
            case tree.STRING | tree.BINARY | tree.FIXED | tree.JSON | tree.JSON_TEXT | tree.REST:
                offsets = np.zeros(count + 1, np.int64)
                octets = np.empty(int(words[1::2].sum()), np.uint8)
                copy_strings(data, self.text, words, offsets, octets)
                return [octets] if kind == tree.FIXED else [offsets, octets]
            case tree.INT | tree.DATE:
                return [words.astype(np.int32)]
            case tree.FLOAT:
                return [words.view(np.float64).astype(np.float32)]
            case tree.BOOLEAN:
                return [np.packbits(words.astype(np.bool_), bitorder="little")]
        return [words.copy()]


def _offsets(ends: Numbers, kind: type[np.signedinteger[Any]]) -> pa.Array:
    return pa.array(np.concatenate([[0], ends]).astype(kind))
