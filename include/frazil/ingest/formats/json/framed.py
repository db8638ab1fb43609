"""Decodes JSON from Confluent's serializers. Skips the frame (a zero byte and a schema id) before the JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import DecodedChunk, EventDecoder, Rejection, WrappingDecoder, join_results

FRAME_BYTES = 5


def strip_frame(record: bytes) -> bytes:
    """Return a record without its frame."""
    return record[FRAME_BYTES:]


class FramedDecoder(WrappingDecoder):
    """Decodes the content of framed values. A value without a frame is rejected."""

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        assert isinstance(self._decode, EventDecoder)
        return self._decode.field_names(strip_frame(record), path)

    def is_other_event(self, record: bytes) -> bool:
        assert isinstance(self._decode, EventDecoder)
        return self._decode.is_other_event(strip_frame(record))

    def __call__(self, chunk: Chunk) -> DecodedChunk:
        values = chunk.values
        has_value = values.lengths >= 0
        framed = values.lengths >= FRAME_BYTES
        framed[framed] = values.data[values.starts[framed]] == 0
        inside = BinaryColumn(
            values.data,
            np.where(framed, values.starts + FRAME_BYTES, values.starts),
            np.where(framed, values.lengths - FRAME_BYTES, values.lengths),
        )
        bare = np.flatnonzero(has_value & ~framed)
        if not len(bare):
            return self._decode(Chunk.of_column(inside))
        rest = np.flatnonzero(~has_value | framed)
        decoded = self._decode(Chunk.of_column(inside.take(rest))).with_indexes(rest)
        rejections = [Rejection(place, "NotFramed", _not_framed_text(values[place] or b"")) for place in bare.tolist()]
        return join_results([decoded, DecodedChunk(decoded.rows.slice(0, 0), np.zeros(0, np.int64), rejections)])


def _not_framed_text(value: bytes) -> str:
    what = "is plain JSON" if value.lstrip().startswith(b"{") else "has no zero byte and schema id before it"
    return (
        f"the value {what}, but source.format is {{type: json, framing: confluent}}: write it with the serializer of "
        "the registry, or declare framing: none"
    )
