"""What Avro's own reading makes of a record is its row, whatever its schema; and no bytes do harm."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.schema import Schema

from frazil.ingest.calendar_limits import find_out_of_range
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats.avro.decoder import AvroDecoder
from frazil.registry.client import SchemaText

WIDE = Context(prec=60)

Values = st.SearchStrategy[Any]
Norm = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """A type as it is written and as a column has it, what values there are, and a value of Avro as one of Arrow."""

    avro: Any
    iceberg: t.IcebergType
    values: Values
    norm: Norm = same


@dataclass
class Names:
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    names: itertools.count[int] = field(default_factory=itertools.count)

    def id(self) -> int:
        return next(self.ids)

    def name(self) -> str:
        return f"T{next(self.names)}"


INTS = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 63, 64, -64, -65, 2**31 - 1, -(2**31)])
LONGS = st.integers(-(2**63), 2**63 - 1) | INTS | st.sampled_from([2**63 - 1, -(2**63)])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - as Hypothesis wants them
FLOATS = st.floats(width=32, allow_nan=False)
DOUBLES = st.floats(allow_nan=False)


def decimals(precision: int, scale: int) -> Values:
    limit = 10**precision - 1
    return (st.integers(-limit, limit) | st.sampled_from([0, limit, -limit, 127, 128, -128])).map(
        lambda n: Decimal(n).scaleb(-scale, WIDE)
    )


def logical(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": what, **more}


def naive(value: datetime) -> datetime:
    return value.replace(tzinfo=None)


def in_ms(value: datetime) -> datetime:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def scaled(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.00000"), context=WIDE)


COLOURS = ["RED", "GREEN", "BLUE"]
SCALARS = [
    Kind("boolean", t.BooleanType(), st.booleans()),
    Kind("int", t.IntegerType(), INTS),
    Kind("int", t.LongType(), INTS),
    Kind("int", t.DoubleType(), INTS, float),
    Kind("int", t.DecimalType(20, 5), INTS, lambda n: scaled(Decimal(n))),
    Kind("long", t.LongType(), LONGS),
    Kind("long", t.IntegerType(), INTS),
    Kind("long", t.DecimalType(38, 3), LONGS, lambda n: Decimal(n).quantize(Decimal("0.000"), context=WIDE)),
    Kind("float", t.FloatType(), FLOATS),
    Kind("float", t.DoubleType(), FLOATS),
    Kind("double", t.DoubleType(), DOUBLES),
    Kind("string", t.StringType(), TEXTS),
    Kind("string", t.BinaryType(), TEXTS, str.encode),
    Kind("bytes", t.BinaryType(), st.binary(max_size=20)),
    Kind("bytes", t.StringType(), TEXTS.map(str.encode), bytes.decode),
    Kind("bytes", t.FixedType(3), st.binary(min_size=3, max_size=3)),
    Kind({"type": "fixed", "name": "", "size": 3}, t.FixedType(3), st.binary(min_size=3, max_size=3)),
    Kind({"type": "fixed", "name": "", "size": 5}, t.BinaryType(), st.binary(min_size=5, max_size=5)),
    Kind({"type": "enum", "name": "", "symbols": COLOURS}, t.StringType(), st.sampled_from(COLOURS)),
    Kind(logical("string", "uuid"), t.UUIDType(), st.uuids()),
    Kind(logical("string", "uuid"), t.StringType(), st.uuids(), str),
    Kind(logical("int", "date"), t.DateType(), st.dates()),
    Kind(logical("int", "date"), t.IntegerType(), st.dates(), lambda d: (d - date(1970, 1, 1)).days),
    Kind(logical("int", "time-millis"), t.TimeType(), st.times().map(lambda v: time(v.hour, 1, 2, 3000))),
    Kind(logical("long", "time-micros"), t.TimeType(), st.times()),
    Kind(
        logical("long", "timestamp-millis"),
        t.TimestamptzType(),
        MOMENTS.map(lambda v: in_ms(v).replace(tzinfo=UTC)),
    ),
    Kind(logical("long", "timestamp-micros"), t.TimestamptzType(), MOMENTS.map(lambda v: v.replace(tzinfo=UTC))),
    Kind(logical("long", "timestamp-micros"), t.TimestampType(), MOMENTS.map(lambda v: v.replace(tzinfo=UTC)), naive),
    Kind(logical("long", "local-timestamp-micros"), t.TimestampType(), MOMENTS),
    Kind(logical("long", "local-timestamp-millis"), t.TimestampType(), MOMENTS.map(in_ms)),
    Kind(logical("bytes", "decimal", precision=38, scale=5), t.DecimalType(38, 5), decimals(38, 5)),
    Kind(logical("bytes", "decimal", precision=9, scale=2), t.DecimalType(14, 5), decimals(9, 2), scaled),
    Kind(
        logical("fixed", "decimal", precision=18, scale=4, size=9, name=""),
        t.DecimalType(18, 4),
        decimals(18, 4),
    ),
    Kind(
        logical("fixed", "decimal", precision=18, scale=4, size=20, name=""),
        t.DecimalType(38, 4),
        decimals(18, 4),
    ),
]


def named(kind: Kind, names: Names) -> Kind:
    """The same; a named type with a name of its own."""
    if not isinstance(kind.avro, dict) or "name" not in kind.avro:
        return kind
    return replace(kind, avro={**kind.avro, "name": names.name()})


@st.composite
def kinds(draw: st.DrawFn, names: Names, depth: int, every: bool) -> Kind:
    shape = draw(st.sampled_from(["scalar"] * 5 + (["array", "map", "record", "optional"] if depth else ["optional"])))
    if shape == "scalar":
        return named(draw(st.sampled_from(SCALARS)), names)
    if shape == "record":
        return draw(records(names, depth - 1, every))
    inner = draw(kinds(names, max(0, depth - 1), every))
    if shape == "optional" and isinstance(inner.avro, list):
        return inner
    if shape == "optional":
        avro = draw(st.permutations(["null", inner.avro]))
        return Kind(avro, inner.iceberg, st.none() | inner.values, lambda v: None if v is None else inner.norm(v))
    if shape == "array":
        return Kind(
            {"type": "array", "items": inner.avro},
            t.ListType(names.id(), inner.iceberg, element_required=False),
            st.lists(inner.values, max_size=4),
            lambda values: [inner.norm(v) for v in values],
        )
    return Kind(
        {"type": "map", "values": inner.avro},
        t.MapType(names.id(), t.StringType(), names.id(), inner.iceberg, value_required=False),
        st.dictionaries(TEXTS, inner.values, max_size=4),
        lambda values: [(k, inner.norm(v)) for k, v in values.items()],
    )


@st.composite
def records(draw: st.DrawFn, names: Names, depth: int, every: bool) -> Kind:
    fields = draw(st.lists(kinds(names, depth, every), min_size=1, max_size=5))
    wanted = draw(st.lists(st.just(True) if every else st.booleans(), min_size=len(fields), max_size=len(fields)))
    called = {f"f{i}": kind for i, kind in enumerate(fields)}
    columns = [
        t.NestedField(names.id(), name, kind.iceberg, required=False)
        for (name, kind), there in zip(called.items(), wanted, strict=True)
        if there
    ]
    columns.append(t.NestedField(names.id(), "lacking", t.ListType(names.id(), t.LongType(), element_required=False)))
    columns = draw(st.permutations(columns))

    def norm(value: dict[str, Any]) -> dict[str, Any]:
        return {
            column.name: called[column.name].norm(value[column.name]) if column.name in called else None
            for column in columns
        }

    avro = {"type": "record", "name": names.name(), "fields": [{"name": n, "type": k.avro} for n, k in called.items()]}
    values = st.fixed_dictionaries({name: kind.values for name, kind in called.items()})
    return Kind(avro, t.StructType(*columns), values, norm)


@st.composite
def topics(draw: st.DrawFn, every: bool = False) -> tuple[Kind, list[Any]]:
    """The type of a topic's records, and records. `every`: each field has a column."""
    kind = draw(records(Names(), 2, every))
    return kind, draw(st.lists(kind.values, min_size=1, max_size=4))


