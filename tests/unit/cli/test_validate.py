"""`frazil validate`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from frazil.cli.main import frazil

Declare = Callable[..., Path]


def test_validate_prints_a_line_for_each_valid_stream(declare: Declare, tmp_path: Path) -> None:
    declare(partition_by=["day(departed)"])
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "flights: flights -> demo.flights, partitioned by day(departed)\n")


def test_every_error_is_reported_and_the_exit_code_is_10(declare: Declare, tmp_path: Path) -> None:
    declare()
    declare("b.yaml", name="b", table="d.b", lateness="x", comit={})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 10
    assert "flights -> demo.flights" in result.stdout
    declare(
        "c.yaml",
        name="c",
        table="d.c",
        source={"topics": ["c"], "bootstrap-servers": "h:1", "properties": {"no.such": "1"}},
    )
    later = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert "no.such" in later.stderr
    assert "d.c" not in later.stdout, "it is no valid stream"
    assert len(result.stderr.splitlines()) == 2


def test_a_column_of_an_unknown_type_hides_no_wrong_type_of_a_transform(declare: Declare, tmp_path: Path) -> None:
    source = {"topics": ["c"], "bootstrap-servers": "h:1", "schema": {"id": "int", "ts": "timestamptz"}}
    columns = {"id": "lon", "n": "int", "ts": "timestamptz"}
    sql = "SELECT id, id + ts AS n, id AS ts, 1 AS more FROM records"
    declare(source=source, schema=columns, transform=sql, event_time="ts", partition_by=None)
    found = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)]).stderr.splitlines()
    assert len(found) == 4, found
    assert "schema.id.type: has 'lon'" in found[0]
    assert "transform: the column n: Binder Error" in found[1]
    assert "the column ts is int in the SELECT, but timestamptz in schema" in found[2]
    assert "the column more of the SELECT is not a column of schema (int)" in found[3]


def test_a_schema_that_is_no_mapping_causes_no_problems_of_the_transform(declare: Declare, tmp_path: Path) -> None:
    declare(schema=5, transform="SELECT id FROM records")
    found = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert ("schema: 5 is not a mapping" in found.stderr, "transform" in found.stderr) == (True, False)


@pytest.mark.parametrize(
    "mistake",
    [
        {"source": {"topics": ["c"], "bootstrap-server": "h:1"}},
        {"sensitive": {"foo": 1}},
        {"sensitive": {"fields": {"id": {}}}},
        {"route": {"by": "field", "tabels": {}}},
        {"order-by": ["ts"]},
        {"coordinates": "maybe"},
        {"event-time": "tss"},
        {"event-time": {"colum": "ts"}},
        {"dead-letters": {"circuit": {"shar": 3}}},
        {"schema": {"id": "lon", "ts": "timestamptz"}},
    ],
    ids=str,
)
def test_mistakes_of_other_parts_hide_neither_a_missing_key_nor_those_of_a_transform(
    mistake: dict[str, object], declare: Declare, tmp_path: Path
) -> None:
    source = {"topics": ["c"], "bootstrap-servers": "h:1"}
    whole = {"schema": {"id": "long", "ts": "timestamptz"}, "event-time": "ts", "mode": "upsert", "source": source}
    declare(**{**whole, "transform": "SELECT idd AS id, ts FROM records LIMIT 3", **mistake})
    found = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert found.exit_code == 10
    assert "key: is missing; mode: upsert needs the columns" in found.stderr
    assert "transform: LIMIT is not allowed" in found.stderr
    assert "transform: the column id: idd is not a field of records" in found.stderr
    assert len(found.stderr.splitlines()) >= 4


def test_a_type_that_only_an_existing_table_may_have_is_a_warning(declare: Declare, tmp_path: Path) -> None:
    declare(schema={"departed": "timestamptz not null", "open": "struct<at: list<time>>"})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: ")
    assert "schema.open.at.element: 'time': Spark cannot read a table with a time column" in line
    answer = json.loads(CliRunner().invoke(frazil, ["validate", "--json", "--streams", str(tmp_path)]).stdout)
    assert len(answer["warnings"]) == 1
    declare(schema={"departed": "timestamptz not null", "_File": "string"})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert "schema._File: 'string': has the name of one of Iceberg's metadata columns" in line


def test_readers_of_format_version_3_are_named_before_the_table_is_made(declare: Declare, tmp_path: Path) -> None:
    declare(table={"identifier": "demo.rides", "properties": {"format-version": 3}})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 0
    assert (
        "table.properties.format-version: '3': only a new table gets version 3, which fewer engines read"
        in result.stderr
    )


def test_validate_reports_declarations_that_the_writer_would_refuse_at_its_start(
    declare: Declare, tmp_path: Path
) -> None:
    maps = {"a": "map<int, string>", "b": "struct<c: list<map<date, map<uuid, int>>>>", "d": "map<string, int>"}
    declare(schema={"departed": "timestamptz not null", **maps})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 10
    (line,) = result.stderr.splitlines()
    assert "flights.yaml: schema.a: keys of format json are strings, so the map's key must be string, not int" in line
    assert "schema.b.c.element: " in line
    assert "schema.b.c.element.value: " in line
    assert "schema.d" not in line


def test_a_default_that_does_not_fit_its_column_is_an_error(declare: Declare, tmp_path: Path) -> None:
    at = {"type": "timestamptz", "unit": "ms", "default": 10**15}
    columns = {"a": {"type": "date", "default": "yesterday"}, "b": {"type": "int", "default": 2**31}, "at": at}
    declare(schema={"departed": "timestamptz not null", **columns, "ok": {"type": "date", "default": "2026-01-01"}})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 10
    assert [line.partition("flights.yaml: ")[2] for line in result.stderr.splitlines()] == [
        "schema.a.default: a: 'yesterday' is not a valid date",
        "schema.b.default: b: the number 2147483648 is too big for int",
    ]


@pytest.mark.parametrize(
    ("default", "error"),
    [
        ("none", "'none' is not JSON; write JSON, such as '{}' or '\"none\"'"),
        ('{"a": 1, "a": 2}', "has an object with the same field twice, which a variant cannot store"),
        ("1e400", "has a number that is too large for a double"),
        ('{"a": 1}', ""),
    ],
)
def test_a_default_that_no_variant_can_store_is_an_error(
    declare: Declare, tmp_path: Path, default: str, error: str
) -> None:
    schema = {"departed": "timestamptz not null", "a": {"type": "variant", "default": default}}
    declare(schema=schema, table={"identifier": "d.a", "properties": {"format-version": 3}})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    errors = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert [line.partition("flights.yaml: ")[2] for line in errors] == ([f"schema.a.default: {error}"] if error else [])


def test_the_columns_of_a_transform_are_shown_with_their_types(declare: Declare, tmp_path: Path) -> None:
    declare(
        schema={"departed": "timestamptz not null", "a": "variant", "b": "decimal(9, 2)"},
        source={"topics": ["t"], "bootstrap-servers": "h:1", "schema": {"departed": "timestamptz", "n": "long"}},
        table={"identifier": "d.a", "properties": {"format-version": 3}},
        transform="SELECT to_json(n) AS a, CAST(n AS DECIMAL(9, 2)) AS b, departed FROM records",
    )
    types = {"a": "variant", "b": "decimal(9, 2)", "departed": "timestamptz"}
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    shown = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    assert result.stdout.endswith(f", transform produces {shown}\n")
    answer = json.loads(CliRunner().invoke(frazil, ["validate", "--json", "--streams", str(tmp_path)]).stdout)
    assert answer["streams"][0]["transform"] == types


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("|\n  SELECT é, n FROM\n  records a b\n", "line 2, column 11 of the SELECT: .*: `records a b`"),
        ("|  # one row\n\n    SELECT é,\n      n n n\n    FROM records\n", "line 3, column 7 of the .*: `n n n`"),
        ("'SELECT é, ''x'' n n FROM records'\n", "line 1, column 17 of the SELECT"),
    ],
)
def test_a_syntax_error_is_shown_with_its_line_of_the_select(
    declare: Declare, tmp_path: Path, written: str, place: str
) -> None:
    file = declare(source={"topics": ["t"], "bootstrap-servers": "h:1", "schema": {"departed": "timestamptz"}})
    file.write_text(f"transform: {written}{file.read_text()}")
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 10
    (error,) = result.stderr.splitlines()
    assert re.search(place, error), error


def test_named_files_are_checked_against_each_other(declare: Declare) -> None:
    files = [declare("a.yaml"), declare("b.yaml")]
    result = CliRunner().invoke(frazil, ["validate", *map(str, files)])
    assert result.exit_code == 10
    assert "rename one" in result.stderr


def test_validate_of_one_file_checks_it_against_the_other_files_of_its_folder(declare: Declare) -> None:
    declare("b.yaml")
    result = CliRunner().invoke(frazil, ["validate", str(declare("a.yaml"))])
    assert result.exit_code == 10
    assert result.stderr.count("rename one") == 1
    assert "a.yaml: name" in result.stderr


def test_validate_of_one_file_ignores_errors_and_conflicts_of_other_files(declare: Declare) -> None:
    declare("b.yaml")
    declare("c.yaml")
    declare("d.yaml", name="d", lateness="x")
    result = CliRunner().invoke(frazil, ["validate", str(declare("a.yaml", name="a", table="demo.a"))])
    assert (result.exit_code, result.stderr) == (0, "")


def test_json_holds_streams_and_errors(declare: Declare) -> None:
    files = [declare("a.yaml"), declare("b.yaml", name="b", lateness="x")]
    result = CliRunner().invoke(frazil, ["validate", "--json", *map(str, files)])
    answer = json.loads(result.stdout)
    assert answer["streams"][0]["dead-letters"] == "demo.flights_dead_letters"
    assert "b.yaml: lateness" in answer["errors"][0]


def test_a_folder_without_streams_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert "declares no stream" in str(result.exception)
    missing = tmp_path / "missing"
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(missing)])
    assert f"the folder {missing} does not exist" in str(result.exception)


def test_the_json_schema_is_printed() -> None:
    result = CliRunner().invoke(frazil, ["validate", "--json-schema"])
    assert json.loads(result.stdout)["title"] == "A frazil stream"


def test_a_catalog_that_cannot_commit_to_several_tables_at_once_is_an_error(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(commit={"atomic": True})
    assert CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)]).exit_code == 0
    monkeypatch.setenv("PYICEBERG_CATALOG__GLUE__TYPE", "glue")
    declare(commit={"atomic": True}, table={"identifier": "demo.flights", "catalog": "glue"})
    result = CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)])
    assert result.exit_code == 10
    assert "flights.yaml: commit.atomic: the catalog 'glue' is of type 'glue', which changes one table" in result.stderr
    declare(commit={"atomic": True}, table={"identifier": "demo.flights", "catalog": "elsewhere"})
    assert CliRunner().invoke(frazil, ["validate", "--streams", str(tmp_path)]).exit_code == 0, "not configured here"
