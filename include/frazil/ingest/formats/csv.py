"""Decodes delimited lines to Arrow: a compiled loop rewrites them as JSON objects for the JSON decoder."""

# ruff: noqa: PLR0913, PLR0917 - one loop that does everything for a record

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from frazil.ingest.binary_arrays import as_loop_arguments, locate_invalid_utf8
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import DecodedChunk, FormatDecoder, Rejection, join_results
from frazil.ingest.formats.json.decoder import JsonDecoder
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scan import Octets, loop, number_end
from frazil.spec.formats import CsvFormat

JSON_BUFFER_BYTES = 8 * 2**20
"""Size of the buffer for JSON. A chunk that needs more is decoded in parts."""

_NUMBERS = (iceberg.IntegerType, iceberg.LongType, iceberg.FloatType, iceberg.DoubleType)

VALID, NO_VALUE, EMPTY, WRONG_COUNT, NO_CLOSING_QUOTE, AFTER_QUOTE, SEVERAL_LINES = range(7)
"""Outcome codes that the compiled loop stores for each record."""
# Kinds of JSON values as which a field is written.
SKIPPED, TEXT, TRIMMED, NUMBER, BOOLEAN = range(5)

_NEWLINE, _RETURN, _SPACE, _TAB, _QUOTE, _BACKSLASH = 10, 13, 32, 9, 34, 92


class LineFormat(NamedTuple):
    names: Octets
    """The JSON text before each field's value, concatenated. `name_ends` has the end of each text."""
    name_ends: Numbers
    kinds: Numbers
    null: Octets
    delimiter: int
    quote: int
    """Code of the quotation mark; -1 if fields cannot be quoted."""


class CsvDecoder(FormatDecoder):
    """Decodes chunks to tables with one schema. Columns that no field fills are null."""

    def __init__(self, declared: CsvFormat, schema: Schema, units: Mapping[int, str]) -> None:
        self._decode = JsonDecoder(schema, units)
        self._line = LineReader(declared)
        fields = {field.name: field for field in schema.fields}
        columns = [fields.get(name) for name in declared.columns]
        names = [
            b"" if field is None else b",%s:" % json.dumps(field.name, ensure_ascii=False).encode() for field in columns
        ]
        self._format = LineFormat(
            np.frombuffer(b"".join(names), np.uint8),
            np.cumsum([0, *map(len, names)]),
            np.array([_json_kind(field, units) for field in columns], np.int64),
            np.frombuffer(declared.null.encode(), np.uint8),
            ord(declared.delimiter),
            -1 if declared.quote is None else ord(declared.quote),
        )
        self._room = np.empty(JSON_BUFFER_BYTES, np.uint8)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode the values in parts that fit the JSON buffer. Rows of records read again come last in a part."""
        values = chunk.values
        parts, decoded = [], 0
        while decoded < len(values):
            until, part = self._decode_part(values, decoded)
            parts.append(part)
            decoded = until
        return join_results(parts) if parts else self._decode(chunk)

    def _decode_part(self, values: BinaryColumn, first: int) -> tuple[int, DecodedChunk]:
        """Decode as many records from index `first` as fit into the buffer. Returns the next index and the result."""
        spans, outcomes = np.zeros((2, len(values)), np.int64), np.zeros(len(values), np.uint8)
        until, needed = write_objects(*as_loop_arguments(values), first, self._format, self._room, spans, outcomes)
        if needed:
            usual, self._room = self._room, np.empty(needed, np.uint8)
            try:
                _, part = self._decode_part(values[first : first + 1], 0)
            finally:
                self._room = usual
            return first + 1, part.with_indexes(np.array([first]))
        valid = first + np.flatnonzero(outcomes[first:until] == VALID)
        invalid_at = locate_invalid_utf8(values.take(valid))
        good = valid[invalid_at < 0]
        objects = BinaryColumn(self._room, spans[0, good], spans[1, good])
        decoded = self._decode(RecordChunk.of_column(objects)).with_indexes(good)
        rejections = [
            Rejection(i, *self._line.explain_rejection(values[i], int(outcomes[i])))
            for i in (first + np.flatnonzero(outcomes[first:until] != VALID)).tolist()
        ]
        rejections += [
            Rejection(int(i), "InvalidUtf8", f"the value is not UTF-8 (byte {byte})")
            for i, byte in zip(valid[invalid_at >= 0], invalid_at[invalid_at >= 0], strict=True)
        ]
        return until, decoded.with_rejections(rejections)


def _json_kind(field: iceberg.NestedField | None, units: Mapping[int, str]) -> int:
    if field is None:
        return SKIPPED
    if isinstance(field.field_type, iceberg.StringType):
        return TEXT
    if isinstance(field.field_type, iceberg.BooleanType):
        return BOOLEAN
    return NUMBER if isinstance(field.field_type, _NUMBERS) or field.field_id in units else TRIMMED


class LineReader:
    def __init__(self, declared: CsvFormat) -> None:
        self._columns = declared.columns
        self._quote = declared.quote
        self._delimiter = declared.delimiter.encode()
        delimiter = re.escape(declared.delimiter)
        plain = rf"([^{delimiter}]*)"
        quote = declared.quote and re.escape(declared.quote)
        either = plain if quote is None else rf"(?:{quote}((?:[^{quote}]|{quote}{quote})*+){quote}|{plain})"
        self._field = re.compile(rf"{either}({delimiter}|\Z)")

    def explain_rejection(self, record: bytes | None, outcome: int) -> tuple[str, str]:
        quote, columns = self._quote, self._columns
        texts = {
            NO_VALUE: ("Tombstone", "the message has no value"),
            EMPTY: ("Empty", "the message's value is empty"),
            NO_CLOSING_QUOTE: ("InvalidCsv", f"a field begins with {quote}, but does not end with {quote}"),
            AFTER_QUOTE: ("InvalidCsv", f"text follows a closing {quote}; within a quoted field, write {quote} twice"),
            SEVERAL_LINES: ("InvalidCsv", "the value has several lines: write one record for each line"),
        }
        if outcome in texts:
            return texts[outcome]
        if (record or b"").startswith(b"\x1f\x8b"):
            return "WrongFieldCount", (
                "the value is compressed with gzip (it begins with 1f 8b): write plain CSV, and let the producer's "
                "compression.type compress it"
            )
        is_quoted = self._quote is not None and self._quote.encode() in (record or b"")
        count = len(self.fields(record or b"")) if is_quoted else (record or b"").count(self._delimiter) + 1
        return "WrongFieldCount", f"the line has {count} fields, but {len(columns)} are declared: {', '.join(columns)}"

    def fields(self, record: bytes) -> list[str]:
        text = record.decode(errors="backslashreplace").removesuffix("\n").removesuffix("\r")
        texts: list[str] = []
        position = 0
        while match := self._field.match(text, position):
            quoted = match[1] if match.re.groups == 3 else None
            plain = match[match.re.groups - 1]
            texts.append(plain if quoted is None else quoted.replace(f"{self._quote}" * 2, f"{self._quote}"))
            position = match.end()
            if not match[match.re.groups]:
                break
        return texts

    def quote_field(self, record: bytes, path: Sequence[str | int]) -> str | None:
        return f"the field {self.fields(record)[self._columns.index(str(path[0]))][:64]!r}"


@loop
def write_escaped(c: int, to: Octets, n: int) -> int:
    """Write one byte of a string's content, escaped if necessary. Returns the position after it."""
    if c in (_QUOTE, _BACKSLASH):
        to[n] = _BACKSLASH
        n += 1
    elif c < _SPACE:
        for letter in (_BACKSLASH, 117, 48, 48, 48 + (c >> 4)):
            to[n] = letter
            n += 1
        c = (48 if c & 15 < 10 else 87) + (c & 15)
    to[n] = c
    return n + 1


