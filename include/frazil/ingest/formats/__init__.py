"""The formats of records, by their names in `source.format`. Each is a package beside `json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from frazil.errors import SpecError
from frazil.ingest.decode import Decoder
from frazil.ingest.formats.json import types as json_types
from frazil.ingest.formats.json.record import quoted as quoted_json

DecoderMaker = Callable[[Schema, Mapping[int, str]], Decoder]
"""From an Iceberg schema and units, as `decoder` takes them. Raises SpecError for a column that it cannot fill."""


def _json(schema: Schema, units: Mapping[int, str]) -> Decoder:
    from frazil.ingest.formats.json.decoder import JsonDecoder  # noqa: PLC0415 - a driver that checks loads no compiler

    return JsonDecoder(schema, units)


FORMATS: Mapping[str, DecoderMaker] = {"json": _json}

CHECKS: Mapping[str, Callable[[StructType], None]] = {"json": json_types.check_supported}
"""Each raises SpecError for a column that its format cannot fill."""

Quoter = Callable[[bytes, Sequence[str]], str | None]
"""From a decoded record and a path of fields: the value there as it was sent, in words, or None."""

QUOTERS: Mapping[str, Quoter] = {"json": quoted_json}


def decoder(format_name: str, schema: Schema, units: Mapping[int, str]) -> Decoder:
    """A decoder of chunks to Arrow tables of this Iceberg schema, field ids included.

    `units` maps a timestamp column's field id to the unit of the number that it arrives as. Raises SpecError for a
    format or a column type that cannot be decoded.
    """
    return FORMATS[_known(format_name)](schema, units)


def check_supported(schema: Schema, format_name: str) -> None:
    """Refuse a column that no record could fill. Raises SpecError."""
    CHECKS[_known(format_name)](schema.as_struct())


def _known(format_name: str) -> str:
    if format_name not in FORMATS:
        raise SpecError(
            f"source.format: {format_name!r} is not a format that frazil decodes; allowed: {', '.join(FORMATS)}"
        )
    return format_name
