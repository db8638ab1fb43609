"""Decodes JSON in frames of Confluent serializers (a zero byte, a schema id), and records with one object per line.
Puts schema ids from headers before the values of any format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.decode import (
    DecodedChunk,
    FormatDecoder,
    Rejection,
    WrappingDecoder,
    drop_incomplete_records,
    join_results,
    run_starts,
)

MAX_LINES = 100_000
"""Maximum number of lines per record. Many empty lines would need much memory."""
TARGET_LINES = 500_000
_NEWLINE = 10
_IS_WHITE = np.zeros(256, np.bool_)
_IS_WHITE[[*b" \t\r"]] = True


class LinesDecoder(WrappingDecoder):
    """Decodes records with one JSON object per line. One rejected line rejects the whole record."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        values = chunk.values
        filled = np.flatnonzero(values.lengths > 0)
        breaks = np.zeros(len(values), np.int64)
        if len(filled):
            breaks[filled] = _count_true(values.data == _NEWLINE, values.starts[filled], values.lengths[filled])
        too_many = np.flatnonzero(breaks >= MAX_LINES)
        parts = [self._decode_group(values.take(picked)).with_indexes(picked) for picked in _group_records(breaks)]
        rejections = [
            Rejection(position, "TooManyLines", f"the value has more than {MAX_LINES:,} lines")
            for position in too_many.tolist()
        ]
        return join_results([self._decode(RecordChunk.of_values([])).with_rejections(rejections), *parts])

    def _decode_group(self, values: BinaryColumn) -> DecodedChunk:
        lines, record = _split_lines(values)
        is_blank = np.ones(len(values), np.bool_)
        is_blank[record] = False
        blank = np.flatnonzero(is_blank)
        # Null, empty and blank records go to the decoder, for its error messages.
        record = np.concatenate([record, blank])
        number = np.arange(len(record)) - run_starts(record)
        starts = np.concatenate([lines.starts, values.starts[blank]])
        lengths = np.concatenate([lines.lengths, values.lengths[blank]])
        decoded = self._decode(RecordChunk.of_column(BinaryColumn(lines.data, starts, lengths)))
        order = np.argsort(decoded.record_indexes, kind="stable")
        record_indexes, rows = decoded.record_indexes[order], decoded.rows
        if not (order == np.arange(len(order))).all():
            rows = rows.take(order)
        several = np.bincount(record, minlength=len(values)) > 1
        first: dict[int, Rejection] = {}
        for rejection in sorted(decoded.rejections, key=lambda r: r.index):
            position = int(record[rejection.index])
            where = f"line {number[rejection.index] + 1}: " if several[position] else ""
            first.setdefault(position, Rejection(position, rejection.error_class, f"{where}{rejection.error}"))
        return drop_incomplete_records(DecodedChunk(rows, record[record_indexes], [*first.values()], decoded.drift))