@loop
def max_json_bytes(b: Octets, p: int, end: int) -> int:
    """Return an upper bound for the bytes of a record's fields as JSON."""
    if end - p <= 4096:
        return 6 * (end - p)
    room = end - p
    while p < end:
        if b[p] < _SPACE:
            room += 5
        elif b[p] == _QUOTE or b[p] == _BACKSLASH:
            room += 1
        p += 1
    return room


@loop
def write_number(b: Octets, p: int, end: int, to: Octets, n: int) -> int:
    """Write a field as a JSON number, without plus sign or leading zeros. Returns `n` if it is not a number."""
    start, q = n, p
    if b[q] == 45:
        to[n] = 45
        n += 1
        q += 1
    elif b[q] == 43:
        q += 1
    while b[q] == 48 and q + 1 < end and 48 <= b[q + 1] <= 57:
        q += 1
    if q == end or b[q] == 45 or number_end(b, q) != end:
        return start
    while q < end:
        to[n] = b[q]
        n += 1
        q += 1
    return n


@loop
def write_boolean(b: Octets, p: int, end: int, to: Octets, n: int) -> int:
    """Write `true` or `false` (in any case), `1` or `0` as a JSON boolean. Returns `n` for any other field."""
    length = end - p
    first = b[p] | 32
    value = 2
    if length == 1 and (b[p] == 48 or b[p] == 49):
        value = b[p] - 48
    elif length == 4 and first == 116 and b[p + 1] | 32 == 114 and b[p + 2] | 32 == 117 and b[p + 3] | 32 == 101:
        value = 1
    elif length == 5 and first == 102 and b[p + 1] | 32 == 97 and b[p + 2] | 32 == 108 and b[p + 3] | 32 == 115:
        value = 0 if b[p + 4] | 32 == 101 else 2
    if value == 1:
        for letter in (116, 114, 117, 101):
            to[n] = letter
            n += 1
    elif value == 0:
        for letter in (102, 97, 108, 115, 101):
            to[n] = letter
            n += 1
    return n


