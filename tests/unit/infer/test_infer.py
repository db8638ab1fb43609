"""The declaration proposed for a topic: valid YAML that accepts the sampled records."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from demo.flights import messages, read_flights
from frazil.cli.main import frazil
from frazil.errors import SpecError
from frazil.infer.encoding import find_encoding
from frazil.infer.proposal import StreamNames, decode_sample, propose_declaration
from frazil.infer.sample import Sample, SampledRecord
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.formats import check_supported, create_decoder
from frazil.ingest.key_header_columns import value_schema
from frazil.spec.formats import dump_format
from frazil.spec.iceberg import table_schema
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec

NOW_MS = 1_790_000_000_000


def sample(
    values: Iterable[bytes | None], *, step_ms: int = 1000, in_topic: int | None = None, **record: Any
) -> Sample:
    records = tuple(SampledRecord(v, timestamp_ms=NOW_MS + i * step_ms, **record) for i, v in enumerate(values))
    return Sample("t", records, len(records) if in_topic is None else in_topic)


def proposed(of: Sample) -> tuple[str, StreamSpec]:
    text = propose_declaration(of, StreamNames("t", "demo.t", "127.0.0.1:9092"))
    return text, validate_stream(yaml.safe_load(text), Path("t.yaml"))


def rejected(spec: StreamSpec, of: Sample) -> list[str]:
    """Return why the stream rejects some of the sample's records."""
    whole = table_schema(spec)
    check_supported(whole, spec.source.format)
    filled = value_schema(record_schema(whole, spec.coordinates), spec.key_header_columns)
    units = {whole.find_field(name).field_id: unit for name, unit in spec.units.items()}
    values = [record.value for record in of.records]
    return [
        r.error
        for r in create_decoder(dump_format(spec.value_format), filled, units)(RecordChunk.of_values(values)).rejections
    ]


def types(spec: StreamSpec) -> dict[str, str]:
    return {c.name: f"{c.type}{' not null' if c.required else ''}" for c in spec.columns}


def test_an_invalid_infer_option_is_reported_without_naming_a_file_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("frazil.infer.sample.read_sample", lambda *_, **__: sample([b'{"id": 1}']))
    options = ["--streams", str(tmp_path), "--bootstrap-servers", "k:9092", "--table", "bad"]
    refused = CliRunner().invoke(frazil, ["infer", "orders", *options])
    assert (refused.stdout, str(refused.exception)) == (
        "",
        "frazil infer: table.identifier: 'bad' is not a table identifier; write namespace.table, such as demo.flights",
    )


def test_the_flights_are_proposed_as_the_demo_declares_them() -> None:
    values = [message.value for message in messages(read_flights().slice(0, 1500))]
    of = sample(values, step_ms=60_000, in_topic=336_776)
    text, spec = proposed(of)
    declared = {c.name: (c.type, c.required) for c in spec.columns}
    assert declared["scheduled_departure"] == ("timestamptz", True)
    assert declared["carrier"] == ("string", True)
    assert declared["tailnum"] == ("string", False)
    assert declared["dep_delay"] == ("long", False)
    assert declared["cancelled"] == ("boolean", True)
    assert spec.event_time.column == "scheduled_departure"
    assert spec.event_time_partitions == ("day",)
    assert spec.sort_by[-1].startswith("scheduled_departure")
    assert rejected(spec, of) == []
    assert "absent in" in text


def test_infer_proposes_the_unit_of_a_time_and_hourly_partitions_for_a_large_topic() -> None:
    values = [
        json.dumps(
            {"symbol": f"S{i % 50}", "price": i / 7, "size": i, "ts": NOW_MS + 1000 * i, "id": 2**40 + i}
        ).encode()
        for i in range(500)
    ]
    of = sample(values, in_topic=2_000_000)
    text, spec = proposed(of)
    assert types(spec) == {
        "symbol": "string not null",
        "price": "double not null",
        "size": "long not null",
        "ts": "timestamptz not null",
        "id": "long not null",
    }
    assert spec.units == {"ts": "ms"}
    assert spec.event_time.column == "ts"
    assert spec.event_time_partitions == ("hour",)
    assert [term.split()[0] for term in spec.sort_by] == ["symbol", "ts"]
    assert rejected(spec, of) == []
    assert "records a day" in text
    assert "files a day" in text


