"""Decodes Avro records to Arrow, using each record's writer schema."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from frazil.ingest.arrow_values import empty_table
from frazil.ingest.binary_arrays import as_loop_arguments, read_only
from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.decode import PLAIN, DecodedChunk, DecoderOptions, FormatDecoder, Rejection, join_results
from frazil.ingest.formats.avro import operations as op
from frazil.ingest.formats.avro.json_text import InvalidAvroValue, json_text
from frazil.ingest.formats.avro.loop import NOT_READ, SPAN_BITS, Scratch, read_records
from frazil.ingest.formats.avro.program import AvroProgram, Fault
from frazil.ingest.formats.avro.schema import (
    AvroType,
    TooLarge,
    UnreadableSchema,
    field_names_at,
    find_drift,
    parse_schema,
)
from frazil.ingest.formats.columns import ColumnMemory
from frazil.ingest.formats.debezium import is_other_schema
from frazil.ingest.formats.fields import WHOLE_KEY
from frazil.ingest.formats.json.lines import FRAME_BYTES, framed_mask, not_framed_text
from frazil.ingest.formats.json.nodes import (
    BASE,
    ENTRY_SET,
    FLAG,
    JSON,
    JSON_TEXT,
    KIND,
    REST,
    Numbers,
    check_supported,
)
from frazil.ingest.formats.json.rest import rest_of
from frazil.ingest.formats.json.types import Units
from frazil.ingest.formats.json.words import USED
from frazil.ingest.schema_drift import Path, SchemaDrift, join_drift, select_names
from frazil.registry.client import SchemaSource, SchemaText, UnknownSchema

MAX_DEPTH = 500
DECLARED_ID = 0
"""The id of the declared schema, for records without a frame."""
_MIN_SLOTS = 1024
MAX_IDS_PER_REQUEST = 1000


class AvroDecoder(FormatDecoder):
    _read_records = staticmethod(read_records)
    _make_program: Callable[[StructType, ColumnMemory, Units, Collection[Path]], Any] = AvroProgram
    _as_avro_type: Callable[..., AvroType] = staticmethod(lambda written: written)
    _frame_words = 3
    _name, _invalid = "avro", "is not a valid Avro schema"
    _index_bits = 0
    _op: Any = op
    _max_depth = MAX_DEPTH

    def __init__(
        self,
        schema: Schema,
        units: Mapping[int, str],
        schemas: SchemaSource | SchemaText,
        options: DecoderOptions = PLAIN,
    ) -> None:
        """`schemas` is a registry for the ids in frames, or the schema of records without frames. Raises SpecError."""
        struct = schema.as_struct()
        check_supported(struct, self._name)
        self._columns = ColumnMemory(schema, units)
        self._program: Any = self._make_program(struct, self._columns, units, options.hidden)
        self._schemas = schemas
        self._roots: dict[int, int | Fault] = {}
        self._written: dict[int, AvroType] = {}
        self._names: dict[tuple[int, tuple[str, ...]], frozenset[str]] = {}
        self._struct = struct
        self._has_json_faults = False
        self._unknown: dict[int, tuple[str, ...]] = {}
        self._options = options
        self._beyond: dict[int, SchemaDrift] = {}
        self._drift: list[SchemaDrift] = []
        self._frames = np.zeros((self._max_depth, self._frame_words), np.int64)
        self._slots = np.zeros(_MIN_SLOTS, np.int64)
        self._seed = secrets.randbits(62) | 1  # unpredictable, so that no writer can choose keys that compare slowly

    def field_names(self, record: bytes, path: Sequence[str]) -> Collection[str]:
        key = self._schema_id(record), tuple(path)
        if key not in self._names:
            self._names[key] = frozenset(field_names_at(self._written[key[0]], path))
        return self._names[key]

    def changes_no_row(self, record: bytes) -> bool:
        written = self._written.get(self._schema_id(record))
        return written is not None and written.kind == "record" and is_other_schema(written.name)

    def _schema_id(self, record: bytes) -> int:
        framed = not isinstance(self._schemas, SchemaText)
        return int.from_bytes(record[1:FRAME_BYTES], signed=True) if framed else DECLARED_ID

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        values = chunk.values
        self._drift = []
        rejections: dict[int, Fault] = {}
        roots, content = self._split_frames(values, rejections)
        parts = [DecodedChunk(empty_table(self._columns.arrow_schema), np.zeros(0, np.int64))]
        for part in self._columns.parts(len(values)):
            codes, where = np.empty(len(roots[part]), np.uint8), np.zeros((len(roots[part]), 2), np.int64)
            rows = self._read(content[part], roots[part], codes, where)
            broken: dict[int, Fault] = {}
            for name in rows.column_names if self._has_json_faults else ():
                for index, value in enumerate(rows.column(name).to_pylist()):
                    if (text := _find_json_fault(value)) is not None:
                        broken.setdefault(index, (op.MALFORMED, f"{name}: the value cannot be read: {text}"))
            self._has_json_faults = False
            parts.append(DecodedChunk(rows, part.start + np.flatnonzero(codes == op.VALID)).reject_rows(broken))
            for i in np.flatnonzero((codes != op.VALID) & (codes != NOT_READ)).tolist():
                rejections[part.start + i] = self._fault(int(codes[i]), *where[i].tolist())
        decoded = join_results(parts)
        found = sorted([*decoded.rejections, *(Rejection(i, *fault) for i, fault in rejections.items())])
        return dataclasses.replace(decoded, rejections=found, drift=join_drift(self._drift))

    def _read(
        self, values: BinaryColumn, roots: Numbers, codes: NDArray[np.uint8], where: NDArray[np.int64]
    ) -> pa.Table:
        """Return the rows of the records. `roots` has each record's first operation; -1 skips the record.

        Fills `codes` and `where` with errors. Only valid records have a row.
        """
        columns, program = self._columns, self._program
        columns.begin(len(values), program.text)
        records, read = (*as_loop_arguments(values), read_only(roots)), 0
        while True:
            scratch, errors = Scratch(self._frames, self._slots, self._seed), (codes, where)
            read, missing = self._read_records(*records, read, program.plan, columns.memory, scratch, *errors)
            if read == len(values):
                with self._json_texts_in_columns(records[0]):
                    return columns.table(records[0])
            if missing == len(columns.entry_counts):
                self._slots = np.zeros(2 * len(self._slots), np.int64)
            else:
                columns.grow(missing)

    @contextmanager
    def _json_texts_in_columns(self, data: NDArray[np.uint8]) -> Iterator[None]:
        """Inside this context, the JSON text columns have JSON instead of the encoded Avro values."""
        columns, spans = self._columns, self._program.spans
        if not spans:
            yield
            return
        saved_text, end = columns.text, int(columns.entry_counts[-1, USED])
        texts: list[bytes] = []
        for k in np.flatnonzero(np.isin(columns.nodes[:, KIND], (JSON, JSON_TEXT, REST))):
            node = columns.nodes[k]
            count = int(columns.entry_counts[node[ENTRY_SET], USED])
            words = columns.words[node[BASE] :][: 2 * count].reshape(-1, 2)
            for i in np.flatnonzero(columns.valid[node[FLAG] :][:count]).tolist():
                start, length = words[i].tolist()
                if (operation := length >> SPAN_BITS) not in spans:  # already a string
                    continue
                text = self._convert_to_json(data[start : start + (length & _LENGTH_MASK)].tobytes(), operation)
                if text is None:
                    columns.valid[node[FLAG] + i] = 0
                    text = b""
                texts.append(text)
                words[i] = -1 - end, len(text)
                end += len(text)
        columns.text = np.concatenate(
            [saved_text[: columns.entry_counts[-1, USED]], np.frombuffer(b"".join(texts), np.uint8)]
        )
        yield
        columns.text = saved_text

    def _convert_to_json(self, value: bytes, operation: int) -> bytes | None:
        """Return a value as JSON text; None if other columns have all of it; else `_FAULT_PREFIX` and the error."""
        program = self._program
        try:
            text = json_text(value, program.spans[operation]).encode()
            if operation in program.numbers:
                text = text.strip(b'"')
            part = program.rests.get(operation)
            return text if part is None else rest_of(text, part, keeps_nulls=False)
        except InvalidAvroValue as error:
            self._has_json_faults = True
            return _FAULT_PREFIX + str(error).encode()

    def _split_frames(self, values: BinaryColumn, rejections: dict[int, Fault]) -> tuple[Numbers, BinaryColumn]:
        """Return each record's first operation (-1 if rejected) and content without the frame. Fills `rejections`."""
        roots = np.full(len(values), -1, np.int64)
        has_value = values.lengths > 0
        for i in np.flatnonzero(~has_value).tolist():
            tombstone = values.lengths[i] == NULL
            rejections[i] = ("Tombstone", "the message has no value") if tombstone else EMPTY_FAULT
        if isinstance(self._schemas, SchemaText):
            self._assign(roots, np.flatnonzero(has_value), DECLARED_ID, rejections)
            return roots, values
        positions = self._find_framed(values, FRAME_BYTES, rejections)
        self._assign_each(roots, positions, read_schema_ids(values.data, values.starts[positions]), rejections)
        content = BinaryColumn(values.data, values.starts + FRAME_BYTES, values.lengths - FRAME_BYTES)
        return roots, content

    def _find_framed(self, values: BinaryColumn, min_bytes: int, rejections: dict[int, Fault]) -> Numbers:
        """Return the positions of the values with a frame, and reject other values that are not empty."""
        framed = framed_mask(values, min_bytes)
        for i in np.flatnonzero((values.lengths > 0) & ~framed).tolist():
            rejections[i] = ("NotFramed", not_framed_text(values[i] or b"", f"{self._name} with schema ids", _REMEDY))
        return np.flatnonzero(framed)

    def _assign_each(self, roots: Numbers, positions: Numbers, ids: Numbers, rejections: dict[int, Fault]) -> None:
        """Call `_assign` for each schema id. Requests schemas in groups, because unframed values look like many ids."""
        if len(ids) and (ids == ids[0]).all():
            self._assign(roots, positions, int(ids[0]), rejections)
            return
        order = np.argsort(ids, kind="stable")
        distinct, first = np.unique(ids[order], return_index=True)
        groups = np.split(positions[order], first[1:])
        for start in range(0, len(distinct), MAX_IDS_PER_REQUEST):
            some = distinct[start : start + MAX_IDS_PER_REQUEST].tolist()
            self._request([schema_id for schema_id in some if schema_id not in self._roots])
            for schema_id, group in zip(some, groups[start : start + MAX_IDS_PER_REQUEST], strict=True):
                self._assign(roots, group, schema_id, rejections)

    def _request(self, schema_ids: list[int]) -> None:
        assert not isinstance(self._schemas, SchemaText)
        self._schemas.prefetch(schema_ids)

    def _assign(self, roots: Numbers, positions: Numbers, schema_id: int, rejections: dict[int, Fault]) -> None:
        """Set the first operation of these records. Rejects them if their schema cannot be read."""
        if schema_id not in self._roots:
            self._roots[schema_id] = self._add_schema(schema_id)
        root = self._roots[schema_id]
        if len(positions) and (names := self._unknown.get(schema_id)):
            self._drift.append(SchemaDrift(unknown=len(positions), names=names))
        if isinstance(root, int):
            roots[positions] = root
            if len(positions) and (beyond := self._beyond.get(schema_id)):
                self._drift.append(dataclasses.replace(beyond, records=len(positions) if beyond.new else 0))
        else:
            rejections.update(dict.fromkeys(positions.tolist(), root))

    def _add_schema(self, schema_id: int) -> int | Fault:
        if isinstance(self._schemas, SchemaText):
            schema, source = self._schemas, "the declared schema"
        else:
            registered = schema_id >> self._index_bits
            source = f"the schema of id {registered}"
            try:
                schema = self._schemas.get(registered)
            except UnknownSchema as error:
                return "UnknownSchema", str(error)
        if schema.type != self._name.upper():
            return "UnreadableSchema", f"{source} is of type {schema.type}, but source.format is {self._name}"
        try:
            return self._compile(schema_id, schema)
        except UnreadableSchema as error:
            return "UnreadableSchema", f"{source} {self._invalid}: {error}"
        except TooLarge as error:
            return "UnreadableSchema", f"{source} is too large: {error}"

    def _compile(self, schema_id: int, schema: SchemaText) -> int | Fault:
        written = parse_schema(schema.text, [text for _, text in schema.references])
        root: int = self._program.add(written)
        self._written[schema_id] = written
        self._note_unknown(schema_id, field_names_at(written, ()))
        self._add_drift(schema_id, written)
        return root

    def _add_drift(self, schema_id: int, written: Any) -> None:
        if self._options.drift != "off":
            drift = find_drift(self._as_avro_type(written), self._struct, allows_wider=self._options.drift == "full")
            self._beyond[schema_id] = drift.within(self._options.within)

    def _note_unknown(self, schema_id: int, names: Iterable[str]) -> None:
        """Report some field names of a schema as drift, if none of the schema's fields fills a column."""
        if not self._columns.field_names.isdisjoint(names := [*names]) or not self._columns.field_names:
            return
        self._unknown[schema_id] = select_names(names) or ("",)

    def _fault(self, code: int, operation: int, byte: int) -> Fault:
        if code == self._op.UNFIT:
            unfit: Fault = self._program.unfit[operation]
            return unfit
        error_class, text = self._op.ERRORS[code]
        where = self._program.paths[operation] or "the record"
        return error_class, f"{where}: {text} (byte {byte} of the record's content)"