@loop
def write_field(b: Octets, p: int, end: int, kind: int, quote: int, is_quoted: bool, to: Octets, n: int) -> int:
    """Write a non-null field as a JSON value. Returns the position after the value."""
    if kind != TEXT:
        while p < end and (b[p] == _SPACE or b[p] == _TAB):
            p += 1
        while p < end and (b[end - 1] == _SPACE or b[end - 1] == _TAB):
            end -= 1
    if kind >= NUMBER and p < end:
        written = write_number(b, p, end, to, n) if kind == NUMBER else write_boolean(b, p, end, to, n)
        if written > n:
            return written
    to[n] = _QUOTE
    n += 1
    while p < end:
        c = b[p]
        n = write_escaped(c, to, n)
        p += 2 if is_quoted and c == quote else 1
    to[n] = _QUOTE
    return n + 1


@loop
def find_field_end(b: Octets, p: int, end: int, delimiter: int, quote: int, is_quoted: bool) -> tuple[int, int]:
    """Return the end of the field whose content begins at `p`, and VALID or an error code."""
    if is_quoted:
        while p < end:
            if b[p] == quote:
                if p + 1 == end or b[p + 1] != quote:
                    return p, VALID if p + 1 == end or b[p + 1] == delimiter else AFTER_QUOTE
                p += 1
            p += 1
        return p, NO_CLOSING_QUOTE
    while p < end and b[p] != delimiter:
        if b[p] == _NEWLINE or b[p] == _RETURN:
            return p, SEVERAL_LINES
        p += 1
    return p, VALID


@loop
def is_null(b: Octets, p: int, end: int, null: Octets) -> bool:
    if end - p != len(null):
        return False
    for i in range(len(null)):  # noqa: SIM110 - compiled code has no generators
        if b[p + i] != null[i]:
            return False
    return True


@loop
def find_line_end(b: Octets, p: int, end: int) -> int:
    if p < end and b[end - 1] == _NEWLINE:
        end -= 1
    if p < end and b[end - 1] == _RETURN:
        end -= 1
    return end


@loop
def write_object(b: Octets, p: int, end: int, line_format: LineFormat, to: Octets, n: int) -> tuple[int, int]:
    """Write one record as a JSON object. Returns the position after the object, and the record's outcome code."""
    names, name_ends, kinds, null, delimiter, quote = line_format
    begin, fields, f = n, len(kinds), 0
    while True:
        if f == fields:
            return n, WRONG_COUNT
        is_quoted = p < end and b[p] == quote
        content = p + 1 if is_quoted else p
        p, error = find_field_end(b, content, end, delimiter, quote, is_quoted)
        if error != VALID:
            return n, error
        if kinds[f] != SKIPPED and (is_quoted or not is_null(b, content, p, null)):
            for q in range(name_ends[f], name_ends[f + 1]):
                to[n] = names[q]
                n += 1
            n = write_field(b, content, p, kinds[f], quote, is_quoted, to, n)
        f += 1
        if is_quoted:
            p += 1
        if p >= end:
            break
        p += 1  # skip the delimiter; another field follows, even if it is empty
    if f < fields:
        return n, WRONG_COUNT
    if n == begin:
        n += 1
    to[begin] = 123  # replaces a comma
    to[n] = 125
    to[n + 1] = _NEWLINE
    return n + 1, VALID


@loop
def write_objects(
    data: Octets, starts: Numbers, lengths: Numbers, first: int,
    line_format: LineFormat, to: Octets, spans: Numbers, outcomes: Octets,
) -> tuple[int, int]:  # fmt: skip
    """Write records as JSON objects, from index `first` on, until `to` is full.

    Returns the index of the first record that was not written, and 0. If this record does not fit into an empty `to`,
    returns the necessary size instead of 0. `spans` receives the start and length of each JSON object, and `outcomes`
    each record's outcome code.
    """
    n, record = 0, first
    while record < len(starts):
        p = starts[record]
        end = p + max(lengths[record], 0)
        needed = len(line_format.names) + 2 * len(line_format.kinds) + 3 + max_json_bytes(data, p, end)
        if n + needed > len(to):
            return record, needed if n == 0 else 0
        end = find_line_end(data, p, end)
        end_of_object, outcome = n, EMPTY if lengths[record] >= 0 else NO_VALUE
        if p < end:
            end_of_object, outcome = write_object(data, p, end, line_format, to, n)
        outcomes[record] = outcome
        if outcome == VALID:
            spans[0, record], spans[1, record] = n, end_of_object - n
            n = end_of_object + 1
        record += 1
    return record, 0