def test_nested_records_become_structs_lists_and_maps() -> None:
    values = [
        json.dumps(
            {
                "meta": {"id": i, "at": "2026-01-01T00:00:00Z", "odd.name": 1},
                "tags": ["a", "b"][: i % 3],
                "points": [{"x": 1, "y": 1.5}],
                "by_user": {f"user{i}-{j}": j for j in range(3)},
                "created": "2026-01-01T00:00:00+01:00",
                "day": "2026-01-01",
                "amount": "12.50",
                "void": None,
                "a.b": 1,
                "Tags": 1,
                "kafka_offset": 1,
                "_pos": 1,
                "on": True,
                "two words": "x",
            }
        ).encode()
        for i in range(200)
    ]
    of = sample(values)
    text, spec = proposed(of)
    assert types(spec) == {
        "meta": "struct<id: long, at: timestamptz> not null",
        "tags": "list<string> not null",
        "points": "list<struct<x: long, y: double>> not null",
        "by_user": "map<string, long> not null",
        "created": "timestamptz not null",
        "day": "date not null",
        "amount": "decimal(10, 2) not null",
        "void": "string",
        "on": "boolean not null",
        "two words": "string not null",
        "a_b": "long not null",
        "rest": "string",
    }
    assert spec.rest == "rest"
    assert rejected(spec, of) == []
    for remark in (
        'leaves out "odd.name"',
        "Tags: has the same name as tags, because engines ignore case and replace special characters",
        "kafka_offset: frazil adds a column with this name",
        "_pos: has the name of one of Iceberg's metadata columns",
        "only null was seen",
    ):
        assert remark in text


def test_infer_marks_no_field_as_required_after_one_record() -> None:
    of = sample([b'{"a": 1, "at": "2026-01-01T00:00:00Z"}'])
    text, spec = proposed(of)
    assert types(spec) == {"a": "long", "at": "timestamptz"}
    assert "is unknown" in text
    assert rejected(spec, of) == []


@pytest.mark.parametrize("values", [[], [None, None], [b""]])
def test_a_topic_without_values_is_refused(values: list[bytes | None]) -> None:
    with pytest.raises(SpecError, match="t has no record with a value to infer from"):
        proposed(sample(values))


def test_garbage_is_kept_as_bytes() -> None:
    made = random.Random(1)
    of = sample([b"\xff" + made.randbytes(40) for _ in range(50)])
    _, spec = proposed(of)
    assert (spec.source.format.type, types(spec)) == ("bytes", {"value": "binary"})
    assert spec.event_time.column == "kafka_timestamp"
    assert rejected(spec, of) == []


def test_infer_proposes_string_for_plain_text_and_csv_for_delimited_lines() -> None:
    of = sample([b"GET /index.html", b"POST /orders"] * 10)
    assert proposed(of)[1].source.format.type == "string"
    assert rejected(proposed(of)[1], of) == []
    lines = sample([f"{i};a b;{i / 2};2026-01-01T00:00:{i % 60:02}Z".encode() for i in range(150)])
    _, spec = proposed(lines)
    assert types(spec) == {
        "c1": "long not null",
        "c2": "string not null",
        "c3": "double not null",
        "c4": "timestamptz not null",
    }
    assert spec.event_time.column == "c4"
    assert rejected(spec, lines) == []


def test_several_objects_in_a_record_are_lines_of_json() -> None:
    of = sample([b'{"a": 1}\n{"a": 2, "b": "x"}\n'] * 30 + [b'{"a": 3}'] * 10 + [b"{"])
    text, spec = proposed(of)
    assert dump_format(spec.source.format) == {"type": "json", "lines": True}
    assert types(spec) == {"a": "long", "b": "string"}
    assert "1 of these 41 would be dead letters: InvalidJson 1." in text
    assert len(rejected(spec, of)) == 1


def test_infer_recognises_json_after_a_schema_id_and_refuses_other_framed_values() -> None:
    framed = sample([b"\0\0\0\0\7" + b'{"a": 1}'] * 10)
    assert dump_format(proposed(framed)[1].source.format) == {"type": "json", "framing": "confluent"}
    assert rejected(proposed(framed)[1], framed) == []
    with pytest.raises(SpecError, match=r"schema id \(7\).*registry"):
        proposed(sample([b"\0\0\0\0\7\x02\x06abc"] * 10))


