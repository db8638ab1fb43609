"""Finds the format of a sample's records, and decodes the records."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frazil.errors import SpecError
from frazil.infer.observed import Sample
from frazil.infer.registered import RegisteredSchemas
from frazil.spec.formats import AvroFormat, CsvFormat, JsonFormat, ValueFormat, parse_format

MIN_FORMAT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Encoding:
    format: ValueFormat
    records: tuple[dict[str, Any], ...]
    """The decoded values of the records; empty for a format that is not decoded here."""


def find_encoding(sample: Sample, written: RegisteredSchemas | None = None) -> Encoding:
    """Return the format that most values fit. `written` has the topic's schemas from a registry.

    Raises SpecError if no record has a value, or the format is not supported or needs a registry that was not given.
    """
    if written is not None and written.is_framed and written.type != "JSON":
        if written.type != "AVRO":
            raise SpecError(
                f"the schemas of {sample.topic} are of type {written.type}, which infer does not support; write the "
                "file by hand"
            )
        return Encoding(AvroFormat(registry=written.registry), ())
    values = [record.value for record in sample.records if record.value]
    if not values and written is not None:
        return Encoding(JsonFormat(framing="confluent", registry=written.registry), ())
    if not values:
        raise SpecError(
            f"the topic {sample.topic} has no record with a value to infer from; produce some, or write the file "
            "by hand"
        )
    needed = MIN_FORMAT_SHARE * len(values)
    for plain, parts in (
        ("json", values),
        ({"type": "json", "framing": "confluent"}, [v[5:] for v in values if v[0] == 0 and len(v) > 5]),
    ):
        objects = [found for part in parts if (found := _parse_object(part)) is not None]
        if len(objects) >= needed:
            found_format = parse_format(plain)
            if isinstance(found_format, JsonFormat) and written is not None and written.type == "JSON":
                found_format = found_format.model_copy(update={"registry": written.registry})
            return Encoding(found_format, tuple(objects))
    several = [lines for value in values if (lines := _parse_objects(value)) is not None]
    if len(several) >= needed:
        return Encoding(parse_format({"type": "json", "lines": True}), tuple(one for lines in several for one in lines))
    framed = [value for value in values if value[0] == 0 and len(value) > 5]
    ids = Counter(int.from_bytes(value[1:5]) for value in framed)
    if len(framed) >= needed and len(ids) <= len(framed) / 2:
        raise SpecError(
            f"the records of {sample.topic} begin with a zero byte and a schema id ({ids.most_common(1)[0][0]}). No "
            "registry was given, or it does not have this id: name the registry with --registry"
        )
    texts = [text for value in values if (text := _decode_text(value)) is not None]
    if len(texts) >= needed:
        return _parse_lines(texts) or Encoding(parse_format("string"), tuple({"value": text} for text in texts))
    return Encoding(parse_format("bytes"), ())


def _parse_object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parse_objects(value: bytes) -> list[dict[str, Any]] | None:
    found = [_parse_object(line) for line in value.split(b"\n") if line.strip()]
    return [one for one in found if one is not None] if found and None not in found else None


def _decode_text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text.rstrip("\r\n").isprintable() or "\t" in text else None


def _parse_lines(texts: Sequence[str]) -> Encoding | None:
    """Parse delimited lines, if more than 90% of them have the same number of fields, at least two."""
    for delimiter in ",;\t|":
        try:
            lines = [next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter), []) for text in texts]
        except csv.Error:
            continue
        fields, count = Counter(map(len, lines)).most_common(1)[0]
        if fields > 1 and count > 0.9 * len(texts):
            names = tuple(f"c{i}" for i in range(1, fields + 1))
            records = tuple(
                dict(zip(names, map(_parse_scalar, line), strict=True)) for line in lines if len(line) == fields
            )
            return Encoding(CsvFormat(columns=names, delimiter=delimiter), records)
    return None


def _parse_scalar(field: str) -> object:
    if not field:
        return None
    if field.lower() in {"true", "false"}:
        return field.lower() == "true"
    for number in (int, float):
        try:
            return number(field)
        except ValueError:
            continue
    return field
