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

from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoded, Rejection, joined
from frazil.ingest.formats.json.bulk import UNREADABLE, BulkReader, can_read
from frazil.ingest.formats.json.record import TYPE_MISMATCH, RecordReader, Row
from frazil.ingest.formats.json.text import Refused, join_if_safe, joinable, may_be_special, without_far_exponents
from frazil.ingest.formats.json.types import check_supported

PIECE = 1024
"""Records that are tried together when their chunk was refused: 1,024 cost a few parses' overhead in a chunk."""
SAMPLE = 8
"""So many are looked at before a chunk is read, and of a small one fewer: one of 64 at most."""
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

    def __call__(self, chunk: Chunk) -> Decoded:
        """Each record is its value alone. Rows that were read singly are the last."""
        values = [*chunk.values]
        refused = self._refused_of_sample(values)
        if self._bulk is None or (refused and all(refused)):
            return self._singly(values, range(len(values)))
        text = join_if_safe(values)
        places = np.arange(len(values))
        if text is not None:
            return self._with_singles(values, *self._together(text, values, places, any(refused)))
        found = [joinable(value) for value in values]
        texts = [text for text in found if isinstance(text, bytes)]
        joinable_places = places[[isinstance(text, bytes) for text in found]]
        decoded, unsure = self._together(b"\n".join(texts), texts, joinable_places, any(refused))
        others = self._made((i, text) for i, text in enumerate(found) if isinstance(text, Refused))
        alone = np.flatnonzero([text is None for text in found])
        return self._with_singles(values, joined([decoded, others]), np.sort(np.concatenate([unsure, alone])))

    def _with_singles(self, values: Sequence[bytes | None], decoded: Decoded, unsure: NDArray[np.int64]) -> Decoded:
        if len(unsure):
            decoded = joined([decoded, self._singly(values, unsure.tolist())])
        decoded.rejections.sort(key=attrgetter("index"))
        return decoded

    def _refused_of_sample(self, values: Sequence[bytes | None]) -> list[bool]:
        """Of a few, spread over the chunk, whether the parser refuses each; of a small chunk, of none.

        Where it refuses all, the chunk is read singly; where some, the bulk parser may refuse the chunk as it is.
        """
        count = len(values)
        looks = min(SAMPLE, count // SAMPLE**2)
        places = [int(i * _GOLDEN % 1 * count) for i in range(looks)]  # even steps might meet every second record
        texts = [joinable(values[place]) for place in places]
        given = [text for text in texts if isinstance(text, bytes)]
        screened = iter(self._read.screened(given, may_be_special(given)))
        return [isinstance(next(screened) if isinstance(text, bytes) else text, Refused) for text in texts]

    def _together(self, text: bytes, texts: Sequence[bytes], places: NDArray[np.int64], refused: bool) -> _Some:
        """The rows of these texts, `text` when joined, and the places of those that must be read singly.

        Where `refused` says that some are bad, they are not tried together first.
        """
        if not refused:
            with suppress(*UNREADABLE):
                return self._in_bulk(text, places)
        tried: list[_Some] = []
        special = may_be_special(texts)
        takeable = without_far_exponents(texts, special)
        refused = not refused and len(texts) <= PIECE and takeable is texts
        for start in range(0, len(texts), PIECE):
            part = slice(start, start + PIECE)
            forms, where = takeable[part], places[part]
            if not refused:
                try:
                    tried.append(self._in_bulk(b"\n".join(forms), where))
                    continue
                except UNREADABLE:
                    pass
            # Where one piece is refused, so is the next, more often than not: that is not tried as it is.
            tried.append(self._screened(self._read.screened(texts[part], special[part]), forms, where))
            refused = len(tried[-1][0].kept) < len(forms)
        return joined([decoded for decoded, _ in tried]), np.concatenate([unsure for _, unsure in tried])

    def _screened(
        self, screened: list[Row | Refused | None], forms: Sequence[bytes], places: NDArray[np.int64]
    ) -> _Some:
        """A piece that the bulk parser refused, tried once more without the records that do not look sound."""
        sound = np.array([found is None for found in screened])
        others = self._made(zip(places.tolist(), screened, strict=True))
        kept, unsure = self._decoded([], []), places[sound]
        with suppress(*UNREADABLE):
            kept, unsure = self._in_bulk(b"\n".join(compress(forms, sound.tolist())), places[sound])
        return joined([kept, others]), unsure

    def _in_bulk(self, text: bytes, places: NDArray[np.int64]) -> _Some:
        assert self._bulk is not None
        if not len(places):
            return self._decoded([], []), places
        rows, unsure, wrong = self._bulk(text, len(places))
        if unsure is None and not wrong:
            return Decoded(rows, places), places[:0]
        sure = np.ones(len(places), np.bool_) if unsure is None else ~unsure
        unread = places[~sure]
        sure[[*wrong]] = False
        rejections = [Rejection(int(places[row]), TYPE_MISMATCH, why) for row, why in wrong.items()]
        return Decoded(rows.filter(pa.array(sure)), places[sure], rejections), unread

    def _singly(self, values: Sequence[bytes | None], places: Sequence[int]) -> Decoded:
        return self._made(zip(places, self._read.each([values[place] for place in places]), strict=True))

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
