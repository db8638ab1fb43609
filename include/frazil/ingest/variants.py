"""Encodes the JSON text of variant columns in binary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isinf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import VARIANT_GROUP
from frazil.ingest.formats.json import variant as loops
from frazil.ingest.formats.json.scan import NO
from frazil.ingest.formats.json.text import MAX_DEPTH, change_outside_strings
from frazil.spec.iceberg import variant_columns

MAX_TEXT_BYTES = 4 * 2**20
"""Maximum bytes of texts that are encoded together, unless one text is longer."""
_ERRORS = {
    loops.INVALID: ("InvalidJson", "is not valid JSON"),
    loops.DUPLICATE: ("TypeMismatch", "has an object with the same field twice, which a variant cannot store"),
    loops.UNCERTAIN: ("OutOfRange", "has a number that is too large for a double"),
}
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class VariantEncoder:
    """Encodes the variant columns of tables, in memory that is reused."""

    def __init__(self, schema: Schema, *, keeps_json: bool = False) -> None:
        """If `keeps_json` is set, the rows keep the texts, but errors are found."""
        self._names, self._keeps_json = variant_columns(schema), keeps_json
        self._scratch = create_scratch(1024)

    def __call__(self, rows: pa.Table) -> tuple[pa.Table, dict[int, tuple[str, str]]]:
        """Return the rows with encoded columns, and class and text of the error by row. Such rows must be rejected."""
        failures: dict[int, tuple[str, str]] = {}
        for name in self._names:
            index, parts, first = rows.schema.get_field_index(name), [], 0
            for texts in _split(rows.column(index)):
                group, errors = self._encode(texts)
                for row in np.flatnonzero(errors).tolist():
                    error_class, problem = _ERRORS[int(errors[row])]
                    failures[first + row] = error_class, f"{name}: {problem}"
                parts.append(group)
                first += len(texts)
            if not self._keeps_json:
                field = rows.schema.field(index).with_type(VARIANT_GROUP)
                rows = rows.set_column(index, field, pa.chunked_array(parts, VARIANT_GROUP))
        return rows, failures

    def _encode(self, texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
        group, errors = self._encode_in_loop(texts)
        if loops.UNCERTAIN not in errors:
            return group, errors
        certain = [
            _with_doubles(text.as_py()) if error == loops.UNCERTAIN else text.as_py()
            for text, error in zip(texts, errors.tolist(), strict=True)
        ]
        return self._encode_in_loop(pa.array(certain, pa.large_string()))

    def _encode_in_loop(self, texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
        count, buffers = len(texts), texts.buffers()
        offsets = np.frombuffer(buffers[1], np.int64)[texts.offset : texts.offset + count + 1]
        longest, total = int(np.diff(offsets).max(initial=0)), int(offsets[-1] - offsets[0])
        if longest + 32 > len(self._scratch.line):
            self._scratch = create_scratch(2 * longest)
        errors = np.zeros(count, np.int64)
        # Bytes that a text of n bytes needs at most: nested arrays of over 16 MiB need five times n.
        memory = [np.empty(factor * total + 16 * count, np.uint8) for factor in (2, 5)]
        ends = [np.zeros(count + 1, np.int64) for _ in memory]
        text = buffers[2].address if buffers[2] else 0
        loops.encode_variants(offsets.copy(), text, memory[1], ends[1], memory[0], ends[0], errors, self._scratch)
        null = texts.is_null().to_numpy(zero_copy_only=False)
        errors[np.diff(offsets) == 0] = loops.INVALID
        errors[null] = 0
        parts = [
            pa.Array.from_buffers(
                pa.large_binary(), count, [None, pa.py_buffer(end), pa.py_buffer(octets[: end[-1]].copy())]
            )
            for octets, end in zip(memory, ends, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=[*VARIANT_GROUP], mask=pa.array(null)), errors


def create_scratch(longest: int) -> loops.Scratch:
    max_values = longest // 2 + 2
    return loops.Scratch(
        line=np.zeros(longest + 32, np.uint8),
        names=np.zeros(longest + 32, np.uint8),
        ends=np.zeros(max_values, np.int64),
        slots=np.full(1 << max(6, max_values.bit_length()), NO, np.int64),
        key_slots=np.zeros(max_values, np.int64),
        trace=np.zeros(max_values, np.int64),
        shapes=np.zeros(max_values, np.int64),
        orders=np.zeros(max_values, np.int64),
        track=np.zeros(5, np.int64),
        opened=np.zeros(3 * MAX_DEPTH, np.int64),
        entries=np.zeros(2 * (max_values + MAX_DEPTH), np.int64),
    )


def _split(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        ends = np.cumsum(pc.binary_length(chunk).fill_null(0).to_numpy(zero_copy_only=False))
        first = 0
        while first < len(chunk):
            start = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, start + MAX_TEXT_BYTES, "right")))
            yield chunk.slice(first, end - first)
            first = end


def _with_doubles(text: str) -> str:
    """Replace each number that is not an exact integer or decimal by its nearest double. Keeps infinite ones."""

    def shorten(match: re.Match[bytes]) -> bytes:
        number, exponent, value = match[0].strip(b"-"), b"e" in match[0].lower(), float(match[0])
        digits, scale = number.replace(b".", b"").lstrip(b"0"), len(number.partition(b".")[2])
        is_exact = not exponent and max(len(digits), scale) <= loops.MAX_DIGITS
        return match[0] if is_exact or isinf(value) else repr(value).encode()

    return change_outside_strings(text.encode(), b"", b"", lambda part: _NUMBER.sub(shorten, part)).decode()
