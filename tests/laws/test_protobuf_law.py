"""What Protobuf's own reading makes of a record is its row, whatever its schema; and no bytes do harm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats.protobuf.decoder import ProtobufDecoder
from frazil.ingest.formats.protobuf.schema import message_of
from frazil.registry.client import SchemaText

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=6)
SCALARS: dict[str, tuple[t.IcebergType, st.SearchStrategy[Any]]] = {
    "int32": (t.IntegerType(), INT32),
    "sint32": (t.LongType(), INT32),
    "sfixed32": (t.IntegerType(), INT32),
    "int64": (t.LongType(), INT64),
    "sint64": (t.LongType(), INT64),
    "sfixed64": (t.LongType(), INT64),
    "uint32": (t.LongType(), UINT32),
    "fixed32": (t.LongType(), UINT32),
    "uint64": (t.DecimalType(20, 0), UINT64),
    "fixed64": (t.DecimalType(20, 0), UINT64),
    "bool": (t.BooleanType(), st.booleans()),
    "float": (t.DoubleType(), st.floats(width=32)),
    "double": (t.DoubleType(), st.floats()),
    "string": (t.StringType(), TEXTS),
    "bytes": (t.BinaryType(), st.binary(max_size=6)),
    "E": (t.LongType(), st.sampled_from([0, 1, 5])),
}
MAX_FIELD_NUMBER = 2**29 - 1


@dataclass
class Kind:
    """A message: its declaration, its columns, and how one is filled."""

    name: str
    fields: list[str] = field(default_factory=list)
    columns: list[t.NestedField] = field(default_factory=list)
    wanted: list[tuple[str, str, Kind | None]] = field(default_factory=list)
    inner: list[Kind] = field(default_factory=list)

    def text(self) -> str:
        return f"message {self.name} {{ {' '.join(self.fields)} {' '.join(one.text() for one in self.inner)} }}"


@st.composite
def kinds(  # noqa: PLR0912 - a case for each shape
    draw: st.DrawFn, ids: itertools.count[int], depth: int, proto3: bool, every: bool
) -> Kind:
    made = Kind(f"M{next(ids)}")
    count = draw(st.integers(1, 6))
    numbers = draw(
        st.lists(st.integers(1, 20) | st.integers(1, MAX_FIELD_NUMBER), min_size=count, max_size=count, unique=True)
    )
    numbers = [one if not 19000 <= one < 20000 else one + 1000 for one in numbers]
    if len(set(numbers)) < count:
        numbers = list(range(1, count + 1))
    for i, number in enumerate(numbers):
        name = f"f{i}"
        shape = draw(st.sampled_from(["single", "optional", "repeated", "map", "oneof"]))
        inner: Kind | None = None
        if depth and draw(st.booleans()):
            inner = draw(kinds(ids, depth - 1, proto3, every))
            made.inner.append(inner)
            kind, column = inner.name, t.StructType(*inner.columns)
        elif draw(st.integers(0, 9)) == 0:
            kind, column = "google.protobuf.Timestamp", t.TimestamptzType()
        elif draw(st.integers(0, 9)) == 0:
            kind, column = "google.protobuf.UInt32Value", t.LongType()
        else:
            kind = draw(st.sampled_from(list(SCALARS)))
            column = SCALARS[kind][0]
        if shape == "map":
            made.fields.append(f"map<string, {kind}> {name} = {number};")
            column = t.MapType(next(ids), t.StringType(), next(ids), column, value_required=False)
        elif shape == "repeated":
            can_pack = kind in SCALARS and kind not in ("string", "bytes")
            packed = f" [packed = {draw(st.sampled_from(['true', 'false']))}]" if can_pack else ""
            made.fields.append(f"repeated {kind} {name} = {number}{packed};")
            column = t.ListType(next(ids), column, element_required=False)
        elif shape == "oneof":
            other = max(numbers) + 1 if max(numbers) < MAX_FIELD_NUMBER else min(set(range(1, 20)) - set(numbers))
            if any(f"= {other};" in one for one in made.fields):
                shape = "optional"
            else:
                made.fields.append(f"oneof o{i} {{ {kind} {name} = {number}; string other{i} = {other}; }}")
        if shape in ("single", "optional"):
            label = "optional " if shape == "optional" or not proto3 else ""
            made.fields.append(f"{label}{kind} {name} = {number};")
        if every or draw(st.booleans()):
            made.columns.append(t.NestedField(next(ids), name, column, required=False))
            made.wanted.append((name, kind, inner))
    made.columns.append(t.NestedField(next(ids), "lacking", t.LongType(), required=False))
    return made


@st.composite
def topics(draw: st.DrawFn, every: bool = False) -> tuple[Kind, str, list[bytes]]:
    proto3 = draw(st.booleans())
    kind = draw(kinds(itertools.count(1), 2, proto3, every))
    head = f'syntax = "proto{3 if proto3 else 2}"; import "google/protobuf/timestamp.proto"; '
    text = f'{head} import "google/protobuf/wrappers.proto"; {kind.text()} enum E {{ Z = 0; A = 1; B = 5; }}'
    made = message_class(text, kind)
    values = []
    for _ in range(draw(st.integers(1, 4))):
        parts = draw(st.integers(1, 5).map(lambda n: 2 if n == 5 else 1))  # two, one after the other, are merged
        messages = [made() for _ in range(parts)]
        for one in messages:
            draw_fields(draw, one)
        values.append(b"".join(one.SerializeToString() for one in messages))
    return kind, text, values


def message_class(text: str, kind: Kind) -> type[Message]:
    return message_factory.GetMessageClass(message_of(text, (), kind.name))


def draw_fields(draw: st.DrawFn, message: Any) -> None:  # noqa: PLR0912 - a case for each shape
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.seconds, message.nanos = draw(st.integers(-(2**35), 2**37)), draw(st.integers(0, 999_999_999))
        return
    for one in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if one.message_type and one.message_type.GetOptions().map_entry:
            value = one.message_type.fields_by_name["value"]
            for key in draw(st.lists(TEXTS, max_size=3)):
                if value.message_type:
                    draw_fields(draw, getattr(message, one.name)[key])
                else:
                    getattr(message, one.name)[key] = draw(scalar(value))
        elif one.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if one.message_type:
                    draw_fields(draw, getattr(message, one.name).add())
                else:
                    getattr(message, one.name).append(draw(scalar(one)))
        elif one.message_type:
            getattr(message, one.name).SetInParent()
            draw_fields(draw, getattr(message, one.name))
        else:
            setattr(message, one.name, draw(scalar(one)))


NAMES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool"} | {
    9: "string", 12: "bytes", 13: "uint32", 14: "E", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64"
}  # fmt: skip


def scalar(one: Any) -> st.SearchStrategy[Any]:
    return SCALARS[NAMES[one.type]][1]


def row_of(kind: Kind, message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"lacking": None}
    for name, written, inner in kind.wanted:
        one, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
        if one.message_type and one.message_type.GetOptions().map_entry:
            row[name] = sorted((key, part_of(written, inner, value[key])) for key in list(value))
        elif one.is_repeated:
            row[name] = [part_of(written, inner, part) for part in value]
        else:
            there = not one.has_presence or message.HasField(name)
            row[name] = part_of(written, inner, value) if there else None
    return row


def part_of(written: str, inner: Kind | None, value: Any) -> Any:
    if inner is not None:
        return row_of(inner, value)
    if written == "google.protobuf.Timestamp":
        if not -62_135_596_800 <= value.seconds <= 253_402_300_799 or not 0 <= value.nanos < 10**9:
            raise OverflowError
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    return value.value if written == "google.protobuf.UInt32Value" else value


def in_order(value: Any, kind: t.IcebergType) -> Any:
    """A row, with the entries of maps in the order of their keys."""
    match kind:
        case t.StructType() if value is not None:
            return {one.name: in_order(value[one.name], one.field_type) for one in kind.fields}
        case t.ListType() if value is not None:
            return [in_order(one, kind.element_type) for one in value]
        case t.MapType() if value is not None:
            return sorted(((key, in_order(one, kind.value_type)) for key, one in value), key=lambda pair: pair[0])
        case t.DecimalType() if value is not None:
            return int(value)
    return value


def shown(row: Any, kind: Kind) -> str:
    """Text of a row that can be compared, also with NaN."""
    if isinstance(row, dict):
        row = in_order(row, t.StructType(*kind.columns))
    return repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


def decoder(kind: Kind, text: str) -> ProtobufDecoder:
    return ProtobufDecoder(Schema(*kind.columns), {}, SchemaText("PROTOBUF", text), message=kind.name, framed=False)


def outcomes(decoded: DecodedChunk, count: int) -> list[Any]:
    decoded.rows.validate(full=True)
    found: dict[int, Any] = {r.index: r.error_class for r in decoded.rejections}
    for place, row in zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True):
        assert place not in found
        found[place] = row
    return [found[i] for i in range(count)]


def expected(kind: Kind, text: str, data: bytes) -> str:
    row = row_of(kind, message_class(text, kind).FromString(data))
    struct = t.StructType(*kind.columns)
    as_lists = {one.name: row[one.name] for one in struct.fields}
    return shown(as_lists, kind)


def check_rows(topic: tuple[Kind, str, list[bytes]]) -> None:
    kind, text, values = topic
    found = outcomes(decoder(kind, text)(RecordChunk.of_values(values)), len(values))
    for data, row in zip(values, found, strict=True):
        if row == "TypeMismatch":  # two messages, one after the other, with a map's key in both
            continue
        assert shown(row, kind) == expected(kind, text, data), (text, data)


@given(topics())
@settings(max_examples=120)
def test_decoded_rows_equal_those_of_the_protobuf_library(topic: tuple[Kind, str, list[bytes]]) -> None:
    check_rows(topic)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(topics())
@settings(max_examples=50_000)
def test_decoded_rows_equal_those_of_the_protobuf_library_for_many_schemas(
    topic: tuple[Kind, str, list[bytes]],
) -> None:
    check_rows(topic)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    at, size, octets = draw(st.floats(0, 1)), draw(st.integers(0, 3)), draw(st.binary(max_size=4))

    def apply(data: bytes) -> bytes:
        place = int(at * len(data))
        return data[:place] + octets + data[place + size :]

    return apply


def check_damaged(topic: tuple[Kind, str, list[bytes]], damages: list[Callable[[bytes], bytes]]) -> None:
    kind, text, values = topic
    damaged = [one(values[i % len(values)]) for i, one in enumerate(damages)]
    decode = decoder(kind, text)
    alone = [outcomes(decode(RecordChunk.of_values([one])), 1)[0] for one in damaged]
    mixed = [part for pair in zip(damaged, itertools.cycle(values)) for part in pair]
    found = outcomes(decode(RecordChunk.of_values(mixed)), len(mixed))
    assert [shown(one, kind) for one in found[::2]] == [shown(one, kind) for one in alone]
    for data, row in zip(damaged, alone, strict=True):
        if isinstance(row, dict):
            try:
                there = expected(kind, text, data)
            except (OverflowError, DecodeError):
                assert not isinstance(row, dict) or not well_formed(kind, text, data), (text, data)
                continue
            assert shown(row, kind) == there, (text, data)


def well_formed(kind: Kind, text: str, data: bytes) -> bool:
    """Whether Protobuf reads it; fields that no column wants are not looked into by us."""
    try:
        message_class(text, kind).FromString(data)
    except DecodeError:
        return False
    return True


@given(topics(every=True), st.lists(damage(), min_size=1, max_size=8))
@settings(max_examples=60)
def test_a_damaged_record_affects_only_its_own_row_or_rejection(
    topic: tuple[Kind, str, list[bytes]], damages: list[Callable[[bytes], bytes]]
) -> None:
    check_damaged(topic, damages)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(topics(every=True), st.lists(damage(), min_size=1, max_size=8))
@settings(max_examples=50_000)
def test_many_damaged_records_are_their_own_rows_or_rejections(
    topic: tuple[Kind, str, list[bytes]], damages: list[Callable[[bytes], bytes]]
) -> None:
    check_damaged(topic, damages)
