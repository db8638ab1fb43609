"""Whatever a transform says, its rows are those of DuckDB run on the whole input at once, in any chunks.

The reference is DuckDB with its optimizer and the SELECT as written, over all records that did not fail. Each record
that failed must also fail there if it is alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import StageContext, TargetTable
from frazil.ingest.decode import DecodedChunk
from frazil.ingest.transform import create_transformed_decoder
from frazil.ingest.transform_check import check_transform
from frazil.spec.iceberg import records_schema
from frazil.spec.load import validate_stream

FIELDS = {"n": "long", "text": "string", "x": "double", "flag": "boolean", "sub": "struct<a: string, b: int>"}
FIELDS["tags"] = "list<string>"
LONGS = [
    "n",
    "n * 3037000500",
    "CAST(text AS BIGINT)",
    "n // sub.b",
    "length(text)",
    "CAST(x AS BIGINT)",
    "sub.b::BIGINT",
    "CASE WHEN flag THEN n ELSE CAST(sub.a AS BIGINT) END",
    "coalesce(n, CAST(text AS BIGINT))",
    "TRY_CAST(text AS BIGINT)",
    "list_sum([n % 7, 1])::BIGINT",
]
TEXTS = [
    "text",
    "upper(text) || sub.a",
    "CAST(n AS VARCHAR)",
    "sub.a",
    "nullif(text, '')",
    "text[1]",
    "CAST(x AS VARCHAR)",
    "json_extract_string('{\"a\": ' || text || '}', '$.a')",
    "regexp_replace(text, '[0-9]', 'd')",
    "split_part(text, '1', 1)",
    "CASE n WHEN 1 THEN 'one' WHEN 2 THEN text END",
    "CAST(CAST(text AS DATE) AS VARCHAR)",
    "unnest(tags)",
    "CAST(CAST(unnest(tags) AS BIGINT) + n AS VARCHAR)",
    "array_to_string(list_transform(tags, lambda t: t || coalesce(text, '')), ',')",
    "lpad(text, 2 + 3, repeat('b', 10))",
    "replace(text, '1', chr(10))",
]
CONDITIONS = [
    "n > 1",
    "text <> ''",
    "CAST(text AS INTEGER) < 5",
    "flag",
    "x IS NOT NULL",
    "sub.b BETWEEN 0 AND 2",
    "n IN (1, 2, 3)",
    "text LIKE '1%'",
    "NOT flag",
    "(flag OR n = 2)",
    "12 // sub.b > 3",
]
records = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.none(), st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1)),
        "text": st.one_of(st.none(), st.sampled_from(["", "1", "17", "x1", "2024-02-29", "{}", "[1", "ß", "9" * 30])),
        "x": st.one_of(st.none(), st.floats(width=64)),
        "flag": st.one_of(st.none(), st.booleans()),
        "sub": st.one_of(
            st.none(),
            st.fixed_dictionaries({}, optional={"a": st.sampled_from(["", "5", "a"]), "b": st.integers(-1, 3)}),
        ),
        "tags": st.one_of(st.none(), st.lists(st.sampled_from([None, "", "1", "x", "ß"]), max_size=3)),
    },
)
selects = st.builds(
    lambda long, text, where: (
        f"SELECT {long} AS a, {text} AS b FROM records{' WHERE ' * bool(where)}{' AND '.join(where)}"
    ),
    st.sampled_from(LONGS),
    st.sampled_from(TEXTS),
    st.lists(st.sampled_from(CONDITIONS), max_size=3),
)


def transformed(sql: str, **other: Any) -> Any:
    """A function that decodes and transforms a chunk."""
    spec = validate_stream(
        {
            "name": "s",
            "source": {"topics": ["t"], "bootstrap-servers": "broker:9092", "schema": FIELDS},
            "table": "a.b",
            "schema": {"a": "long", "b": "string"},
            "event-time": "kafka_timestamp",
            "transform": sql,
            **other,
        },
        Path("s.yaml"),
    )
    from frazil.spec.iceberg import table_schema

    table = Schema(*table_schema(spec).fields[:2])
    target = TargetTable(table.model_dump_json(), "", "", {}, "", 0)
    context = StageContext(
        "s", 1, 1, {}, "json", "kafka_timestamp", False, {"main": target}, {}, transform=check_transform(spec).transform
    )
    return create_transformed_decoder(context, table), records_schema(spec)


def reference(sql: str, fields: pa.Table) -> list[dict[str, Any]]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.register("records", fields)
        rows: list[dict[str, Any]] = connection.sql(sql).to_arrow_table().to_pylist()
        return rows


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return [repr(row) for row in rows]


@given(selects, st.lists(records, max_size=12), st.integers(1, 5))
def test_rows_equal_those_of_duckdb_on_the_whole_input(sql: str, values: list[dict[str, Any]], size: int) -> None:
    transform, _ = transformed(sql)
    chunk = RecordChunk.of_values([json.dumps(value).encode() for value in values])
    fields = transform._key_header_reader(transform._decode(chunk), chunk)
    parts: list[DecodedChunk] = [
        transform(chunk.slice(at, at + size)).with_indexes(np.arange(at, min(at + size, len(values))))
        for at in range(0, len(values), size)
    ]
    whole = transform(chunk)
    rows = [row for part in parts for row in part.rows.to_pylist()]
    assert comparable(rows) == comparable(whole.rows.to_pylist())
    kept = [i for part in parts for i in part.record_indexes.tolist()]
    failed = [r.index for part in parts for r in part.rejections]
    dropped = [i for part in parts for i in part.dropped.tolist()]
    assert sorted([*dict.fromkeys(kept), *failed, *dropped]) == list(range(len(values)))
    decoded = {r.index for r in transform._decode(chunk).rejections}
    sound = np.array([i not in failed for i in fields.record_indexes.tolist()], bool)
    assert comparable(reference(sql, fields.rows.filter(pa.array(sound)))) == comparable(rows)
    for place, index in enumerate(fields.record_indexes.tolist()):
        if index in failed and index not in decoded:
            with pytest.raises(duckdb.Error):
                reference(sql, fields.rows.slice(place, 1))