@pytest.mark.parametrize("nested", ['{"a":' * 800 + "1" + "}" * 800, '{"a": ' + "[" * 800 + "]" * 800 + "}"])
def test_infer_proposes_a_valid_declaration_for_endlessly_nested_values(nested: str) -> None:
    _, spec = proposed(sample([nested.encode()] * 3))
    check_supported(table_schema(spec), spec.source.format)


def test_infer_counts_values_that_do_not_fit_the_proposed_type() -> None:
    values = [b'{"a": 1}'] * 90 + [b'{"a": "x"}'] * 6 + [b"nonsense"] * 3 + [None]
    text, spec = proposed(sample(values))
    assert types(spec) == {"a": "long"}
    assert "6 of 96 values have a different type" in text
    assert "10 of these 100 would be dead letters: TypeMismatch 6, NotAnObject 3, Tombstone 1." in text
    assert len(rejected(spec, sample(values))) == 10


@pytest.mark.parametrize(
    ("values", "remarks", "rejected_by"),
    [
        ([b'{"o": {"a": [1, 2, {"b": null}]}}'], ["o: {type: string, as: json}"], ""),
        ([b'{"a": {}, "o": {"x": null, "l": []}}'], ["only empty objects", "x: only null", "l: only empty lists"], ""),
        ([b"some words"] * 120 + [b"\xff"] * 3 + [None], [], "InvalidUtf8 3, MissingRequired 1"),
        ([b"a,1"] * 30 + [b"a,x"] * 20 + [b"one"] * 2, ["c2: string", "20 of 50 values"], "WrongFieldCount 2"),
    ],
)
def test_infer_explains_the_basis_of_each_type_and_which_records_would_be_dead_letters(
    values: list[bytes | None], remarks: list[str], rejected_by: str
) -> None:
    of = sample(values)
    text, spec = proposed(of)
    assert [remark for remark in remarks if remark not in text] == []
    assert ("would be dead letters" in text) == bool(rejected_by)
    assert rejected_by in text
    assert sum(int(part.split()[1]) for part in filter(None, rejected_by.split(", "))) == len(rejected(spec, of))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([1, "a"], "x: {type: string, as: json}"),
        ([[170, "buy"], [171, "sell"]], "x: {type: string, as: json}"),
        ([{f"k{i}": i} for i in range(40)] + [{"k1": "a"}], "x: {type: string, as: json}"),
        ([{f"k{i}": i} for i in range(40)], 'x: "map<string, long>"'),
        ([{"a": 1, "b": [1, "x"]}], 'x: {type: "struct<a: long, b: string>", as: {b: json}}'),
        ([{"b": [1, "x"]}], "x: {type: string, as: json}"),
        (
            [[{"a": 1, "b": 2}, {"a": 2, "b": "c"}]],
            'x: {type: "list<struct<a: long, b: string>>", as: {"element.b": json}}',
        ),
        (
            [{"b": [1, "x"], "d": {"e f": 1}}, {"d": {"e f": "x", "g": 1}}],
            'x: {type: "struct<b: string, d: struct<e f: string, g: long>>", as: {b: json, "d.e f": json}}',
        ),
        (
            [{f"k{i}": {"a": 1, "b": [1, "x"]}} for i in range(40)],
            'x: {type: "map<string, struct<a: long, b: string>>", as: {"value.b": json}}',
        ),
        ([["a"]] * 81 + [["a", 1]] * 9, "x: {type: string, as: json}"),
        ([["a"] * 20 + [1]] * 5, "x: {type: string, as: json}"),
        ([[{"a": 1}] * 20 + [{"a": "b"}]] * 5, "x: {type: string, as: json}"),
        ([float("nan")], "x: double"),
        ([1.5, 2, float("nan")], "x: double"),
        ([1] * 40 + ["a"], "x: long"),
        ([1] * 40 + [float("nan")], "x: long"),
    ],
)
def test_values_of_several_types_stay_json_instead_of_dead_letters(values: list[Any], line: str) -> None:
    text, spec = proposed(of := sample([json.dumps({"x": value}).encode() for value in values]))
    assert line in text
    assert bool(re.search(r"values of several types.*, stored as JSON text", text)) == (
        "json" in line and "map<" not in line
    )
    assert ("have a different type" in text) == (line[-4:] == "long")
    assert len(rejected(spec, of)) == (line[-4:] == "long")


