"""Decodes Protobuf records to Arrow, using each record's writer schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyiceberg.schema import Schema

from frazil.ingest.binary_arrays import as_loop_arguments
from frazil.ingest.chunk import NULL, BinaryColumn, RecordChunk
from frazil.ingest.decode import PLAIN, DecodedChunk, DecoderOptions
from frazil.ingest.formats.avro.decoder import DECLARED_ID, EMPTY_FAULT, AvroDecoder, read_schema_ids
from frazil.ingest.formats.avro.json_text import ValueReader
from frazil.ingest.formats.avro.program import Fault
from frazil.ingest.formats.avro.schema import UINT64, WRAPPER, AvroType
from frazil.ingest.formats.json.lines import FRAME_BYTES
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.protobuf import operations as op
from frazil.ingest.formats.protobuf.json_text import JsonTexts
from frazil.ingest.formats.protobuf.loop import read_message_indexes, read_records
from frazil.ingest.formats.protobuf.program import TIMESTAMP, WRAPPERS, ProtobufProgram, is_map
from frazil.ingest.formats.protobuf.schema import message_at_indexes, message_of
from frazil.ingest.schema_drift import MIXED
from frazil.registry.client import SchemaSource, SchemaText

_INDEX_BITS = 32
"""Low bits of a message type's key, for the message indexes. The high bits hold the schema id."""


_F = FieldDescriptor
_SCALAR_KINDS = {
    _F.TYPE_BOOL: "boolean",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "bytes",
    _F.TYPE_ENUM: "enum",
    _F.TYPE_GROUP: MIXED,
    _F.TYPE_UINT64: UINT64,
    _F.TYPE_FIXED64: UINT64,
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), "int"),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), "long"),
}


def as_avro_type(written: Descriptor) -> AvroType:
    """Return the message as an Avro record, to find schema drift. Recursive messages become recursive records."""
    records: dict[str, AvroType] = {}
    pending: list[tuple[AvroType, Descriptor]] = []

    def add_record(message: Descriptor) -> AvroType:
        if (record := records.get(message.full_name)) is None:
            logical = {TIMESTAMP: "timestamp-micros", **dict.fromkeys(WRAPPERS, WRAPPER)}.get(message.full_name, "")
            names = tuple((field.name,) for field in message.fields)
            record = records[message.full_name] = AvroType("record", message.full_name, logical, fields=names)
            pending.append((record, message))
        return record

    def single_type(field: FieldDescriptor) -> AvroType:
        if field.type in _SCALAR_KINDS:
            return AvroType(_SCALAR_KINDS[field.type])
        return add_record(field.message_type) if field.message_type.fields else AvroType(MIXED)

    def field_type(field: FieldDescriptor) -> AvroType:
        if is_map(field) and (entry := field.message_type.fields_by_name)["key"].type == _F.TYPE_STRING:
            return AvroType("map", parts=[single_type(entry["value"]), single_type(field)])
        return AvroType("array", parts=[single_type(field)]) if field.is_repeated else single_type(field)

    root = add_record(written)
    while pending:
        record, message = pending.pop()
        record.parts += map(field_type, message.fields)
    return root


