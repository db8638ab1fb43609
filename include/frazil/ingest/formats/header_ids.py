"""Reads schema ids from the header of newer Confluent serializers, and puts them before the value as a frame. The
header has a byte, the schema's id or GUID, and Protobuf's message indexes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from frazil.ingest.binary_arrays import header_column
from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.decode import DecodedChunk, FormatDecoder, Rejection, WrappingDecoder

VALUE_SCHEMA_ID = "__value_schema_id"
_ID, _GUID = 0, 1
"""First byte of the header: an id of four bytes follows, or a GUID of 16."""
_ID_END, _GUID_END = 5, 17


class HeaderIdDecoder(WrappingDecoder):
    def __init__(self, decode: FormatDecoder, id_of: Callable[[bytes], int]) -> None:
        """`id_of` returns a schema id for a GUID."""
        super().__init__(decode)
        self._id_of = id_of

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if chunk.headers is None:
            return self._decode(chunk)
        headers = header_column(chunk.headers, VALUE_SCHEMA_ID, len(chunk))
        named = (headers.lengths != NULL) & (chunk.values.lengths != NULL)
        if not named.any():
            return self._decode(chunk)
        values = [*chunk.values]
        wrong = []
        for place in np.flatnonzero(named).tolist():
            header = headers[place] or b""
            frame = self._frame(header)
            if frame is None:
                text = f"the header {VALUE_SCHEMA_ID} has neither an id nor a GUID: {header[:20].hex(' ')}"
                wrong.append(Rejection(place, "NotFramed", text))
            else:
                values[place] = frame + (values[place] or b"")
        good = np.setdiff1d(np.arange(len(chunk)), [r.index for r in wrong])
        part = chunk.select(good, chunk.target)
        decoded = self._decode(dataclasses.replace(part, values=BinaryColumn.of([values[i] for i in good.tolist()])))
        return decoded.with_indexes(good).with_rejections(wrong)

    def _frame(self, header: bytes) -> bytes | None:
        if len(header) >= _ID_END and header[0] == _ID:
            return header
        if len(header) >= _GUID_END and header[0] == _GUID:
            made = self._id_of(header[1:_GUID_END]) & 0xFFFFFFFF
            return b"\0" + made.to_bytes(4) + header[_GUID_END:]
        return None