def exact(schema: Any) -> Any:
    """The schema with the most digits that its decimals can have.

    A damaged decimal may have more digits than its schema declares. fastavro rounds it to them; a row keeps what its
    column can hold, as Avro's Java reader does.
    """
    if isinstance(schema, list):
        return [exact(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    deeper = {key: exact(part) for key, part in schema.items()}
    if schema.get("logicalType") == "decimal":
        size = schema.get("size", 32)
        deeper["precision"] = len(str(2 ** (8 * size - 1))) - 1
    return deeper


class Peer:
    """Avro's own writer and reader of a type."""

    def __init__(self, kind: Kind) -> None:
        self._norm = kind.norm
        self._schema = fastavro.parse_schema(kind.avro, _force=True)
        self._exact = fastavro.parse_schema(exact(kind.avro), _force=True)

    def written(self, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, value)
        return out.getvalue()

    def read(self, data: bytes) -> tuple[Any, bool]:
        """The row that a record is, and whether all of it was read."""
        source = io.BytesIO(data)
        value = fastavro.schemaless_reader(source, self._exact, None)
        return self._norm(value), source.tell() == len(data)


def decoder(kind: Kind) -> AvroDecoder:
    struct = kind.iceberg
    assert isinstance(struct, t.StructType)
    return AvroDecoder(Schema(*struct.fields), {}, SchemaText("AVRO", json.dumps(kind.avro)))


def outcomes(decoded: DecodedChunk, count: int) -> list[Any]:
    decoded.rows.validate(full=True)
    found: dict[int, Any] = {r.index: r.error_class for r in decoded.rejections}
    moments = find_out_of_range(decoded.rows)  # the shape that comes next rejects them
    for i, place in enumerate(decoded.record_indexes.tolist()):
        assert place not in found
        row = "OutOfRange" if i in moments else decoded.rows.slice(i, 1).to_pylist()[0]
        found[place] = row
    return [found[i] for i in range(count)]


def check_rows(topic: tuple[Kind, list[Any]]) -> None:
    kind, values = topic
    peer = Peer(kind)
    data = [peer.written(value) for value in values]
    decoded = decoder(kind)(RecordChunk.of_values(data))
    assert not decoded.rejections
    assert outcomes(decoded, len(data)) == [peer.read(one)[0] for one in data]


@pytest.mark.rotates(2)
@given(topics())
@settings(max_examples=400)
def test_decoded_rows_equal_those_of_the_avro_library(topic: tuple[Kind, list[Any]]) -> None:
    check_rows(topic)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(topics())
@settings(max_examples=50_000)
def test_decoded_rows_equal_those_of_the_avro_library_for_many_schemas(topic: tuple[Kind, list[Any]]) -> None:
    check_rows(topic)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    at, size, octets = draw(st.floats(0, 1)), draw(st.integers(0, 3)), draw(st.binary(max_size=4))

    def apply(data: bytes) -> bytes:
        place = int(at * len(data))
        return data[:place] + octets + data[place + size :]

    return apply


def shown(row: Any) -> str:
    """The row, also one with NaN, to be compared."""
    return repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


def check_damaged(topic: tuple[Kind, list[Any]], damages: list[Callable[[bytes], bytes]]) -> None:
    kind, values = topic
    peer = Peer(kind)
    valid = [peer.written(value) for value in values]
    damaged = [one(valid[i % len(valid)]) for i, one in enumerate(damages)]
    decode = decoder(kind)
    alone = [outcomes(decode(RecordChunk.of_values([one])), 1)[0] for one in damaged]
    mixed = [part for pair in zip(damaged, itertools.cycle(valid)) for part in pair]
    found = outcomes(decode(RecordChunk.of_values(mixed)), len(mixed))
    assert repr(found[::2]) == repr(alone)  # also of NaN
    assert found[1::2] == [peer.read(one)[0] for one in mixed[1::2]]
    for data, row in zip(damaged, alone, strict=True):
        if isinstance(row, dict):
            try:
                there, whole = peer.read(data)
            except (OverflowError, UnicodeDecodeError, ValueError):
                continue  # a date that Python does not have
            assert as_uuids(shown(row)) == as_uuids(shown(there))
            assert whole


def as_uuids(text: str) -> str:
    """Drop what the peer forgets of a UUID written as text, and a column of text keeps."""
    return text.lower().replace("-", "")


@given(topics(every=True), st.lists(damage(), min_size=1, max_size=8))
@settings(max_examples=150)
def test_a_damaged_record_affects_only_its_own_row_or_rejection(
    topic: tuple[Kind, list[Any]], damages: list[Callable[[bytes], bytes]]
) -> None:
    check_damaged(topic, damages)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(topics(every=True), st.lists(damage(), min_size=1, max_size=8))
@settings(max_examples=50_000)
def test_many_damaged_records_are_their_own_rows_or_rejections(
    topic: tuple[Kind, list[Any]], damages: list[Callable[[bytes], bytes]]
) -> None:
    check_damaged(topic, damages)