class ProtobufDecoder(AvroDecoder):
    _read_records = staticmethod(read_records)
    _make_program = ProtobufProgram
    _as_avro_type = staticmethod(as_avro_type)
    _frame_words = 5
    _max_depth = 100
    """Maximum nesting of messages, as in other Protobuf readers."""
    _name, _invalid = "protobuf", "cannot be read"
    _index_bits = _INDEX_BITS
    _op = op

    def __init__(  # noqa: PLR0913 - the settings of a format
        self,
        schema: Schema,
        units: Mapping[int, str],
        schemas: SchemaSource | SchemaText,
        options: DecoderOptions = PLAIN,
        *,
        message: str | None = None,
        framed: bool = True,
    ) -> None:
        """`schemas` is a registry for the ids in frames, or the one declared schema. `message` names the message in a
        declared schema; None if it has only one. `framed`: whether records begin with Confluent's frame (a zero byte,
        schema id and message indexes); always true with a registry. Raises SpecError for an unsupported column type.
        """
        super().__init__(schema, units, schemas, options)
        self._texts_of_json = JsonTexts(self._struct, units, options.hidden)
        self._messages: dict[int, Descriptor] = {}
        self._message = message
        self._framed = framed or not isinstance(schemas, SchemaText)

    def _split_frames(self, values: BinaryColumn, rejections: dict[int, Fault]) -> tuple[Numbers, BinaryColumn]:
        roots = np.full(len(values), -1, np.int64)
        for i in np.flatnonzero(values.lengths == NULL).tolist():
            rejections[i] = ("Tombstone", "the message has no value")
        if not self._framed:  # a message without fields has no bytes
            self._assign(roots, np.flatnonzero(values.lengths != NULL), DECLARED_ID, rejections)
            return roots, values
        for i in np.flatnonzero(values.lengths == 0).tolist():
            rejections[i] = EMPTY_FAULT
        positions = self._find_framed(values, FRAME_BYTES + 1, rejections)
        indexes, sizes = np.zeros(len(positions), np.int64), np.zeros(len(positions), np.int64)
        read_message_indexes(*as_loop_arguments(values.take(positions)), indexes, sizes)
        for i in positions[sizes < 0].tolist():
            rejections[i] = ("InvalidProtobuf", "no message indexes, or more than three, come before the message")
        positions, indexes, sizes = positions[sizes >= 0], indexes[sizes >= 0], sizes[sizes >= 0]
        if isinstance(self._schemas, SchemaText):
            self._assign(roots, positions, DECLARED_ID, rejections)
        else:
            keys = read_schema_ids(values.data, values.starts[positions]) << _INDEX_BITS | indexes
            self._assign_each(roots, positions, keys, rejections)
        starts, lengths = values.starts.copy(), values.lengths.copy()
        starts[positions] += FRAME_BYTES + sizes
        lengths[positions] -= FRAME_BYTES + sizes
        return roots, BinaryColumn(values.data, starts, lengths)

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        decoded = super().__call__(chunk)
        if not self._texts_of_json or not len(decoded.record_indexes):
            return decoded
        roots, content = self._split_frames(chunk.values, {})
        records = [content[i] or b"" for i in decoded.record_indexes.tolist()]
        kinds = [self._messages[root] for root in roots[decoded.record_indexes].tolist()]
        rows = self._texts_of_json(decoded.rows, records, kinds)
        missing, faults = self._texts_of_json.missing, self._texts_of_json.faults
        faults_by_row: dict[int, Fault] = {row: (op.MISMATCH, text) for row, text in faults.items()}
        faults_by_row |= {
            row: (op.MISSING_REQUIRED, f"{path}: {op.ERRORS[op.MISSING][1]}") for row, path in missing.items()
        }
        return dataclasses.replace(decoded, rows=rows).reject_rows(faults_by_row)

    def _request(self, schema_ids: list[int]) -> None:
        super()._request(sorted({key >> _INDEX_BITS for key in schema_ids}))

    def _compile(self, schema_id: int, schema: SchemaText) -> int | Fault:
        if isinstance(self._schemas, SchemaText):
            written = message_of(schema.text, schema.references, self._message)
        else:
            # The count of indexes, then zigzag varints. A count of 0 means the first message.
            reader = ValueReader((schema_id & 2**_INDEX_BITS - 1).to_bytes(4, "big"))
            indexes = [reader.read_varint() for _ in range(reader.read_varint())] or [0]
            written = message_at_indexes(schema.text, schema.references, indexes)
        self._note_unknown(schema_id, (field.name for field in written.fields))
        root = self._program.add(written)
        if isinstance(root, int):
            self._messages[root] = written
            self._add_drift(schema_id, written)
        return root  # type: ignore[no-any-return]

    def _fault(self, code: int, operation: int, byte: int) -> Fault:
        if code == op.MISSING:
            return op.MISSING_REQUIRED, f"{self._program.required_paths(operation)}: {op.ERRORS[op.MISSING][1]}"
        return super()._fault(code, operation, byte)
