"""JSON becomes a variant that Spark's Python implementation and DuckDB can read."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from math import inf, isnan
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import BinaryType, LongType, NestedField, StructType, TimestamptzType
from pyspark.sql.types import VariantVal

from frazil.errors import SchemaIncompatible
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import OffsetRange, TargetTable
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.formats.json.text import MAX_DEPTH
from frazil.ingest.formats.json.variant import Scratch, encode_variant
from frazil.ingest.parquet import Encodings, FileLayout, ParquetFile
from frazil.ingest.shaper import Shaper
from frazil.ingest.variants import MAX_TEXT_BYTES, VariantEncoder, create_scratch
from frazil.pyiceberg_fixes import VariantType
from frazil.spec.iceberg import table_schema
from frazil.spec.load import validate_stream
from tests.unit.ingest.test_transform import context_of

UNCERTAIN_NUMBER = "9007199254740993.000000000000000000000000000000001e0"
"""A number whose nearest double the compiled code cannot determine."""
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False), NestedField(2, "v", VariantType(), required=False))


def encode(texts: list[str | None]) -> tuple[pa.Table, dict[int, tuple[str, str]]]:
    rows = pa.table({"n": pa.array(range(len(texts)), pa.int64()), "v": pa.array(texts, pa.large_string())})
    return VariantEncoder(SCHEMA)(rows)


def read(row: dict[str, bytes] | None) -> Any:
    with localcontext(prec=60):  # Spark's Python would round decimals to 28 digits
        return row and VariantVal(row["value"], row["metadata"]).toPython()


def round_trip(text: str) -> Any:
    rows, wrong = encode([text])
    assert wrong == {}
    return read(rows["v"][0].as_py())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("true", True),
        (" [false] ", [False]),
        *((str(number), number) for power in (7, 15, 31, 63) for number in (2**power - 1, 2**power, -(2**power))),
        (str(-(2**63) - 1), Decimal(-(2**63) - 1)),
        ("9" * 38, Decimal("9" * 38)),
        ("1" + "0" * 38, 1e38),
        ("-0", 0),
        ("1.50", Decimal("1.50")),
        ("-123456789.123456789", Decimal("-123456789.123456789")),
        ("0." + "0" * 37 + "1", Decimal("1e-38")),
        ("0." + "0" * 38 + "1", 1e-39),
        ("1e2", 100.0),
        ("0.12345678901234567890123456789012345678901e0", 0.12345678901234568),
        ("9007199254740993e0", 9007199254740992.0),
        (f"[{UNCERTAIN_NUMBER}, 0.10]", [9007199254740994.0, Decimal("0.10")]),
        ("-Infinity", -inf),
        ('""', ""),
        ('"' + "x" * 63 + '"', "x" * 63),
        ('"' + "x" * 64 + '"', "x" * 64),
        ('"' + "\\u0041" * 64 + '"', "A" * 64),
        ('"a\\u0000\\ud83d\\ude00\\/é😀"', "a\0😀/é😀"),
        ("[]", []),
        ("{}", {}),
        ('{"b": 1, "a": {"": [], "b": {"é": "b"}}}', {"b": 1, "a": {"": [], "b": {"é": "b"}}}),
        (json.dumps([*range(300)]), [*range(300)]),
        (json.dumps({f"k{n}": "x" * 300 for n in range(300)}), {f"k{n}": "x" * 300 for n in range(300)}),
    ],
)
def test_a_variant_round_trip_preserves_each_value(text: str, value: Any) -> None:
    found = round_trip(text)
    assert found == value
    assert type(found) is type(value) or isinstance(value, int)


def test_nan_is_a_double() -> None:
    assert isnan(round_trip("NaN"))


def test_values_are_nested_deeply() -> None:
    found = round_trip('{"a":[' * 50 + "7" + "]}" * 50)
    for _ in range(50):
        (found,) = found["a"]
    assert found == 7
    assert encode(["[" * 500 + "]" * 500])[1] == {}


def test_a_variant_of_a_megabyte_with_many_keys_survives_a_round_trip() -> None:
    value = {f"key {n % 30_000} {n // 30_000}": [n, str(n)] for n in range(35_000)}
    text = json.dumps(value)
    assert len(text) > 1_000_000
    assert round_trip(text) == value


@pytest.mark.parametrize(
    ("text", "error_class", "error"),
    [
        ('{"a": 1, "a": 2}', "TypeMismatch", "v: has an object with the same field twice"),
        ('[{"a": 1, "\\u0061": 2}]', "TypeMismatch", "same field twice"),
        ("1e400", "OutOfRange", "too large for a double"),
        ("[-1" + "0" * 400 + "]", "OutOfRange", "too large for a double"),
        *(
            (text, "InvalidJson", "v: is not valid JSON")
            for text in (
                "",
                " ",
                "[1",
                "[1,]",
                "1 2",
                "01",
                "1.",
                "-",
                "tru",
                '{"a" 1}',
                '{"a":}',
                "{1:2}",
                "[1}",
                '"a',
                f"[{UNCERTAIN_NUMBER}, 1.2.3]",
                f"[{UNCERTAIN_NUMBER}, 1.e5]",
                f"[{UNCERTAIN_NUMBER}, 012e5]",
            )
        ),
        *(
            (text, "InvalidJson", "not valid JSON")
            for text in ('"\\ud800"', '{"\\udc00": 1}', '"\n"', "[" * 501 + "]" * 501)
        ),
    ],
)
def test_a_value_that_no_variant_can_store_is_an_error_of_its_row_only(text: str, error_class: str, error: str) -> None:
    rows, wrong = encode(["[1]", text, '{"a": 2}', None])
    assert [*wrong] == [1]
    assert wrong[1][0] == error_class
    assert error in wrong[1][1]
    found = rows["v"].to_pylist()
    assert [read(found[0]), read(found[2]), found[3]] == [[1], {"a": 2}, None]


@pytest.mark.parametrize("item", ["1,", '"":[],', "[],", '{"":1},'])
@pytest.mark.parametrize("depth", [1, 250, MAX_DEPTH])
def test_no_text_writes_beyond_the_scratch_memory(depth: int, item: str) -> None:
    """Compiled code does not check indexes. Each array of the scratch memory lies in a longer one."""
    longest = 3_000
    for bracket in ("[", '{"":'):
        text = (bracket * depth + item * longest)[:longest].encode()
        longer = Scratch(*(np.concatenate([part, np.full_like(part, 77)]) for part in create_scratch(longest)))
        scratch = Scratch(*(part[: len(part) // 2] for part in longer))
        scratch.line[: len(text) + 1] = np.frombuffer(text + b"\n", np.uint8)
        encode_variant(len(text), np.zeros(5 * longest, np.uint8), 0, scratch)
        for part in longer:
            assert (part[len(part) // 2 :] == 77).all()


def test_keys_that_differ_in_their_last_byte_do_not_collide() -> None:
    """Keys that collide would have adjacent slots."""
    keys = [f"a long key {last}" for last in "0@P`p"]
    text = json.dumps(dict.fromkeys(keys)).encode()
    scratch = create_scratch(1024)
    scratch.line[: len(text) + 1] = np.frombuffer(text + b"\n", np.uint8)
    encode_variant(len(text), np.zeros(1024, np.uint8), 0, scratch)
    slots = np.sort(scratch.key_slots[: len(keys)])
    assert (np.diff(slots) > 1).all()


NUMBERS = st.integers(-(10**38) + 1, 10**38 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(st.lists(VALUES, max_size=5), st.booleans())
@example([{"a" * n: n for n in range(300)}] * 2, False)
def test_any_value_is_read_back(values: list[Any], ascii_only: bool) -> None:
    rows, wrong = encode([json.dumps(value, ensure_ascii=ascii_only) for value in values])
    assert wrong == {}
    for row, value in zip(rows["v"].to_pylist(), values, strict=True):
        assert_same(read(row), value)


def assert_same(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        assert found.keys() == value.keys()
        for name in value:
            assert_same(found[name], value[name])
    elif isinstance(value, list):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            assert_same(one, other)
    else:
        assert (float(found) if isinstance(value, float) else found) == value


KEYED = st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner), max_leaves=6)
BROKEN = st.sampled_from(['{"b": 1, "a": {"c": 2}, "a": 3}', '{"a": {"b": 1}, "c" 1}', '{"\\u0061": 1, "b": 2}'])


@given(st.lists(KEYED.map(json.dumps) | BROKEN, max_size=6))
@example(['{"c": 1, "b": {"a": 2, "d": 3}}', '{"c": 1, "b": {"d": 2}, "a": 3}', '{"d": 1, "b": {"a": 2, "c": 3}}'])
def test_previous_texts_do_not_affect_how_a_variant_is_encoded(texts: list[str]) -> None:
    """The encoder expects the keys of the text before."""
    twice = texts * 2
    alone = [encode([text])[0]["v"][0].as_py() for text in twice]
    assert encode([*twice])[0]["v"].to_pylist() == alone


@given(st.text(alphabet='[]{}",:\\u0aé1.-eE tfn', max_size=12))
def test_invalid_json_is_an_error_of_the_variant_encoder(text: str) -> None:
    try:
        json.loads(text, object_pairs_hook=lambda pairs: pairs)
        text.encode()
        json.loads(text).__repr__().encode()
    except (ValueError, UnicodeEncodeError):
        assert [*encode([text])[1]] == [0]


def test_slices_chunks_and_long_columns_keep_their_order() -> None:
    texts = [json.dumps({"n": n, "text": "x" * 999}) for n in range(MAX_TEXT_BYTES // 500)]
    texts[5] = "["
    column = pa.chunked_array([pa.array(texts, pa.large_string())[3:4000], pa.array([None, *texts], pa.large_string())])
    rows, wrong = VariantEncoder(SCHEMA)(pa.table({"n": pa.array(range(len(column))), "v": column}))
    expected = [*range(3, 4000), None, *range(len(texts))]
    bad = [2, 3998 + 5]
    assert [*wrong] == bad
    found = [read(row)["n"] if row and i not in bad else None for i, row in enumerate(rows["v"].to_pylist())]
    assert found == [None if i in bad else n for i, n in enumerate(expected)]


def target(schema: Schema) -> TargetTable:
    unpartitioned = UNPARTITIONED_PARTITION_SPEC.model_dump_json()
    return TargetTable(schema.model_dump_json(), unpartitioned, UNSORTED_SORT_ORDER.model_dump_json(), {}, "", 0)


def written(rows: pa.Table, schema: Schema = SCHEMA) -> tuple[bytes, Any]:
    file = ParquetFile(None, "", FileLayout.of(target(schema), "main"), (), encodings=Encodings([], {}))
    stream = file._stream
    kept: list[bytes] = []
    close = stream.close
    stream.close = lambda: (kept.append(stream.getvalue()), close())  # type: ignore[func-returns-value]
    file.write(rows)
    staged = file.close()
    return kept[0], staged


def test_a_file_declares_the_column_as_a_variant(tmp_path: Any) -> None:
    rows, _ = encode(['{"a": [1, null, "x"]}', None, "7"])
    octets, staged = written(rows)
    assert staged.bytes == len(octets)
    (tmp_path / "f.parquet").write_bytes(octets)
    schema = pq.read_metadata(tmp_path / "f.parquet").schema
    assert "optional group field_id=2 v (Variant(1))" in str(schema)
    assert pq.read_table(tmp_path / "f.parquet")["v"].to_pylist() == rows["v"].to_pylist()
    found = duckdb.sql(f"SELECT n, typeof(v), v::JSON FROM '{tmp_path}/f.parquet' ORDER BY n").fetchall()  # type: ignore[union-attr]
    assert found == [(0, "VARIANT", '{"a":[1,null,"x"]}'), (1, "VARIANT", None), (2, "VARIANT", "7")]


def test_a_variant_has_a_size_and_no_other_statistics() -> None:
    rows, _ = encode(["[1]", None])
    _, staged = written(rows)
    assert set(staged.column_sizes) == {1, 2}
    assert set(staged.value_counts) == set(staged.null_value_counts) == {1}
    assert set(staged.lower_bounds) == set(staged.upper_bounds) == {1}


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("field_id", [3, 63, 64, 9_000])
def test_only_the_variant_column_is_annotated_and_not_columns_with_the_same_name(field_id: int, required: bool) -> None:
    group = StructType(
        NestedField(11, "metadata", BinaryType(), required=True), NestedField(12, "value", BinaryType(), required=True)
    )
    inner = StructType(NestedField(10, "v", group, required=required), NestedField(13, "at", TimestamptzType()))
    others = [NestedField(100 + n, f"other{n}", LongType(), required=False) for n in range(20)]
    schema = Schema(
        NestedField(1, "inner", inner, required=False),
        *others,
        NestedField(field_id, "v", VariantType(), required=required),
        NestedField(2, "é" * 70, VariantType(), required=False),
    )
    octets, _ = written(pa.Table.from_pylist([], schema=FileLayout.of(target(schema), "main").arrow_schema), schema)
    found = str(pq.read_metadata(pa.BufferReader(octets)).schema)
    kind = "required" if required else "optional"
    assert [line for line in found.splitlines() if "Variant" in line] == [
        f"  {kind} group field_id={field_id} v (Variant(1)) {{",
        f"  optional group field_id=2 {'é' * 70} (Variant(1)) {{",
    ]


def test_no_file_is_written_for_a_table_that_got_a_variant_inside_a_struct_after_it_was_opened() -> None:
    inner = StructType(NestedField(4, "v", VariantType(), required=False))
    schema = Schema(*SCHEMA.fields, NestedField(3, "s", inner, required=False))
    with pytest.raises(SchemaIncompatible, match=r"s\.v is a variant inside another type"):
        FileLayout.of(target(schema), "main")


@pytest.mark.parametrize("keeps_json", [False, True])
def test_a_record_whose_value_no_variant_stores_becomes_a_dead_letter(keeps_json: bool) -> None:
    declared = {
        "name": "s",
        "source": {"topics": ["t"], "bootstrap-servers": "broker:9092"},
        "table": {"identifier": "a.b", "properties": {"format-version": 3}},
        "schema": {"v": "variant"},
        "event-time": "kafka_timestamp",
    }
    spec = validate_stream(declared, Path("s.yaml"))
    texts = ['{"a": 1}', '{"a": 1, "a": 2}', None, "[1]"]
    decoded = pa.table([pa.array(texts, pa.large_string())], ["v"])
    shape = Shaper(
        context_of(spec),
        table_schema(spec),
        [OffsetRange("t", 0, 0, 4)],
        decode=lambda chunk: DecodedChunk(decoded, np.arange(len(chunk))),
        keeps_json=keeps_json,
    )
    found = shape(RecordChunk.of_values([b""] * 4))
    assert [(r.index, r.error_class) for r in found.rejections] == [(1, "TypeMismatch")]
    assert found.record_indexes.tolist() == [0, 2, 3]
    values = found.rows["v"].to_pylist()
    assert values == ['{"a": 1}', None, "[1]"] if keeps_json else [*map(read, values)] == [{"a": 1}, None, [1]]