def _count_true(marks: NDArray[np.bool_], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    bounds = np.stack([starts, starts + lengths], axis=1).ravel()
    if bounds.max() == len(marks):
        marks = np.append(marks, False)
    sums: NDArray[np.int64] = np.add.reduceat(marks, bounds, dtype=np.int64)[::2]
    return sums


def _group_records(breaks: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield groups of record indexes to decode together. Skips records that have too many lines."""
    picked = np.flatnonzero(breaks < MAX_LINES)
    group = np.cumsum(breaks[picked] + 1) // TARGET_LINES
    yield from np.split(picked, np.flatnonzero(np.diff(group)) + 1)


def _split_lines(values: BinaryColumn) -> tuple[BinaryColumn, NDArray[np.int64]]:
    filled = np.flatnonzero(values.lengths > 0)
    low = values.starts[filled]
    order = np.argsort(low, kind="stable")
    low, high = low[order], (low + values.lengths[filled])[order]
    window = (int(low[0]), int(high.max())) if len(low) else (0, 0)
    breaks = np.flatnonzero(values.data[slice(*window)] == _NEWLINE) + window[0]
    owner = np.searchsorted(low, breaks, "right") - 1
    inside = breaks < high[owner] if len(breaks) else np.zeros(0, np.bool_)
    breaks, owner = breaks[inside], owner[inside]
    record = np.concatenate([np.arange(len(low)), owner])
    begins = np.concatenate([low, breaks + 1])
    ends = np.concatenate([high, breaks])
    by_begin = np.lexsort((begins, record))
    begins, ends, record = begins[by_begin], ends[np.lexsort((ends, record))], filled[order][record[by_begin]]
    some = np.flatnonzero(ends > begins)
    inked = ~_IS_WHITE[values.data[begins[some]]]
    if not inked.all():
        odd = some[~inked]
        is_ink = ~_IS_WHITE[values.data[slice(*window)]]
        inked[~inked] = _count_true(is_ink, begins[odd] - window[0], (ends - begins)[odd]) > 0
    some = some[inked]
    some = some[np.argsort(record[some], kind="stable")]
    return BinaryColumn(values.data, begins[some], (ends - begins)[some]), record[some]


FRAME_BYTES = 5
"""Bytes of the frame before a record: a zero byte and the schema's id, big-endian."""


class FramedDecoder(WrappingDecoder):
    """Removes the frame of Confluent's serializers from each value. Rejects values without a frame."""

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        return self._decode.field_names(record[FRAME_BYTES:], path)

    def changes_no_row(self, record: bytes) -> bool:
        return self._decode.changes_no_row(record[FRAME_BYTES:])

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        values = chunk.values
        has_value = values.lengths >= 0
        framed = framed_mask(values, FRAME_BYTES)
        size = np.where(framed, FRAME_BYTES, 0)
        inside = BinaryColumn(values.data, values.starts + size, values.lengths - size)
        bare = np.flatnonzero(has_value & ~framed)
        if not len(bare):
            return self._decode(RecordChunk.of_column(inside))
        others = np.flatnonzero(~has_value | framed)
        decoded = self._decode(RecordChunk.of_column(inside.take(others))).with_indexes(others)
        declared, remedy = (
            "{type: json, framing: confluent}",
            "write it with the registry's serializer, or declare framing: none",
        )
        texts = [(position, not_framed_text(values[position] or b"", declared, remedy)) for position in bare.tolist()]
        return decoded.with_rejections(Rejection(position, "NotFramed", text) for position, text in texts)


def framed_mask(values: BinaryColumn, min_bytes: int) -> NDArray[np.bool_]:
    """Return a mask of the values that begin with a zero byte and have at least `min_bytes`."""
    framed = values.lengths >= min_bytes
    framed[framed] = values.data[values.starts[framed]] == 0
    return framed


def not_framed_text(value: bytes, declared: str, remedy: str) -> str:
    form = "is plain JSON" if value.lstrip().startswith(b"{") else "does not begin with a zero byte and a schema id"
    return f"the value {form}, but source.format is {declared}: {remedy}"


VALUE_SCHEMA_ID = "__value_schema_id"
_ID, _GUID = 0, 1
"""First byte of the header: an id of four bytes follows, or a GUID of 16."""
_ID_END, _GUID_END = 5, 17


class HeaderIdDecoder(WrappingDecoder):
    """Puts the schema id of a header, which newer Confluent serializers write, before the value as a frame.

    The header has a byte, the schema's id or GUID, and Protobuf's message indexes.
    """

    def __init__(self, decode: FormatDecoder, id_of: Callable[[bytes], int]) -> None:
        """`id_of` returns a schema id for a GUID."""
        super().__init__(decode)
        self._id_of = id_of

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if chunk.headers is None:
            return self._decode(chunk)
        from frazil.ingest.binary_arrays import header_column  # loads the compiler

        headers = header_column(chunk.headers, VALUE_SCHEMA_ID, len(chunk))
        has_id = (headers.lengths != NULL) & (chunk.values.lengths != NULL)
        if not has_id.any():
            return self._decode(chunk)
        values = [*chunk.values]
        wrong = []
        for position in np.flatnonzero(has_id).tolist():
            header = headers[position] or b""
            frame = self._frame(header)
            if frame is None:
                text = f"the header {VALUE_SCHEMA_ID} has neither an id nor a GUID: {header[:20].hex(' ')}"
                wrong.append(Rejection(position, "NotFramed", text))
            else:
                values[position] = frame + (values[position] or b"")
        good = np.setdiff1d(np.arange(len(chunk)), [r.index for r in wrong])
        part = chunk.select(good, chunk.target)
        decoded = self._decode(dataclasses.replace(part, values=BinaryColumn.of([values[i] for i in good.tolist()])))
        return decoded.with_indexes(good).with_rejections(wrong)

    def _frame(self, header: bytes) -> bytes | None:
        if len(header) >= _ID_END and header[0] == _ID:
            return header
        if len(header) >= _GUID_END and header[0] == _GUID:
            schema_id = self._id_of(header[1:_GUID_END]) & 0xFFFFFFFF
            return b"\0" + schema_id.to_bytes(4) + header[_GUID_END:]
        return None
