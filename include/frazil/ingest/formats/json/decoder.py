"""Decodes JSON with a compiled loop (`rows`), and turns the errors that it finds into rejections and drift."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import empty_table
from frazil.ingest.binary_arrays import as_loop_arguments
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.decode import PLAIN, DecodedChunk, DecoderOptions, FormatDecoder, Rejection, join_results
from frazil.ingest.formats.columns import ColumnMemory
from frazil.ingest.formats.debezium import changes_no_row
from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json import rows as loop
from frazil.ingest.formats.json import unknown_keys
from frazil.ingest.formats.json.drift import DriftFinder
from frazil.ingest.formats.json.nodes import check_supported
from frazil.ingest.formats.json.reasons import MISSING, TYPE_MISMATCH, Reason, find_check
from frazil.ingest.formats.json.text import MAX_DEPTH, explain_invalid, field_names, field_names_at
from frazil.ingest.formats.json.types import max_nesting
from frazil.ingest.schema_drift import (
    MAX_REPORTED_NAMES,
    Path,
    SchemaDrift,
    has_unknown_part,
    join_drift,
    select_names,
    wider_of,
)

_MIN_SLOTS, _MIN_PIECES, _MIN_ERRORS = 1024, 1024, 1024
_MAX_EXAMINED_REJECTS = 1000
"""Maximum number of rejected records per chunk that are examined for drift."""


class _Error(NamedTuple):
    """An error that the loop found: its record, and its text's position in the record."""

    record: int
    node: int
    code: int
    start: int
    text: bytes


