"""JSON messages to Arrow: many at once where that is surely the same as one by one, and one by one where not.

`json_record` reads one record and is the reference; `json_bulk` reads many and says of which it is not sure. A chunk
whose text the bulk parser refuses is cut into pieces; a piece that it refuses is read record by record. Whatever the
cut, each record is the row or the rejection that it is alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from operator import attrgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.ingest.decode import Decoded, Rejection, joined
from frazil.ingest.json_bulk import UNREADABLE, BulkReader, can_read
from frazil.ingest.json_record import RecordReader, Row
from frazil.ingest.json_text import Refused, join_if_safe, joinable
from frazil.ingest.json_types import check_supported

PIECE = 1024
"""Records that are tried together when their chunk was refused: 1,024 cost a few parses' overhead in a chunk."""
SAMPLE = 8
"""So many are asked before a chunk is read; a sound one ends it, so that a sound chunk costs one look."""
_GOLDEN = 0.618034

_Some = tuple[Decoded, NDArray[np.int64]]


class JsonDecoder:
    """Decodes chunks to tables of one schema. Fields that the schema does not name are ignored."""

    def __init__(self, schema: Schema, units: Mapping[int, str]) -> None:
        """Raises SpecError when JSON cannot fill a column's type."""
        struct = schema.as_struct()
        check_supported(struct)
        self._arrow_schema = schema_to_pyarrow(schema, include_field_ids=True)
        self._read = RecordReader(struct, units)
        self._bulk = BulkReader(struct, self._arrow_schema, units) if can_read(struct) else None

    def __call__(self, values: Sequence[bytes | None]) -> Decoded:
        """All of a chunk's values, each either a row or a rejection. Rows that were read singly are the last."""
        if self._bulk is None or self._all_refused(values):
            return self._singly(values, range(len(values)))
        text = join_if_safe(values)
        places = np.arange(len(values))
        if text is not None:
            texts: Sequence[bytes] = values  # type: ignore[assignment]  # no tombstone can be joined
        else:
            found = [joinable(value) for value in values]
            places = np.flatnonzero([text is not None for text in found])
            texts = [text for text in found if text is not None]
            text = b"\n".join(texts)
        decoded, unsure = self._together(text, texts, places)
        alone = np.setdiff1d(np.arange(len(values)), places) if len(places) < len(values) else places[:0]
        unsure = np.sort(np.concatenate([unsure, alone]))
        if len(unsure):
            decoded = joined([decoded, self._singly(values, unsure.tolist())])
            decoded.rejections.sort(key=attrgetter("index"))
        return decoded

    def _all_refused(self, values: Sequence[bytes | None]) -> bool:
        """Whether a few, spread over the chunk, are all refused: such a chunk is not read in bulk first."""
        count = len(values)
        if count < SAMPLE * SAMPLE:
            return False
        places = [int(i * _GOLDEN % 1 * count) for i in range(SAMPLE)]  # even steps might meet every second record
        return all(isinstance(self._read(values[place]), Refused) for place in places)

    def _together(self, text: bytes, texts: Sequence[bytes], places: NDArray[np.int64]) -> _Some:
        """The rows of these texts, `text` when joined, and the places of those that must be read singly."""
        try:
            return self._in_bulk(text, places)
        except UNREADABLE:
            tried: list[_Some] = []
        refused = len(texts) <= PIECE
        for start in range(0, len(texts), PIECE):
            piece, where = texts[start : start + PIECE], places[start : start + PIECE]
            if not refused:
                try:
                    tried.append(self._in_bulk(b"\n".join(piece), where))
                    continue
                except UNREADABLE:
                    pass
            # Where one piece is refused, so is the next, more often than not: that is not tried as it is.
            tried.append(self._screened(piece, where))
            refused = len(tried[-1][0].kept) < len(piece)
        return joined([decoded for decoded, _ in tried]), np.concatenate([unsure for _, unsure in tried])

    def _screened(self, texts: Sequence[bytes], places: NDArray[np.int64]) -> _Some:
        """A piece that the bulk parser refused, tried once more without the records that do not look sound."""
        screened = [*map(self._read.screened, texts)]
        sound = np.array([found is None for found in screened])
        others = self._made(zip(places.tolist(), screened, strict=True))
        kept, unsure = self._decoded([], []), places[sound]
        with suppress(*UNREADABLE):
            kept, unsure = self._in_bulk(b"\n".join(compress(texts, sound.tolist())), places[sound])
        return joined([kept, others]), unsure

    def _in_bulk(self, text: bytes, places: NDArray[np.int64]) -> _Some:
        assert self._bulk is not None
        if not len(places):
            return self._decoded([], []), places
        rows, unsure = self._bulk(text, len(places))
        if unsure is None or not unsure.any():
            return Decoded(rows, places), places[:0]
        return Decoded(rows.filter(pa.array(~unsure)), places[~unsure]), places[unsure]

    def _singly(self, values: Sequence[bytes | None], places: Sequence[int]) -> Decoded:
        return self._made(zip(places, map(self._read, (values[place] for place in places)), strict=True))

    def _made(self, found: Iterable[tuple[int, Row | Refused | None]]) -> Decoded:
        """What single records were found to be, by place; None is another's."""
        rows: list[Row] = []
        kept: list[int] = []
        rejections: list[Rejection] = []
        for place, row in found:
            if isinstance(row, Refused):
                rejections.append(Rejection(place, row.error_class, row.error))
            elif row is not None:
                rows.append(row)
                kept.append(place)
        return self._decoded(rows, kept, rejections)

    def _decoded(self, rows: list[Row], kept: list[int], rejections: Sequence[Rejection] = ()) -> Decoded:
        columns = zip(*rows, strict=True) if rows else [()] * len(self._arrow_schema)
        arrays = [_array(column, field.type) for column, field in zip(columns, self._arrow_schema, strict=True)]
        return Decoded(pa.Table.from_arrays(arrays, schema=self._arrow_schema), np.array(kept, np.int64), [*rejections])


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    storage = _storage(kind)
    array = pa.array(values, storage)
    return array if storage == kind else array.cast(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """The type without extensions, which Arrow does not build from values inside others."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_storage(kind.item_type)))
    return kind
