"""Creates the decoder that `source.format` declares. The code of each record format is in this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError
from pyiceberg.schema import Schema

from frazil.errors import SpecError
from frazil.ingest.decode import PLAIN, DecoderOptions, FormatDecoder
from frazil.ingest.formats.avro.schema import UnreadableSchema, parse_schema
from frazil.ingest.formats.fields import WHOLE_KEY, RecordShape, Unit, create_fields_decoder, with_path
from frazil.ingest.formats.json.lines import FRAME_BYTES
from frazil.ingest.formats.json.nodes import check_supported as check_types
from frazil.ingest.formats.json.text import quote_value
from frazil.ingest.schema_drift import Path
from frazil.spec import formats as spec
from frazil.spec.values import parse_names

if TYPE_CHECKING:
    from frazil.registry.client import SchemaSource, SchemaText
    from frazil.spec.model import StreamSpec

PlainFormat = str | Mapping[str, Any]
"""A format's name, or a mapping, as returned by `dump_format`."""


def make_format_decoder(
    declared: spec.ValueFormat, schema: Schema, units: Mapping[int, str], options: DecoderOptions = PLAIN
) -> FormatDecoder:
    """Create the decoder of a format, without framing, envelope or renamed fields.

    Raises SpecError for a type that the format does not support. Imports decoders here: a driver that only checks
    declarations must not load the compiler.
    """
    if isinstance(declared, spec.JsonFormat):
        from frazil.ingest.formats.json.decoder import JsonDecoder

        return JsonDecoder(schema, units, options)
    if isinstance(declared, spec.CsvFormat):
        from frazil.ingest.formats.csv import CsvDecoder

        return CsvDecoder(declared, schema, units)
    if isinstance(declared, spec.AvroFormat):
        from frazil.ingest.formats.avro.decoder import AvroDecoder

        return AvroDecoder(schema, units, _schemas_of(declared), options)
    if isinstance(declared, spec.ProtobufFormat):
        from frazil.ingest.formats.protobuf.decoder import ProtobufDecoder

        framed, schemas = declared.framing == "confluent", _schemas_of(declared)
        return ProtobufDecoder(schema, units, schemas, options, message=declared.message, framed=framed)
    from frazil.ingest.formats.whole_values import WholeValueDecoder

    return WholeValueDecoder(schema, declared.column)


def _schemas_of(declared: spec.AvroFormat | spec.ProtobufFormat) -> SchemaSource | SchemaText:
    from frazil.registry.client import SchemaText, shared_registry

    if declared.registry is None:
        return SchemaText(declared.type.upper(), spec.read_schema_text(declared))
    return shared_registry(declared.registry, os.environ)


def _add_framing(declared: spec.ValueFormat, decode: FormatDecoder) -> FormatDecoder:
    from frazil.ingest.formats.json.lines import FramedDecoder, LinesDecoder

    if not isinstance(declared, spec.JsonFormat):
        return decode
    if declared.lines:
        decode = LinesDecoder(decode)
    return FramedDecoder(decode) if declared.framing == "confluent" else decode


def _add_header_ids(declared: spec.ValueFormat, decode: FormatDecoder) -> FormatDecoder:
    registry = declared.registry if isinstance(declared, spec.AvroFormat | spec.ProtobufFormat) else None
    if registry is None and not (isinstance(declared, spec.JsonFormat) and declared.framing == "confluent"):
        return decode
    from frazil.ingest.formats.json.lines import HeaderIdDecoder
    from frazil.registry.client import shared_registry

    return HeaderIdDecoder(decode, shared_registry(registry, os.environ).id_of if registry else lambda _: 0)


Quoter = Callable[[bytes, Sequence[str | int]], str | None]
"""Returns the original text of a record's value at a path, for messages; None if unavailable."""


def create_decoder(
    plain: PlainFormat,
    schema: Schema,
    units: Mapping[int, Unit],
    evolution: Literal["off", "additive", "full"] = "off",
    hidden: Collection[Path] = (),
) -> FormatDecoder:
    """Return a decoder that converts chunks to Arrow tables with this Iceberg schema and its field ids.

    `plain` must name its columns or fields, as `StreamSpec.value_format` does. `units` gives the encoding of values by
    field id. `hidden` has the lower-case paths of sensitive fields, which `rest` columns omit. Unless `evolution` is
    off, the decoder reports schema drift. Raises SpecError.
    """
    declared = _parse(plain)
    make, options = partial(make_format_decoder, declared), DecoderOptions(hidden, evolution)
    lists = not isinstance(declared, spec.JsonFormat)
    if envelope := spec.envelope_of(declared):
        from frazil.ingest.formats.envelope import EnvelopeDecoder

        events = partial(EnvelopeDecoder, lambda *args: _add_framing(declared, make(*args)), envelope)
        records = RecordShape(lists=lists, times=envelope.times == "numbers")
        decoder = create_fields_decoder(events, schema, units, records, options)
    else:
        records = RecordShape(_unwrap_path(declared), lists)
        decoder = _add_framing(declared, create_fields_decoder(make, schema, units, records, options))
    return _add_header_ids(declared, decoder)