class JsonDecoder(FormatDecoder):
    def __init__(self, schema: Schema, units: Mapping[int, str], options: DecoderOptions = PLAIN) -> None:
        struct = schema.as_struct()
        check_supported(struct)
        self._columns = ColumnMemory(schema, units, options.hidden)
        longest = int(self._columns.nodes[:, tree.LONGEST].max())
        self._frames = np.zeros((1 + max_nesting(struct), 6), np.int64)
        self._scratch = np.zeros(max(MAX_DEPTH, 6 * longest), np.uint8)  # a byte of a name may be an escape of six
        self._slots = np.zeros(_MIN_SLOTS, np.int64)
        self._seed = secrets.randbits(62) | 1  # unpredictable, so that no writer can choose keys that compare slowly
        self._pieces = np.zeros(unknown_keys.FIRST_PIECE + 3 * _MIN_PIECES, np.int64)
        self._errors = np.zeros(loop.FIRST_ERROR + loop.ERROR_WIDTH * _MIN_ERRORS, np.int64)
        self._new_keys = unknown_keys.allocate_memory(is_on=options.drift != "off")
        self._beyond: DriftFinder | None = None
        self._widening = options.drift == "full"
        if options.drift != "off":
            self._beyond = DriftFinder(struct, options.within)
            self._columns.watch([part.path for part in options.within])
        self._checks = [find_check(field.type, field.unit) for field in self._columns.fields]
        self._has_casts = False
        self._casts: Counter[str] = Counter()

    def cast(self, columns: Mapping[str, Path]) -> None:
        """Accept other forms of values in these columns. Omits records that the loop cannot decode with certainty."""
        self._has_casts = True
        self._columns.cast(columns)

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        return field_names_at(record, path)

    def changes_no_row(self, record: bytes) -> bool:
        return changes_no_row(record)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode the values. Rows of records that were read again come last."""
        parts: list[DecodedChunk] = []
        values, positions = chunk.values, np.arange(len(chunk))
        while True:
            rows, flags, errors = self.read_in_loop(values, is_again=bool(parts))
            original = chunk.values.take(positions) if parts else values
            rejections, again, changes = self._explain(values, original, flags, errors, is_again=bool(parts))
            rejected = [rejection.index for rejection in rejections]
            drift = join_drift([self._find_drift(original, flags, rejected, is_again=bool(parts)), changes])
            read = DecodedChunk(rows, np.flatnonzero(flags & loop.BAD == 0), rejections, drift)
            parts.append(read.with_indexes(positions) if parts else read)
            if not again:
                break
            positions, values = positions[[*again]], BinaryColumn.of([*again.values()])
        if self._has_casts:
            cast = {name: count for name, count in self._casts.items() if count}
            return dataclasses.replace(read, drift=dataclasses.replace(read.drift, cast=cast))
        return join_results(parts) if len(parts) > 1 else read

    def read_in_loop(
        self, values: BinaryColumn, *, is_again: bool = False
    ) -> tuple[pa.Table, NDArray[np.uint8], Sequence[_Error]]:
        """Return the rows of the valid records, and the flags (see `rows`) and errors of all records."""
        flags = np.full(len(values), loop.BAD, np.uint8)
        self._casts.clear()
        tables: list[pa.Table] = []
        errors: list[_Error] = []
        for part in self._columns.parts(len(values)):
            tables.append(self._read_part(values[part], flags[part], is_again=is_again))
            errors += self._take_errors(values[part], part.start)
        return pa.concat_tables(tables) if tables else empty_table(self._columns.arrow_schema), flags, errors

    def _read_part(self, values: BinaryColumn, flags: NDArray[np.uint8], *, is_again: bool) -> pa.Table:
        columns = self._columns
        columns.begin(len(values))
        records, read = as_loop_arguments(values), 0
        self._errors[loop.COUNT] = 0
        while True:
            schema, memory = (columns.nodes, columns.lists, columns.names), (columns.words, columns.valid, columns.text)
            scratch: Any = (
                self._frames,
                self._scratch,
                self._slots,
                self._seed,
                self._pieces,
                self._new_keys,
                is_again,
            )
            read, missing = loop.read_records(  # type: ignore[call-arg]
                *records, read, *schema, *memory, columns.entry_counts, *scratch, self._errors, flags
            )
            if read == len(values):
                self._casts.update(columns.take_casts())
                return columns.table(records[0])
            self._grow(missing)

    def _grow(self, missing: int) -> None:
        match missing - len(self._columns.entry_counts):
            case loop.SLOTS:
                self._slots = np.zeros(2 * len(self._slots), np.int64)
            case loop.PIECES:
                self._pieces = np.zeros(2 * len(self._pieces), np.int64)
            case loop.ERRORS:
                self._errors = np.concatenate([self._errors, np.zeros_like(self._errors)])
            case _:
                self._columns.grow(missing)

    def _take_errors(self, values: BinaryColumn, first: int) -> list[_Error]:
        """Return the errors of records that were read. `first` is the index of the first record of `values`."""
        if not (count := int(self._errors[loop.COUNT])):
            return []
        found = self._errors[loop.FIRST_ERROR :][: loop.ERROR_WIDTH * count].reshape(-1, loop.ERROR_WIDTH)
        data, text = np.ascontiguousarray(values.data).data, self._columns.text.data
        befores = values.starts[found[:, 0]].tolist()
        return [
            _Error(
                first + index,
                node,
                code,
                start - before,
                bytes(data[start:end] if start >= 0 else text[-1 - start : end - 2 * start - 1]),
            )
            for (index, node, code, start, end), before in zip(found.tolist(), befores, strict=True)
        ]

    def _find_drift(
        self, values: BinaryColumn, flags: NDArray[np.uint8], rejected: Sequence[int], *, is_again: bool
    ) -> SchemaDrift:
        """Return the drift in records that the loop read: new fields, and records without a known field."""
        unknown = SchemaDrift()
        is_final = flags & loop.BAD == 0
        is_final[rejected] = True
        others = np.flatnonzero((flags & loop.UNKNOWN != 0) & is_final)
        if len(others) and self._columns.field_names:
            some = values.take(others[:MAX_REPORTED_NAMES])
            unknown = SchemaDrift(unknown=len(others), names=select_names(n for one in some for n in field_names(one)))
        records = int(np.count_nonzero(flags & loop.NEW))
        if self._beyond is None or not records:
            return unknown
        sampled = loop.NEW if is_again else loop.SAMPLE  # the first reading may have counted a sample
        new = self._beyond.find_new_fields(values.take(np.flatnonzero(flags & sampled)))
        if any(map(has_unknown_part, new.values())):
            self._new_keys = unknown_keys.allocate_memory(is_on=True)  # forget the keys found so far
        return join_drift([unknown, SchemaDrift(new, records=records)])

    def _explain(
        self,
        values: BinaryColumn,
        original: BinaryColumn,
        flags: NDArray[np.uint8],
        errors: Sequence[_Error],
        *,
        is_again: bool,
    ) -> tuple[list[Rejection], dict[int, bytes], SchemaDrift]:
        """Return the rejections of records without rows, and the text of records to read again, by index.

        Also returns the drift: the changes of columns that would accept rejected records.
        """
        rejections: list[Rejection] = []
        again: dict[int, bytes] = {}
        drift: list[SchemaDrift] = []
        if self._has_casts:
            return rejections, again, SchemaDrift()
        is_invalid = flags & loop.BAD != 0
        for index, some in groupby(errors, itemgetter(0)):
            is_invalid[index] = False
            found = [*some]
            is_examined = self._widening and len(rejections) < _MAX_EXAMINED_REJECTS
            may_have_more = len(found) == loop.MAX_ERRORS and not is_again
            rejection, rewrites, changes = self._explain_record(found, is_examined=is_examined)
            is_uncertain = any(error.code == loop.WRONG for error, _ in rewrites)
            if rejection is None or is_uncertain or (may_have_more and changes):
                again[index] = _rewrite(values[index] or b"", rewrites)
                continue
            rejections.append(rejection)
            if self._beyond is not None:
                drift.append(self._beyond.find_changes(original[index] or b"", changes))
        for index in np.flatnonzero(is_invalid).tolist():
            value = values[index]
            fault = explain_invalid(value)
            if fault is None and not is_again:  # no newline follows it
                again[index] = value or b""
            else:
                rejections.append(Rejection(index, *(fault or ("InvalidJson", "JSON is malformed"))))
        return sorted(rejections), again, join_drift(drift) if drift else SchemaDrift()

    def _explain_record(
        self, errors: Iterable[_Error], *, is_examined: bool
    ) -> tuple[Rejection | None, Sequence[tuple[_Error, bytes]], SchemaDrift]:
        """Return the first reason to reject a record, and rewrites of values about which the loop is not certain.

        Also returns the changes of columns that would accept the record, if `is_examined`; empty if none would. Ignores
        errors after one that no change accepts.
        """
        rejection = None
        rewrites: list[tuple[_Error, bytes]] = []
        wider: dict[Path, str] = {}
        optional: set[Path] = set()
        for error in sorted(errors, key=lambda error: (error.code != loop.DUPLICATE, error.node)):
            found = self._explain_error(error)
            if isinstance(found, bytes):
                rewrites.append((error, found))
                continue
            field = self._columns.fields[error.node]
            path = field.path
            if rejection is None:
                is_key = error.code == loop.DUPLICATE and self._columns.nodes[error.node - 1, tree.KIND] == tree.MAP
                key = f" {error.text.decode()[:64]!r}" if is_key else ""
                rejection = Rejection(error.record, found.error_class, f"{'.'.join(path)}{key}: {found.error}")
            if is_examined and error.code == loop.MISSING and field.may_be_optional:
                optional.add(path)
            elif is_examined and found.wider and field.may_be_wider:
                wider[path] = wider_of(wider.get(path, found.wider), found.wider)
            else:
                return rejection, rewrites, SchemaDrift()
        return rejection, rewrites, SchemaDrift(wider=wider, optional=frozenset(optional))

    def _explain_error(self, error: _Error) -> Reason | bytes:
        """Return the reason of an error, or the text in a form that the loop reads with certainty."""
        if error.code == loop.DUPLICATE:
            return Reason(TYPE_MISMATCH, "given twice")
        if error.code == loop.MISSING:
            return Reason("MissingRequired", MISSING)
        if error.code == loop.HIDDEN_KEY:
            name = msgspec.json.encode(msgspec.json.decode(error.text, type=str).lower())[1:-1]
            is_omitted = self._omits(error.node, name)
            return bytes([unknown_keys.OMITTED if is_omitted else unknown_keys.KEPT]) + error.text
        found = self._checks[error.node](error.text)
        return found if found != error.text else Reason(TYPE_MISMATCH, "is not valid")

    def _omits(self, node: int, name: bytes) -> bool:
        """Return whether `rest` omits the fields of a struct that have this name, in lower case and as JSON."""
        first, count = self._columns.nodes[node, [tree.HIDDEN, tree.HIDING]].tolist()
        spans = self._columns.lists[first : first + 2 * count].reshape(-1, 2).tolist()
        return any(self._columns.names[at : at + length].tobytes() == name for at, length in spans)


def _rewrite(value: bytes, rewrites: Iterable[tuple[_Error, bytes]]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for error, text in sorted(rewrites, key=lambda rewrite: rewrite[0].start):
        parts += [value[at : error.start], text]
        at = error.start + len(error.text)
    return b"".join([*parts, value[at:]])