EPOCH_MS = 1_767_259_800_123


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("x", [7, "8"], "{type: long, cast: lenient}"),
        ("x", [7, "8"] * 60, "{type: long, required: true, cast: lenient}"),
        ("x", [2**40, "-8"], "{type: long, cast: lenient}"),
        ("x", [1.5, "2", "2.25e3"], "{type: double, cast: lenient}"),
        ("x", [True, "false", "TRUE"], "{type: boolean, cast: lenient}"),
        ("x", [True, 0, "1"], "{type: boolean, cast: lenient}"),
        ("x", [7] * 40 + ["8"], "{type: long, cast: lenient}"),
        ("x", [7] * 40 + [1e3], "{type: long, cast: lenient}"),
        ("x", [7] * 40 + [1.5], "double"),
        ("sent_at", [str(EPOCH_MS)], "{type: timestamptz, unit: ms, cast: lenient}"),
        ("sent_at", [EPOCH_MS, str(EPOCH_MS)], "{type: timestamptz, unit: ms, cast: lenient}"),
        ("sent_at", [EPOCH_MS, "2026-01-01T09:30:00.5Z"], "{type: timestamptz, unit: ms, cast: lenient}"),
        ("sent_at", [EPOCH_MS // 1000, "2026-01-01 09:30"], "{type: timestamptz, unit: s, cast: lenient}"),
        ("sent_at", [EPOCH_MS, "2026-01-01T09:30:00.123456Z"], "{type: string, as: json}"),
        ("sent_at", [EPOCH_MS, "9999-99-99T99:99:99Z"], "{type: string, as: json}"),
        ("sent_at", [EPOCH_MS, "soon"], "{type: string, as: json}"),
        ("x", [7, "08"], "{type: string, as: json}"),
        ("x", [7, "1_0"], "{type: string, as: json}"),
        ("x", [7, ""], "{type: string, as: json}"),
        ("x", [7, True], "{type: string, as: json}"),
        ("x", [1.5, "1e400"], "{type: string, as: json}"),
        ("x", [2, True], "{type: string, as: json}"),
        ("x", ["7", "8"], "string"),
        ("x", [str(EPOCH_MS)], "string"),
        ("x", ["1.50", "2.25"], '"decimal(9, 2)"'),
        ("x", [*(f"1234567890123456{n}.25" for n in range(19)), 1.25], '"decimal(26, 2)"'),
    ],
)
def test_values_of_one_type_in_several_forms_are_cast(name: str, values: list[Any], line: str) -> None:
    of = sample([json.dumps({name: value}).encode() for value in values], step_ms=1)
    text, spec = proposed(replace(of, records=tuple(replace(r, timestamp_ms=-1) for r in of.records)))
    assert f"  {name}: {line}" in [shown.partition("    #")[0] for shown in text.splitlines()]
    assert rejected(spec, of) == []


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            [*range(100), 1.5, 2.5],
            "double    # 2 of 102 values are not whole, such as 1.5; long would reject them",
        ),
        ([*range(5), 1.5], "double"),
        ([*range(20), "a"], "long    # 1 of 21 values have a different type: 1 string"),
        (
            [1, 2, "a"],
            "{type: string, as: json}    # values of several types (2 integers, 1 string), stored as JSON text",
        ),
        (
            ["2026-01-01"] * 600 + ["0000-00-00"],
            'date    # 1 of 601 texts do not fit, such as "0000-00-00"; string would accept all',
        ),
        (
            ["2026-01-01 10:00:00"] * 98 + ["n/a", "soon"],
            'string    # 2 of 100 texts do not fit, such as "n/a"; timestamp would reject them',
        ),
        (["2026-01-01"] * 8 + ["soon"] * 2, "string"),
    ],
)
def test_the_minority_that_a_proposal_rests_on_or_leaves_out_is_named(values: list[Any], line: str) -> None:
    text, _ = proposed(sample([json.dumps({"x": value}).encode() for value in values]))
    assert f"  x: {line}" in [shown.replace(" not null", "") for shown in text.splitlines()]