def create_key_decoder(
    plain: PlainFormat, schema: Schema, units: Mapping[int, Unit], *, is_whole: bool
) -> FormatDecoder:
    """Return a decoder of record keys, passed as values. If `is_whole`, a key is the value of the only column."""
    declared = _parse(plain)
    if not is_whole:
        return create_decoder(plain, schema, units)
    (field,) = schema.fields
    paths = {field.field_id: with_path((WHOLE_KEY,), units.get(field.field_id))}
    if isinstance(declared, spec.AvroFormat):
        from frazil.ingest.formats.avro.decoder import AvroKeyDecoder

        schemas = _schemas_of(declared)
        return create_fields_decoder(
            lambda columns, units, _: AvroKeyDecoder(columns, units, schemas), schema, paths, RecordShape()
        )
    from frazil.ingest.formats.whole_values import WholeKeyDecoder

    make = partial(make_format_decoder, declared)
    return _add_framing(declared, WholeKeyDecoder(create_fields_decoder(make, schema, paths, RecordShape(lists=False))))


def _unwrap_path(declared: spec.ValueFormat) -> tuple[str, ...]:
    return parse_names(declared.unwrap) if isinstance(declared, spec.JsonFormat) and declared.unwrap else ()


def create_quoter(plain: PlainFormat) -> Quoter:
    declared = _parse(plain)
    if isinstance(declared, spec.CsvFormat):
        from frazil.ingest.formats.csv import LineReader

        return LineReader(declared).quote_field
    if not isinstance(declared, spec.JsonFormat) or declared.lines:
        return lambda _, __: None
    around, start = _unwrap_path(declared), FRAME_BYTES if declared.framing == "confluent" else 0
    return lambda record, path: quote_value(record[start:], [*around, *path])


def without_unwrap(plain: PlainFormat) -> PlainFormat:
    declared = _parse(plain)
    is_json = isinstance(declared, spec.JsonFormat)
    return spec.dump_format(declared.model_copy(update={"unwrap": None})) if is_json else plain


def has_lines(plain: PlainFormat) -> bool:
    declared = _parse(plain)
    return isinstance(declared, spec.JsonFormat) and declared.lines


def has_several_rows(plain: PlainFormat) -> bool:
    """Return whether one record may become several rows: lines, or an update that changes its key."""
    return has_lines(plain) or spec.envelope_of(_parse(plain)) is not None


def check_supported(schema: Schema, declared: spec.ValueFormat) -> None:
    """Raise SpecError for an unsupported column type, or an invalid declared schema."""
    if not isinstance(declared, spec.StringFormat | spec.BytesFormat):  # the declaration's own rules check these
        check_types(schema.as_struct(), "json" if declared.type == "csv" else declared.type)
    if not isinstance(declared, spec.AvroFormat | spec.ProtobufFormat) or declared.registry is not None:
        return
    try:
        if isinstance(declared, spec.AvroFormat):
            parse_schema(spec.read_schema_text(declared))
        else:
            from frazil.ingest.formats.protobuf.schema import message_of  # only loaded where Protobuf is used

            message_of(spec.read_schema_text(declared), (), declared.message)
    except UnreadableSchema as error:
        problem = "is not a valid Avro schema" if declared.type == "avro" else "cannot be read"
        raise SpecError(f"source.format: the declared schema {problem}: {error}") from None


def check_stream_supported(stream: StreamSpec, schema: Schema) -> None:
    check_supported(schema, stream.source.format)
    if stream.key_columns:
        try:
            check_supported(Schema(*(f for f in schema.fields if f.name in stream.key_columns)), stream.key_format)
        except SpecError as error:
            raise SpecError(str(error).replace("source.format", "source.key", 1)) from None


def _parse(plain: PlainFormat) -> spec.ValueFormat:
    try:
        return spec.parse_format(plain)
    except ValidationError as error:
        names = ", ".join(spec.FORMATS)
        raise SpecError(f"source.format: {plain!r} is not a format (allowed: {names}): {error}") from None
