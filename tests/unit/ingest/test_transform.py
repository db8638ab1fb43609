"""Transforms: the allowed SELECTs, each record's outcome, and the counts of a stage."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import DateType, LongType, NestedField, StringType

from frazil.errors import MissingExtra, SpecError
from frazil.ingest import readers
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import (
    DEAD_LETTERS_SUFFIX,
    OffsetRange,
    RecordFile,
    StageContext,
    StageResult,
    StageTask,
    TargetTable,
)
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.record_files import RowChunk
from frazil.ingest.stage import stage
from frazil.ingest.target_decoders import open_decoder
from frazil.ingest.transform_check import check_transform
from frazil.ingest.transform_sql import open_connection
from frazil.spec import iceberg
from frazil.spec.formats import dump_portable_format
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.stream.stage_context import current_transform, sensitive_fields

FIELDS = {"n": "long", "txt": "string", "seen": "timestamptz", "part": "struct<a: int>", "tags": "list<string>"}


def stream(sql: str, fields: Any = FIELDS, **other: Any) -> StreamSpec:
    source = {"topics": ["t"], "bootstrap-servers": "broker:9092", "schema": fields, **other.pop("source", {})}
    declared = {"name": "s", "source": source, "table": "a.b", "schema": {"a": "long"}, "transform": sql, **other}
    return validate_stream({"event-time": "kafka_timestamp", **declared}, Path("s.yaml"))


def context_of(spec: StreamSpec, folder: str = "") -> StageContext:
    schema = iceberg.table_schema(spec)

    def target(name: str, of: Any, partitioning: Any, order: Any) -> TargetTable:
        forms = (one.model_dump_json() for one in (of, partitioning, order))
        return TargetTable(*forms, {}, f"{folder}/{name}", 2**27)

    letters = (iceberg.DEAD_LETTER_SCHEMA, iceberg.DEAD_LETTER_PARTITION_SPEC, SortOrder(order_id=0))
    targets = {
        "main": target("main", schema, iceberg.partition_spec(spec, schema), iceberg.sort_order(spec, schema)),
        "dead-letters": target("dead", *letters),
    }
    return StageContext(
        stream="s",
        epoch=1,
        batch=1,
        kafka={},
        format=dump_portable_format(spec.value_format),
        event_time_column=spec.event_time.column,
        coordinates=True,
        targets=targets,
        topic_ids={"t": "id"},
        units=spec.units,
        key_header_columns=spec.key_header_columns,
        transform=check_transform(spec).transform if spec.transform else None,
        sensitive=sensitive_fields(spec, schema, {}),
    )


def transformed(spec: StreamSpec, values: Sequence[Any], **of_chunk: Any) -> DecodedChunk:
    chunk = RecordChunk.of_values([v if isinstance(v, bytes) else json.dumps(v).encode() for v in values])
    return open_decoder(context_of(spec), iceberg.table_schema(spec))(replace(chunk, **of_chunk))


def refusal(sql: str, **other: Any) -> str:
    with pytest.raises(SpecError) as error:
        check_transform(stream(sql, **other))
    return str(error.value)


@pytest.mark.parametrize(
    "expression",
    [
        "now()",
        "current_date",
        "current_timestamp",
        "today()",
        "random()",
        "uuid()",
        "nextval('s')",
        "txid_current()",
        "sum(n)",
        "count(*)",
        "sum(n) OVER ()",
        "row_number() OVER (ORDER BY n)",
        "(SELECT 1)",
        "EXISTS (SELECT 1)",
        "n IN (SELECT 1)",
        "age(seen)",
        "ago(INTERVAL 1 DAY)",
        "current_localtimestamp()",
        "version()",
        "hash(n)",
        "list_grade_up([n, n])[1]",
        "array_grade_up([n, n])[1]",
        "getvariable('x')",
        "current_setting('threads')",
        "current_user",
        "pg_sleep(1)",
        "sleep_ms(1)",
        "error('x')",
        "read_text('/etc/passwd')",
        "getenv('HOME')",
        "$1",
        "#1",
        "records",
        "rowid",
        "_frazil_row",
        "main.upper(txt)",
        "list_aggregate([n], txt)",
        "list_aggregate([n], 'reservoir_quantile')",
        "current_date -> '$.a'",
        "list_transform([1], lambda x: x + random())",
        "json_serialize_sql('SELECT 1')",
        "regexp_split_to_table(txt, 'a')",
        "unknown",
        "unknown(n)",
        "list(n)",
        "upper(DISTINCT txt)",
        "write_log('x')",
        "COLUMNS('n')",
        "CASE WHEN now() IS NULL THEN 1 END",
    ],
)
def test_a_transform_that_is_not_a_pure_function_of_one_record_is_refused(expression: str) -> None:
    assert refusal(f"SELECT ({expression})::BIGINT AS a FROM records").startswith("transform: ")
    assert refusal(f"SELECT n AS a FROM records WHERE ({expression})::BIGINT > 0").startswith("transform: ")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n AS a FROM records LIMIT 1",
        "SELECT DISTINCT n AS a FROM records",
        "SELECT n AS a FROM records ORDER BY n",
        "SELECT n AS a FROM records GROUP BY n",
        "SELECT n AS a FROM records GROUP BY ALL",
        "SELECT n AS a FROM other",
        "SELECT n AS a FROM records, records AS r",
        "SELECT r.n AS a FROM records JOIN records r ON true",
        "SELECT n AS a FROM (SELECT * FROM records)",
        "WITH x AS (SELECT 1) SELECT n AS a FROM records",
        "SELECT 1 AS a",
        "SELECT n AS a FROM records UNION SELECT n FROM records",
        "SELECT n AS a FROM records QUALIFY true",
        "SELECT n AS a FROM records HAVING true",
        "SELECT n AS a FROM records TABLESAMPLE 10%",
        "VALUES (1)",
        "SELECT n AS a FROM main.records",
        "SELECT n AS a FROM read_csv('x')",
        "SELECT n AS a FROM 'x.parquet'",
        "SELECT n AS a FROM records; SELECT 1",
        "INSERT INTO records VALUES (1)",
        "COPY records TO 'x'",
        "SELECT",
        "SELECT n AS a, n AS a FROM records",
        "SELECT n + 1 FROM records",
        "SELECT n AS b, b AS a FROM records",
    ],
)
def test_clauses_that_read_several_records_and_other_statements_are_refused(sql: str) -> None:
    assert refusal(sql).startswith("transform: ")


def test_all_problems_of_a_transform_are_reported_at_once() -> None:
    said = refusal(
        "SELECT now() AS a, random() + sum(n) AS b, part.x AS c, n FROM records WHERE uuid() = txt LIMIT 1",
        schema={"a": "long", "z": "string"},
    ).splitlines()
    assert [line.removeprefix("transform: ").partition(" is ")[0] for line in said] == [
        "LIMIT",
        "the column a: now",
        "the column b: random",
        "the column b: sum",
        "WHERE: uuid",
        'the column c: Binder Error: Could not find key "x" in struct',
        "the SELECT does not compute the column z of schema",
        "the column b of the SELECT",
        "the column c of the SELECT",
        "the column n of the SELECT",
    ]
    types = refusal("SELECT n + txt AS a, txt::INTEGER AS b FROM records WHERE n", schema={"a": "long", "b": "long"})
    assert ["Binder Error" in line for line in types.splitlines()] == [True, False]
    assert "the column b is int in the SELECT" in types


def test_columns_and_types_that_differ_from_the_schema_are_refused_and_both_are_shown() -> None:
    assert "column a is int in the SELECT, but long in schema" in refusal("SELECT n::INTEGER AS a FROM records")
    said = refusal("SELECT n AS b FROM records")
    assert "does not compute the column a of schema" in said
    assert "the column b of the SELECT is not a column of schema (long)" in said
    assert "in the SELECT, but list<int> in schema" in refusal(
        "SELECT tags AS a FROM records", schema={"a": "list<int>"}
    )
    variant = {"schema": {"a": "variant"}, "table": {"identifier": "a.b", "properties": {"format-version": 3}}}
    said = refusal("SELECT part AS a FROM records", **variant)
    assert said.endswith("in the SELECT, but variant in schema; write to_json(…), or change schema")
    check_transform(stream("SELECT to_json(part) AS a FROM records", **variant))
    assert "Binder Error" in refusal("SELECT n + txt AS a FROM records")


def test_names_that_engines_take_for_the_same_are_refused() -> None:
    """DuckDB keeps the micro sign and the Greek letter apart; Spark does not."""
    said = refusal('SELECT n AS "\u00b5", n AS "\u03bc" FROM records', schema={"\u00b5": "long"})
    assert said == "transform: the column \u03bc of the SELECT is not a column of schema (long)"
    nested = refusal("SELECT {'\u00b5': n, '\u03bc': n} AS a FROM records", schema={"a": "struct<\u00b5: long>"})
    assert "but struct<\u00b5: long> in schema" in nested
    with pytest.raises(SpecError, match="names the column"):
        stream('SELECT n AS "\u00b5", n AS "\u03bc" FROM records', schema={"\u00b5": "long", "\u03bc": "long"})


@pytest.mark.parametrize(
    ("expression", "kind", "expected"),
    [
        ("part.a", "int", 3),
        ("tags[1]", "string", "x"),
        ("list_sum([n, 1])::BIGINT", "long", 6),
        ("list_transform(tags, lambda t: upper(t))", "list<string>", ["X", "Y"]),
        ("txt -> '$.k'", "string", '"v"'),
        ("[t || '!' for t in tags]", "list<string>", ["x!", "y!"]),
        ("txt ->> '$.k'", "string", "v"),
        ("{'a': n, 'b': {'c': tags}}", "struct<a: long, b: struct<c: list<string>>>", {"a": 5, "b": {"c": ["x", "y"]}}),
        ("MAP {'k': n}", "map<string, long>", [("k", 5)]),
        ("n::DECIMAL(9, 2)", "decimal(9, 2)", "5.00"),
        ("strftime(seen, '%d')", "string", "02"),
        ("CAST(seen AS DATE)", "date", "2026-01-02"),
        ("n::DOUBLE", "double", 5.0),
        ("n > 1 AND NOT n = 3", "boolean", True),
        ("encode(txt)", "binary", b'{"k": "v"}'),
        ("n::FLOAT", "float", 5.0),
        ("encode('abcd')", "fixed[4]", b"abcd"),
        ("seen::TIMESTAMP", "timestamp", "2026-01-02 03:04:05"),
        ("records.n", "long", 5),
        ("nullif(n, 5)", "long", None),
        ("\"if\"(n > 1, 'a', 'b')", "string", "a"),
    ],
)
def test_expressions_give_values_of_each_type(expression: str, kind: str, expected: Any) -> None:
    record = {"n": 5, "txt": '{"k": "v"}', "seen": "2026-01-02T03:04:05Z", "part": {"a": 3}, "tags": ["x", "y"]}
    spec = stream(f"SELECT {expression} AS a FROM records", schema={"a": kind})
    found = transformed(spec, [record])
    assert found.rejections == []
    (row,) = found.rows.to_pylist()
    assert (str(row["a"]) if isinstance(expected, str) else row["a"]) == expected


def test_failing_and_dropped_records_leave_their_neighbours_as_they_are() -> None:
    spec = stream("SELECT CAST(txt AS BIGINT) // n AS a FROM records WHERE txt <> '' AND CAST(txt AS BIGINT) > 0")
    texts = ["6", "", "x", "4", "0", "8", None, "9" * 30]
    found = transformed(spec, [{"n": 0 if txt == "4" else 2, "txt": txt} for txt in texts] + [b"{"])
    assert [(int(k), row["a"]) for k, row in zip(found.record_indexes, found.rows.to_pylist(), strict=True)] == [
        (0, 3),
        (5, 4),
    ]
    assert found.dropped.tolist() == [1, 4, 6]
    errors = {r.index: (r.error_class, r.error) for r in found.rejections}
    assert {index: kind for index, (kind, _) in errors.items() if index != 8} == dict.fromkeys(
        [2, 3, 7], "TransformFailed"
    )
    assert errors[3][1].startswith("a: (CAST(txt AS BIGINT) // n) failed for n = 0, txt = '4': ")
    assert errors[2][1].startswith("WHERE: ")
    assert "failed for txt = 'x': Conversion Error: Could not convert string 'x' to INT64" in errors[2][1]
    assert errors[8][0] != "TransformFailed"


def test_a_chunk_after_a_failed_chunk_and_a_chunk_of_failures_decode_independently() -> None:
    spec = stream("SELECT CAST(txt AS BIGINT) AS a FROM records")
    decode = open_decoder(context_of(spec), iceberg.table_schema(spec))
    for texts, kept in ((["x", "1"], [1]), (["x", "y"], []), (["1", "2"], [0, 1]), ([], []), (["3", "x"], [0])):
        found = decode(RecordChunk.of_values([json.dumps({"txt": txt}).encode() for txt in texts]))
        assert found.record_indexes.tolist() == kept
        assert len(found.rejections) == len(texts) - len(kept)


@pytest.mark.parametrize("argument", ["part", "MAP {'k': n}"])
def test_unnest_of_a_struct_or_map_is_refused_with_its_type(argument: str) -> None:
    kind = {"part": "struct<a: int>"}.get(argument, "map<string, long>")
    message = refusal(f"SELECT unnest({argument}) AS a FROM records")
    assert message.startswith("transform: UNNEST: ")
    assert message.endswith(f" is {kind}; write a list")


def test_an_element_that_fails_rejects_its_whole_record_and_an_empty_list_is_dropped() -> None:
    spec = stream("SELECT CAST(unnest(tags) AS BIGINT) * n AS a FROM records", schema={"a": "long"})
    values = [{"n": 2, "tags": ["1", "2"]}, {"n": 1, "tags": ["1", "x"]}, {"n": 1, "tags": []}, {"n": 1}]
    found = transformed(spec, values)
    assert [row["a"] for k, row in zip(found.record_indexes, found.rows.to_pylist(), strict=True) if k == 0] == [2, 4]
    assert [r.index for r in found.rejections] == [1]
    assert found.dropped.tolist() == [2, 3]


def test_a_value_that_is_required_and_null_is_a_dead_letter() -> None:
    found = transformed(stream("SELECT n AS a FROM records", schema={"a": "long not null"}), [{"n": 1}, {}])
    assert found.record_indexes.tolist() == [0]
    assert found.rejections == [(1, "MissingRequired", "a: required, and missing or null")]


def test_bytes_of_another_length_than_fixed_are_a_dead_letter() -> None:
    spec = stream("SELECT encode(txt) AS a FROM records", schema={"a": "fixed[2]"})
    found = transformed(spec, [{"txt": "ab"}, {"txt": "abc"}, {}])
    assert (found.record_indexes.tolist(), [r.index for r in found.rejections]) == ([0, 2], [1])


@pytest.mark.parametrize(
    ("source", "fields", "value"),
    [
        ({"format": "csv"}, {"n": "long", "txt": "string"}, b"7,x"),
        ({"format": {"type": "csv", "columns": ["txt", "n"]}}, {"n": "long", "txt": "string"}, b"x,7"),
        ({"format": "string"}, {"txt": "string"}, b"7x"),
        ({"format": {"type": "json", "lines": True}}, {"n": "long", "txt": "string"}, b'{"n": 7, "txt": "x"}\n'),
        (
            {
                "format": {
                    "type": "avro",
                    "schema-text": '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, '
                    '{"name": "txt", "type": "string"}]}',
                }
            },
            {"n": "long", "txt": "string"},
            b"\x0e\x02x",
        ),
    ],
)
def test_every_format_is_transformed(source: Any, fields: Any, value: bytes) -> None:
    number = "n" if "n" in fields else "CAST(txt[1] AS BIGINT)"
    spec = stream(f"SELECT {number} + 1 AS a FROM records", fields, source=source)
    assert transformed(spec, [value]).rows.to_pylist() == [{"a": 8}]


def test_a_transform_can_use_keys_and_headers_as_fields() -> None:
    source = {"format": "string", "key": {"column": "k", "format": "string"}}
    spec = stream("SELECT CAST(k || txt AS BIGINT) AS a FROM records", {"k": "string", "txt": "string"}, source=source)
    keys = RecordChunk.of_values([b"4", b"x"]).values
    found = transformed(spec, [b"2", b"2"], keys=keys)
    assert (found.rows.to_pylist(), [r.index for r in found.rejections]) == ([{"a": 42}], [1])


def test_a_transform_reads_fields_in_their_declared_units() -> None:
    spec = stream(
        "SELECT epoch_ms(seen) AS a FROM records", {"seen": {"type": "timestamptz", "unit": "ms"}}, schema={"a": "long"}
    )
    assert transformed(spec, [{"seen": 1_767_225_600_123}]).rows.to_pylist() == [{"a": 1_767_225_600_123}]


def test_a_failing_record_of_a_stream_with_sensitive_fields_is_not_quoted() -> None:
    spec = stream(
        "SELECT CAST(txt AS BIGINT) AS a, txt AS b FROM records",
        schema={"a": "long", "b": "string"},
        sensitive={"fields": {"b": {"as": "mask"}}},
    )
    (rejection,) = transformed(spec, [{"txt": "secret"}]).rejections
    assert rejection.error == "a: CAST(txt AS BIGINT) failed: Conversion Error"


def test_a_query_reaches_neither_files_nor_settings(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1")
    with open_connection() as connection:
        for sql in (
            f"SELECT * FROM '{tmp_path}/x.csv'",
            "SET threads = 4",
            "INSTALL httpfs",
            f"ATTACH '{tmp_path}/x.db'",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(sql).fetchall()


def test_without_duckdb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setattr("frazil.extras.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"frazil\[transform\]"):
        open_connection()


class Reader:
    """Records of one range, in chunks."""

    notice = None
    on_read: Any = None

    def __init__(self, values: Sequence[bytes], size: int) -> None:
        whole = replace(RecordChunk.of_values(values), timestamps_ms=np.full(len(values), 1_767_225_600_000))
        self._chunks = [whole.slice(at, at + size) for at in range(0, len(values), size)]

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(self._chunks)


def staged(spec: StreamSpec, values: Sequence[bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> StageResult:
    monkeypatch.setattr(readers, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    task = StageTask(0, (OffsetRange("t", 0, 0, len(values)),))
    context = StageContext.from_dict(context_of(spec, str(folder)).to_dict())
    return stage(context, task, attempt=0)


def test_a_stage_counts_dropped_records_for_each_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = stream("SELECT CAST(txt AS BIGINT) AS a FROM records WHERE n % 3 > 0")
    values = [json.dumps({"n": n, "txt": "x" if n == 7 else str(n)}).encode() for n in range(30)]
    result = StageResult.from_json(staged(spec, values, tmp_path, monkeypatch).to_json())
    (progress,) = result.progress
    assert (progress.records, progress.rejected, progress.dropped) == (19, 1, 10)
    (file,) = (f for f in result.files if f.target == "main")
    rows = pq.read_table(file.path).to_pylist()
    assert [(row["a"], row["kafka_offset"]) for row in rows] == [(n, n) for n in range(30) if n % 3 and n != 7]


def test_a_replayed_record_that_the_where_clause_drops_is_rejected_for_that_reason(tmp_path: Path) -> None:
    dead_letters = {
        "kafka_topic": ["t"],
        "kafka_partition": pa.array([0], pa.int32()),
        "kafka_offset": [0],
        "kafka_timestamp": pa.array([0], pa.timestamp("us", "UTC")),
        "key": pa.nulls(1, pa.binary()),
        "value": [b'{"n": 0}'],
        "headers": pa.nulls(1, pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()}))),
    }
    pq.write_table(pa.table(dead_letters), path := tmp_path / f"in{DEAD_LETTERS_SUFFIX}")
    of = OffsetRange("t", 0, 0, 1)
    context = context_of(stream("SELECT n AS a FROM records WHERE n > 0"), str(tmp_path))
    context = replace(context, files=(RecordFile(str(path), path.stat().st_size, 0, (of,)),))
    result = stage(context, StageTask(0, (of,)), attempt=0)
    said = "the transform's WHERE drops the record, and the writer skips such records: discard this dead letter"
    assert [(one.error_class, one.error) for one in result.rejects.samples] == [("NoChange", said)]


@pytest.mark.parametrize(
    ("expression", "text", "said"),
    [
        ("json_extract_string('{}', txt)", "*", "INTERNAL Error: Invalid JSON path element"),
        ("array_length(tags, length(txt))", "ab", "array_length for lists with dimensions other than 1"),
        ("CASE WHEN txt LIKE txt ESCAPE '!' THEN 1 END", "a!", "Like pattern must not end with escape character"),
    ],
)
def test_a_record_for_which_duckdb_itself_fails_is_the_only_dead_letter(
    expression: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    condition = f"({expression}) IS NULL OR n > 0"
    values = [json.dumps({"n": n, "txt": text if n == 4 else "a", "tags": ["x"]}).encode() for n in range(1, 30)]
    for sql in (f"SELECT n AS a FROM records WHERE {condition}", f"SELECT if({condition}, n, 0) AS a FROM records"):
        result = staged(stream(sql), values, tmp_path / str(len(sql)), monkeypatch)
        (progress,) = result.progress
        assert (progress.records, progress.rejected, progress.dropped) == (28, 1, 0)
        (file,) = (f for f in result.files if f.target == "dead-letters")
        (dead,) = pq.read_table(file.path).to_pylist()
        assert (dead["kafka_offset"], dead["error_class"]) == (3, "TransformFailed")
        assert said in dead["error"]
        assert "Stack Trace" not in dead["error"]


@pytest.mark.parametrize(
    "expression",
    [
        "repeat(txt, n)",
        "lpad(txt, n::INTEGER, 'x')",
        "repeat(txt, 1000000000)",
        "repeat(txt, '1000000000')",
        "repeat(txt, '1e9')",
        "repeat(txt, ' +99999999')",
        "range(n)",
        "range(1, 2, n)",
        "list_resize(tags, n)",
        "format('{:>{}}', txt, n)",
        "printf('%*d', n::INTEGER, 3)",
        "format(txt, 1)",
        "printf('%99999999d', 1)",
        "generate_series(1, n)",
        "bitstring(txt, n::INTEGER)::VARCHAR",
    ],
)
def test_a_record_cannot_choose_how_long_the_result_of_a_function_is(expression: str) -> None:
    assert "constant" in refusal(f"SELECT {expression} AS a FROM records")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("lpad(txt, 8, '999999')", "999999ab"), ("rpad(txt, 4, repeat('9', 5000))", "ab99"), ("repeat(txt, '2')", "abab")],
)
def test_the_padding_text_of_a_function_is_not_limited_like_a_length(expression: str, expected: str) -> None:
    of = stream(f"SELECT {expression} AS a FROM records", schema={"a": "string"})
    assert transformed(of, [{"txt": "ab"}]).rows.column("a").to_pylist() == [expected]


def test_a_transform_failure_with_a_truncated_message_rejects_the_right_record() -> None:
    spec = stream("SELECT octet_length(from_hex(txt))::BIGINT AS a FROM records")
    found = transformed(spec, [{"txt": "00"}, {"txt": "😀"}, {"txt": "é"}, {"txt": "0000"}])
    assert found.rows.column("a").to_pylist() == [1, 2]
    assert [(r.index, r.error_class) for r in found.rejections] == [(1, "TransformFailed"), (2, "TransformFailed")]


@pytest.mark.parametrize(
    "name", ["levenshtein", "editdist3", "damerau_levenshtein", "jaro_similarity", "jaro_winkler_similarity"]
)
def test_a_record_cannot_choose_how_long_the_texts_are_that_a_quadratic_function_compares(name: str) -> None:
    for second in ("txt", "left(txt, n::INTEGER)", "left(txt, 1001)", "left(txt, -1)", "left(txt, '9999')"):
        said = refusal(f"SELECT {name}(left(txt, 9), {second})::BIGINT AS a FROM records")
        assert f"{name}: its arguments must be constants or left(…, n) with n up to 1,000" in said
    for second in ("'smith'", "left(upper(txt), 1000)"):
        check_transform(stream(f"SELECT {name}(left(txt, 9), {second})::BIGINT AS a FROM records"))


@pytest.mark.parametrize(
    "call",
    [
        "replace(txt, 'a', {})",
        "regexp_replace(txt, 'a', {}, 'g')",
    ],
)
def test_a_record_cannot_choose_how_long_the_text_is_that_a_function_repeats(call: str) -> None:
    for text in ("txt", "upper(txt)", "repeat(txt, 9)", "left(txt, 101)"):
        said = refusal(f"SELECT {call.format(text)} AS a FROM records")
        assert "must be a constant or left(…, n) with n up to 100," in said
    for text in ("', '", "chr(10)", "left(txt, 100)", "repeat('b', 10)", "repeat('a', 2 * length('abc'))"):
        check_transform(stream(f"SELECT {call.format(text)} AS a FROM records", schema={"a": "string"}))


@pytest.mark.parametrize(
    "expression",
    [
        "repeat(repeat(txt, 1000), 1000)",
        "list_transform(range(0, 1000), lambda x: range(0, 1000))",
        "range(0, 100001)",
        "replace(replace(replace(txt, 'x', left(txt, 100)), 'x', left(txt, 100)), 'x', left(txt, 100))",
        f"replace(repeat(txt, 1000), 'x', '{'y' * 101}')",
    ],
)
def test_nested_length_arguments_are_limited_too(expression: str) -> None:
    assert "100,000" in refusal(f"SELECT {expression} AS a FROM records")


def test_short_nested_lengths_are_allowed() -> None:
    expression = "array_to_string(list_transform(tags, lambda x: lpad(x, 5, '0')), '') || repeat(lpad(txt, 10, '0'), 3)"
    check_transform(stream(f"SELECT {expression} AS a FROM records", schema={"a": "string"}))


def test_a_writer_evaluates_the_transform_in_another_process_that_a_record_may_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = stream("SELECT CAST(txt AS BIGINT) AS a FROM records WHERE n > 0")
    values = [json.dumps({"n": n, "txt": "x" if n == 2 else "1"}).encode() for n in range(4)]
    monkeypatch.setattr(readers, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    task = StageTask(0, (OffsetRange("t", 0, 0, 4),))
    (progress,) = stage(context_of(spec, str(tmp_path)), task, attempt=1).progress
    assert (progress.records, progress.rejected, progress.dropped) == (2, 1, 1)


def test_rows_of_a_parquet_file_are_records_too() -> None:
    spec = stream("SELECT CAST(txt AS BIGINT) AS a FROM records WHERE n > 0", {"n": "long", "txt": "string"})
    plain = RecordChunk.of_values([None] * 3)
    rows = pa.table({"n": [1, 0, 1], "txt": pa.array(["5", "6", "x"], pa.large_string())})
    chunk = RowChunk(plain.values, plain.keys, plain.range_index, plain.offsets, plain.timestamps_ms, rows)
    found = open_decoder(context_of(spec), iceberg.table_schema(spec))(chunk)
    assert (found.rows.to_pylist(), found.dropped.tolist()) == ([{"a": 5}], [1])
    assert [r.index for r in found.rejections] == [2]


def test_a_column_that_was_renamed_in_the_table_is_made_under_its_present_name() -> None:
    spec = stream("SELECT n AS a FROM records")
    table = Schema(NestedField(1, "renamed", LongType()))
    found = current_transform(spec, table, {"a": 1})
    assert found is not None
    assert [column.name for column in found.columns] == ["renamed"]


def test_a_column_missing_from_the_select_gets_the_default_that_another_engine_set() -> None:
    spec = stream("SELECT n AS a FROM records")
    columns = Schema(
        *iceberg.table_schema(spec).fields,
        NestedField(98, "since", DateType(), initial_default=date(2013, 1, 2), write_default=date(2013, 1, 2)),
        NestedField(99, "note", StringType()),
    )
    values = [b'{"n": 1}', b'{"n": "x"}', b'{"n": 2}']
    found = open_decoder(context_of(spec), columns)(RecordChunk.of_values(values))
    assert found.rows.to_pylist() == [{"a": n, "since": date(2013, 1, 2), "note": None} for n in (1, 2)]


@pytest.mark.parametrize("required", [False, True])
def test_a_null_that_the_select_makes_gets_the_tables_default(required: bool) -> None:
    spec = stream("SELECT n AS a FROM records")
    a = iceberg.table_schema(spec).find_field("a")
    columns = Schema(a.model_copy(update={"write_default": 7, "initial_default": 7, "required": required}))
    found = open_decoder(context_of(spec), columns)(RecordChunk.of_values([b'{"n": 1}', b'{"n": null}', b"{}"]))
    assert (found.rows.to_pylist(), found.rejections) == ([{"a": 1}, {"a": 7}, {"a": 7}], [])


def test_a_sensitive_field_is_not_kept_in_rest() -> None:
    columns = {"more": "string", "card": "string"}
    secret = {"card": {"as": "mask"}, "pin": {"as": "drop"}}
    spec = stream("SELECT * FROM records", columns, schema=columns, rest="more", sensitive={"fields": secret})
    (row,) = transformed(spec, [{"card": "4111", "Card": "4112", "pin": "123", "z": 1}]).rows.to_pylist()
    assert row == {"more": '{"z": 1}', "card": "4111"}


def test_required_fields_are_checked_only_inside_a_value_that_is_not_null() -> None:
    kind = "struct<a: int not null, l: list<struct<b: int not null>>>"
    fields = {"n": "long", "s": "struct<a: int, l: list<struct<b: int>>>"}
    values = [{"n": n, "s": s} for n, s in enumerate([None, {}, {"a": 1}, {"a": 2, "l": [None, {"b": 3}, {}]}])]
    values.append({"n": 4, "s": {"a": 5, "l": [{"b": 6}, None]}})
    found = transformed(stream("SELECT n, s FROM records", fields, schema={"n": "long", "s": kind}), values)
    whole = [None, {"a": 1, "l": None}, {"a": 5, "l": [{"b": 6}, None]}]
    assert [row["s"] for row in found.rows.to_pylist()] == whole
    assert found.record_indexes.tolist() == [0, 2, 4]
    assert [tuple(rejection) for rejection in found.rejections] == [
        (1, "MissingRequired", "s: a: required, and missing or null"),
        (3, "MissingRequired", "s: b: required, and missing or null"),
    ]


@pytest.mark.parametrize("sql", ["SELECT part.* FROM records", "SELECT records.* FROM records AS r"])
def test_a_star_over_anything_but_records_is_refused(sql: str) -> None:
    fields = {"n": "long", "part": "struct<a: int>"}
    assert ".* is not allowed; name each field" in refusal(sql, fields=fields, schema=fields)
    assert check_transform(stream("SELECT r.* FROM records AS r", fields, schema=fields))


def test_records_without_any_declared_field_are_counted_although_keys_have_fields() -> None:
    fields = {"n": "long", "k": "string"}
    spec = stream("SELECT n AS a FROM records", fields, source={"key": {"column": "k"}})
    drift = transformed(spec, [{"q": 1}, {"n": 1}]).drift
    assert (drift.unknown, drift.names) == (1, ("q",))