def test_each_field_whose_values_would_be_dead_letters_is_named_with_its_first_error() -> None:
    values = [{"a": n, "b": n} for n in range(100)] + [{"a": "x", "b": 1}] * 2 + [{"a": 1, "b": "y"}] * 3
    text, _ = proposed(sample([json.dumps(value).encode() for value in values]))
    shown = [line for line in text.splitlines() if line.startswith("#   ")]
    assert [line.partition(", got")[0] for line in shown] == [
        "#   TypeMismatch 3: b: expected a whole number (long)",
        "#   TypeMismatch 2: a: expected a whole number (long)",
    ]


def test_a_single_invalid_time_does_not_turn_a_time_column_into_json() -> None:
    values = [EPOCH_MS, "2026-01-01T09:30:00.5Z"] * 10 + ["soon"]
    text, spec = proposed(of := sample([json.dumps({"sent_at": value}).encode() for value in values]))
    assert "  sent_at: {type: timestamptz, unit: ms, cast: lenient}" in text
    assert "1 of these 21 would be dead letters: TypeMismatch 1.\n#   TypeMismatch 1: sent_at: " in text
    assert len(rejected(spec, of)) == 1


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"user.id": 7}, [r"user_id: {type: long, from: 'user\.id'}"]),
        (
            {"geo.lat": 1.5, "geo": {"lat": 2.5}},
            [r"geo_lat: {type: double, from: 'geo\.lat'}", 'geo: "struct<lat: double>"'],
        ),
        ({"geo": {"lat": 2.5, "x-y": "z"}}, ['geo: "struct<lat: double, x-y: string>"']),
        ({"geo": {"lat": 2.5, "two words": 1, "é": 1}}, ['geo: "struct<lat: double, two words: long, é: long>"']),
    ],
)
def test_every_name_that_a_column_or_struct_can_have_is_proposed(value: dict[str, Any], lines: list[str]) -> None:
    text, spec = proposed(of := sample([json.dumps(value).encode()] * 3))
    assert [line for line in lines if f"  {line}\n" not in text] == []
    assert spec.rest is None
    assert rejected(spec, of) == []


def test_fields_that_no_column_takes_are_kept_in_rest() -> None:
    value = {"a": {"b": 1, "c.d": 2, "e<": 3}, "A": 1, "rest": 5}
    text, spec = proposed(of := sample([json.dumps(value).encode()] * 3))
    assert 'a: "struct<b: long>"    # leaves out "c.d", "e<"' in text
    assert "rest: rest_2    # keeps the fields that no column takes, as JSON\n" in text
    assert types(spec) == {"a": "struct<b: long>", "rest": "long", "rest_2": "string"}
    rows = decode_sample(yaml.safe_load(text), of).rows.column("rest_2").to_pylist()
    assert json.loads(rows[0]) == {"a": {"c.d": 2, "e<": 3}, "A": 1}


def test_a_field_with_a_dot_becomes_a_column_of_another_name() -> None:
    values = [{"evt.kind": "a", "evt_kind": 1, "evt.at[0]": "2026-01-01T00:00:00Z", "x.n": n} for n in (7, "8")]
    text, spec = proposed(of := sample([json.dumps(value).encode() for value in values]))
    assert r"  evt_kind_2: {type: string, from: 'evt\.kind'}" in text
    assert r"  x_n: {type: long, cast: lenient, from: 'x\.n'}" in text
    assert r"  evt_at_0_: {type: timestamptz, from: 'evt\.at\[0\]'}" in text
    assert spec.event_time.column == "evt_at_0_"
    assert rejected(spec, of) == []


@pytest.mark.parametrize(
    ("texts", "odd", "declared", "said"),
    [
        (["2026-01-01T00:00:00Z"] * 600, "soon", "timestamptz", '1 of 601 texts do not fit, such as "soon"'),
        (["1.50"] * 600, "n/a", "decimal(9, 2)", '1 of 601 texts do not fit, such as "n/a"'),
        (["2026-01-01T00:00:00Z"] * 300, "soon", "string", '"soon"; timestamptz would reject them'),
        (["a"] * 600, "1.50", "string", ""),
    ],
)
def test_a_text_that_does_not_match_the_others_is_reported_and_does_not_change_the_type(
    texts: list[str], odd: str, declared: str, said: str
) -> None:
    records = [json.dumps({"x": text, "y": {"x": text}}).encode() for text in [*texts, odd]]
    text, spec = proposed(of := sample(records))
    assert str(table_schema(spec).find_type("x")) == declared
    line = next(line for line in text.splitlines() if line.startswith("  x:"))
    assert said in line
    decides = declared != "string"
    assert decides == ("string would accept all" in line)
    assert len(rejected(spec, of)) == (1 if decides else 0)
    assert ("1 of these 601 would be dead letters" in text) == decides