def _find_json_fault(value: object) -> str | None:
    if isinstance(value, str):
        return value.removeprefix(_FAULT_PREFIX.decode()) if value.startswith(_FAULT_PREFIX.decode()) else None
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((text for part in parts if (text := _find_json_fault(part)) is not None), None)


_FAULT_PREFIX = b"\0frazil: "
_LENGTH_MASK = (1 << SPAN_BITS) - 1
_REMEDY = "write it with the registry's serializer, or declare another format"
EMPTY_FAULT: Fault = ("Empty", "the message's value is empty")


def read_schema_ids(data: NDArray[np.uint8], starts: Numbers) -> Numbers:
    ids = np.zeros(len(starts), np.int64)
    for i in range(1, FRAME_BYTES):
        ids = ids << 8 | data[starts + i]
    return ids.astype(np.int32).astype(np.int64)


class AvroKeyDecoder(AvroDecoder):
    """Decodes Avro values that are not records, as records with one field. The encoded bytes are the same."""

    def _compile(self, schema_id: int, found: SchemaText) -> int | Fault:
        fields = f'[{{"name":"{WHOLE_KEY}","type":{found.text}}}]'
        record = f'{{"type":"record","name":"frazil_key","fields":{fields}}}'
        return super()._compile(schema_id, found._replace(text=record))