def test_a_column_with_values_of_mixed_types_is_not_proposed_as_sort_column() -> None:
    values = [b'{"s": "a%d"}' % (i % 5) for i in range(60)]
    assert proposed(sample(values))[1].sort_by[0].startswith("s ")
    mixed = sample([*values, *(b'{"s": %d}' % i for i in range(30))])
    assert not proposed(mixed)[1].sort_by[0].startswith("s ")


def test_keys_and_headers_are_reported() -> None:
    text, _ = proposed(sample([b'{"a": 1}'] * 4, key=b"k", headers=("trace",)))
    assert "100% of the records have a key" in text
    assert 'seen: "trace"' in text


def test_a_number_is_inferred_as_a_time_by_its_name_or_if_close_to_the_kafka_timestamp() -> None:
    old_ms = int((datetime(2005, 1, 1, tzinfo=UTC) + timedelta(hours=1)).timestamp() * 1000)
    of = sample(
        json.dumps({"created_at": old_ms, "number": old_ms, "when_s": old_ms // 1000}).encode() for _ in range(3)
    )
    _, spec = proposed(of)
    assert types(spec) == {"created_at": "timestamptz", "number": "long", "when_s": "timestamptz"}
    assert spec.units == {"created_at": "ms", "when_s": "s"}


@pytest.mark.parametrize("absurd", [0, -1, 7, 10**30, NOW_MS // 1000])
def test_a_few_absurd_times_are_reported_and_do_not_turn_a_time_into_a_number(absurd: int) -> None:
    times = [NOW_MS + n for n in range(38)]
    of = sample(json.dumps({"ts": ts, "of": ts}).encode() for ts in [*times, absurd, absurd])
    text, spec = proposed(of)
    assert types(spec) == {"ts": "timestamptz", "of": "timestamptz"}
    assert f"# 2 of 40 integers are not times of this century, such as {absurd}; a number column keeps them" in text
    assert spec.event_time.column == "ts"
    few = sample(json.dumps({"ts": ts}).encode() for ts in [*times[:8], absurd, absurd])
    assert types(proposed(few)[1])["ts"] != "timestamptz"


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "1.50", "9999-99-99T99:99:99Z", "0001-01-01"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(max_size=5) | st.sampled_from(["a", "A", "ts", "null", "no", "a b", "a: b", "#", "kafka_offset", "é"])


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=8))
@example(records=[{"\\": None, '"': 1}])
@example(records=[{"op": [], "source": {}}])
def test_whatever_objects_a_topic_has_the_proposal_is_valid(records: list[dict[str, Any]]) -> None:
    _, spec = proposed(sample(json.dumps(record).encode() for record in records))
    check_supported(table_schema(spec), spec.source.format)


@given(st.lists(st.binary(max_size=20) | st.text(max_size=10).map(str.encode), min_size=1, max_size=8))
def test_whatever_bytes_a_topic_has_the_proposal_is_valid_or_refused(values: list[bytes]) -> None:
    of = sample(values)
    try:
        find_encoding(of)
    except SpecError:
        return
    _, spec = proposed(of)
    check_supported(table_schema(spec), spec.source.format)


def test_kafka_connects_wrapping_is_named_and_taken_off() -> None:
    payloads = [{"id": i, "name": "a"} for i in range(50)]
    of = sample(json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode() for payload in payloads)
    text, spec = proposed(of)
    assert '  format: {"type": "json", "unwrap": "payload"}\n' in text
    assert "# Kafka Connect wraps these records in {schema, payload}: unwrap takes the columns from payload.\n" in text
    assert types(spec) == {"id": "long", "name": "string"}
    assert rejected(spec, of) == []
