"""The tables of a stream, in a real catalog."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IntegerType, NestedField, StringType, StructType, TimeType

from frazil.errors import SchemaIncompatible, SpecError
from frazil.pyiceberg_fixes import VariantType
from frazil.spec import iceberg
from frazil.spec.iceberg import FORMER_COLUMNS_PROPERTY
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.declared_tables import declared_table
from frazil.table.evolution import ACCEPTED_SCHEMA
from frazil.table.schema_update import undeclared_columns
from frazil.table.storage import open_store
from frazil.table.tables import (
    check_existing_tables,
    data_location,
    ensure_dead_letters,
    ensure_table,
    state_location,
)

Stream = Callable[..., StreamSpec]

COLUMNS = {"carrier": "string not null", "departed": "timestamptz not null", "delay": "int"}


def test_a_missing_table_is_made_as_declared(catalog: Catalog, stream: Stream) -> None:
    spec = stream(sort_by=["carrier", "delay desc"], table={"identifier": "a.b.c", "properties": {"x": "1"}})
    table = ensure_table(catalog, spec)
    assert table.schema().as_struct() == iceberg.table_schema(spec).as_struct()
    assert [(f.name, str(f.transform)) for f in table.spec().fields] == [("departed_day", "day")]
    assert [f.direction.value for f in table.sort_order().fields] == ["asc", "desc"]
    assert table.metadata.format_version == 2
    assert table.properties["x"] == "1"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    assert table.properties["write.parquet.format-version"] == "v2"


def test_dead_letters_are_written_in_a_format_that_every_reader_supports(catalog: Catalog, stream: Stream) -> None:
    assert "write.parquet.format-version" not in ensure_dead_letters(catalog, stream()).properties


def test_a_table_that_is_as_declared_is_left_alone(catalog: Catalog, stream: Stream) -> None:
    first = ensure_table(catalog, stream())
    assert ensure_table(catalog, stream()).metadata_location == first.metadata_location


def test_new_optional_columns_and_wider_types_come_in_one_update(catalog: Catalog, stream: Stream) -> None:
    narrow = COLUMNS | {"f": "float", "d": "decimal(9, 2)", "s": "struct<a: int>", "l": "list<int>"}
    before = ensure_table(catalog, stream(schema=narrow))
    wide = COLUMNS | {
        "delay": "long",
        "f": "double",
        "d": "decimal(12, 2)",
        "s": "struct<a: long, b: string>",
        "l": "list<long>",
        "new": {"type": "map<string, int>", "doc": "what is new"},
    }
    after = ensure_table(catalog, stream(schema=wide))
    assert {name: str(after.schema().find_type(name)) for name in ("delay", "f", "d", "s.a", "s.b", "l.element")} == {
        "delay": "long",
        "f": "double",
        "d": "decimal(12, 2)",
        "s.a": "long",
        "s.b": "string",
        "l.element": "long",
    }
    assert after.schema().find_field("new").doc == "what is new"
    assert not after.schema().find_field("new").required
    assert after.schema().schema_id == before.schema().schema_id + 1
    assert ensure_table(catalog, stream(schema=wide)).metadata_location == after.metadata_location


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"new": "int not null"}, ["column new", "int not null", "declare it without 'not null'"]),
        ({"delay": "string"}, ["column delay", "declared string", "int in the table"]),
        ({"delay": "int not null"}, ["column delay", "optional"]),
        ({"delay": "struct<a: int>"}, ["column delay", "struct", "int in the table"]),
    ],
)
def test_any_other_schema_difference_is_refused_with_column_types_and_remedies(
    catalog: Catalog, stream: Stream, changes: dict[str, str], reported: list[str]
) -> None:
    before = ensure_table(catalog, stream())
    with pytest.raises(SchemaIncompatible) as refused:
        ensure_table(catalog, stream(schema=COLUMNS | changes | {"harmless": "int"}))
    for words in ["stream flights", "demo.flights", *reported]:
        assert words in str(refused.value)
    assert before.refresh().schema() == before.schema(), "a refused evolution changes nothing"


def test_a_column_declared_without_not_null_becomes_optional_unless_it_is_an_identifier(
    catalog: Catalog, stream: Stream
) -> None:
    optional = {"carrier": "string", "at": "struct<gate: string>"}
    ensure_table(catalog, stream(schema=COLUMNS | {"at": "struct<gate: string not null>"}))
    table = ensure_table(catalog, stream(schema=COLUMNS | optional))
    required = [name for name in ("carrier", "at.gate", "departed") if table.schema().find_field(name).required]
    assert required == ["departed"]
    with table.update_schema() as update:
        update.set_identifier_fields("departed")
    with pytest.raises(SchemaIncompatible, match=r"column departed .* as identifier fields .*declare it 'not null'"):
        ensure_table(catalog, stream(schema=COLUMNS | optional | {"departed": "timestamptz"}))


def test_a_type_never_becomes_narrower(catalog: Catalog, stream: Stream) -> None:
    ensure_table(catalog, stream(schema=COLUMNS | {"delay": "long", "d": "decimal(9, 2)"}))
    with pytest.raises(SchemaIncompatible, match=r"column delay is declared int, but is long .*column d is declared"):
        ensure_table(catalog, stream(schema=COLUMNS | {"d": "decimal(8, 2)"}))


def test_a_required_column_that_is_not_declared_is_refused(catalog: Catalog, stream: Stream) -> None:
    ensure_table(catalog, stream(schema=COLUMNS | {"id": "long not null"}))
    with pytest.raises(SchemaIncompatible, match="column id is long not null in the table, but is not declared"):
        ensure_table(catalog, stream())


def test_columns_filled_without_a_declaration_are_reported_by_their_current_names(
    catalog: Catalog, stream: Stream
) -> None:
    table = ensure_table(catalog, stream(schema=COLUMNS | {"gate": "string"}))
    assert undeclared_columns(table, stream(schema=COLUMNS | {"gate": "string"})) == ()
    assert undeclared_columns(table, stream()) == ("gate: string",)
    with table.update_schema() as update:
        update.rename_column("delay", "late_by")
    delay = table.schema().find_field("late_by").field_id
    with table.transaction() as transaction:
        transaction.set_properties({FORMER_COLUMNS_PROPERTY: json.dumps({"delay": delay})})
    assert undeclared_columns(table, stream()) == ("gate: string",)


def test_new_fields_within_declared_columns_are_undeclared_too(catalog: Catalog, stream: Stream) -> None:
    declared = COLUMNS | {"home": "struct<zip: int>", "legs": "list<struct<a: int>>"}
    filled = {"gate": "string", "home": "struct<zip: int, at: struct<x: int>>", "legs": "list<struct<a: int, b: int>>"}
    table = ensure_table(catalog, stream(schema=declared | filled))
    undeclared = ("gate: string", "home.at: 'struct<x: int>'", "legs.element.b: int")
    assert set(undeclared_columns(table, stream(schema=declared))) == set(undeclared)
    with table.transaction() as change:
        change.set_properties({FORMER_COLUMNS_PROPERTY: json.dumps({"old": None})})
    assert set(undeclared_columns(table, stream(schema=declared))) == set(undeclared)


def test_an_optional_column_of_the_table_need_not_be_declared(catalog: Catalog, stream: Stream) -> None:
    table = ensure_table(catalog, stream(schema=COLUMNS | {"other": "long"}))
    assert ensure_table(catalog, stream()).metadata_location == table.metadata_location


def test_a_start_does_not_add_columns_that_other_programs_renamed_or_dropped(catalog: Catalog, stream: Stream) -> None:
    nested = COLUMNS | {"place": "struct<city: string, zip: int>"}
    table = ensure_table(catalog, stream(schema=nested))
    with table.update_schema() as update:
        update.rename_column("departed", "left_at").rename_column("kafka_offset", "position")
        update.rename_column(("place", "zip"), "code").delete_column("delay")
    before = table.refresh().schema()
    with pytest.raises(SchemaIncompatible) as refused:
        ensure_table(catalog, stream(schema=nested | {"harmless": "int"}))
    for words in (
        "column departed was renamed to left_at in the table; rename it back, declare left_at if",
        "column kafka_offset was renamed to position in the table; rename it back, or add a new",
        "column place.zip was renamed to place.code in the table",
        "column delay was dropped from the table; remove it from the declaration, or add it",
    ):
        assert words in str(refused.value)
    assert table.refresh().schema() == before

    with table.update_schema() as update:
        update.rename_column("left_at", "departed").rename_column("position", "kafka_offset")
        update.rename_column(("place", "code"), "zip").add_column("delay", IntegerType())
    assert ensure_table(catalog, stream(schema=nested)).schema() == table.refresh().schema()


def test_names_dropped_before_the_accepted_schema_can_be_used_again(catalog: Catalog, stream: Stream) -> None:
    table = ensure_table(catalog, stream())
    with table.update_schema() as update:
        update.delete_column("delay")
    with table.transaction() as change:
        change.set_properties({ACCEPTED_SCHEMA: str(table.refresh().schema().schema_id)})
    table = ensure_table(catalog, stream())
    assert "delay" in table.schema().column_names
    with table.update_schema() as update:
        update.delete_column("delay")
    with pytest.raises(SchemaIncompatible, match="column delay was dropped"):
        ensure_table(catalog, stream())


def test_dead_letters_are_not_written_to_a_table_with_a_renamed_column(catalog: Catalog, stream: Stream) -> None:
    table = ensure_dead_letters(catalog, stream())
    with table.update_schema() as update:
        update.rename_column("error_class", "kind").rename_column("stream", "whose")
    with pytest.raises(SchemaIncompatible) as refused:
        ensure_dead_letters(catalog, stream())
    for words in (
        "demo.flights_dead_letters",
        "column error_class was renamed to kind",
        "column stream was renamed to",
    ):
        assert words in str(refused.value)
    with table.update_schema() as update:
        update.delete_column("kind").add_column("error_class", StringType()).rename_column("whose", "stream")
    assert ensure_dead_letters(catalog, stream()).schema() == table.refresh().schema()


@pytest.mark.parametrize("kind", ["time", "struct<at: time>", "list<time>", "map<string, time>"])
def test_a_column_that_would_make_the_table_unreadable_is_refused(kind: str, catalog: Catalog, stream: Stream) -> None:
    with pytest.raises(SpecError, match=r"schema\.opens.*Spark cannot read a table with a time column.*write string"):
        ensure_table(catalog, stream(schema=COLUMNS | {"opens": kind}))
    assert not catalog.table_exists("demo.flights")
    before = ensure_table(catalog, stream())
    with pytest.raises(SpecError, match=r"schema\.opens"):
        ensure_table(catalog, stream(schema=COLUMNS | {"opens": kind}))
    assert before.refresh().schema().column_names == [*COLUMNS, *before.schema().column_names[len(COLUMNS) :]]


def test_a_declared_column_with_a_name_reserved_by_iceberg_is_refused(catalog: Catalog, stream: Stream) -> None:
    with pytest.raises(SpecError, match=r"schema\._row_id: .*one of Iceberg's metadata columns.*rename it"):
        ensure_table(catalog, stream(schema=COLUMNS | {"_row_id": "long"}))
    ensure_table(catalog, stream())
    with pytest.raises(SpecError, match=r"schema\._row_id"):
        ensure_table(catalog, stream(schema=COLUMNS | {"_row_id": "long"}))


def test_a_declared_column_named_like_a_partition_field_of_the_table_is_refused(
    catalog: Catalog, stream: Stream
) -> None:
    before = ensure_table(catalog, stream())
    with before.update_spec() as update:
        update.remove_field("departed_day")  # its former specs keep the name
    with pytest.raises(
        SchemaIncompatible, match=r"column departed_day has the name of a partition field.*another name"
    ):
        ensure_table(catalog, stream(schema=COLUMNS | {"departed_day": "int"}, partition_by=[]))
    assert "departed_day" not in before.refresh().schema().column_names


def test_a_table_that_already_has_a_time_column_remains_writable(catalog: Catalog, stream: Stream) -> None:
    table = ensure_table(catalog, stream())
    with table.update_schema() as update:
        update.add_column("opens", TimeType())
    assert "opens" in ensure_table(catalog, stream(schema=COLUMNS | {"opens": "time"})).schema().column_names


def test_a_table_of_format_version_1_is_refused_with_the_remedy(catalog: Catalog, stream: Stream) -> None:
    catalog.create_namespace("demo")
    catalog.create_table("demo.flights", iceberg.table_schema(stream()), properties={"format-version": "1"})
    with pytest.raises(SchemaIncompatible, match=r"format version 1.*upgrade it"):
        ensure_table(catalog, stream())


def test_a_table_gets_the_declared_format_version(catalog: Catalog, stream: Stream) -> None:
    table = {"identifier": "demo.flights", "properties": {"format-version": 3}}
    metadata = ensure_table(catalog, stream(table=table)).metadata
    assert (metadata.format_version, metadata.next_row_id) == (3, 0)  # type: ignore[union-attr]
    assert "format-version" not in metadata.properties
    assert ensure_dead_letters(catalog, stream(table=table)).metadata.format_version == 2


def test_an_existing_table_is_never_upgraded(
    catalog: Catalog, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_table(catalog, stream())
    with caplog.at_level(logging.WARNING):
        table = ensure_table(catalog, stream(table={"identifier": "demo.flights", "properties": {"format-version": 3}}))
    assert table.metadata.format_version == 2
    assert "the declared format version is [3], but table demo.flights has [2], which is not changed" in caplog.text


def test_a_variant_is_not_added_to_a_version_2_table_that_engines_could_no_longer_read(
    catalog: Catalog, stream: Stream
) -> None:
    before = ensure_table(catalog, stream()).metadata_location
    table = {"identifier": "demo.flights", "properties": {"format-version": 3}}
    with pytest.raises(SchemaIncompatible, match=r"column v is a variant, but .* has format version 2.*as: json"):
        ensure_table(catalog, stream(schema=COLUMNS | {"v": "variant"}, table=table))
    assert catalog.load_table("demo.flights").metadata_location == before


def test_a_variant_that_another_program_added_inside_a_struct_is_refused(catalog: Catalog, stream: Stream) -> None:
    spec = stream(table={"identifier": "demo.flights", "properties": {"format-version": 3}})
    with ensure_table(catalog, spec).update_schema() as update:
        update.add_column("s", StructType(NestedField(1, "v", VariantType(), required=False)))
    problem = re.escape(
        "demo.flights: the column s.v is a variant inside another type, which frazil cannot write. Drop "
    )
    for check in (lambda: ensure_table(catalog, spec), lambda: check_existing_tables(spec)):
        with pytest.raises(SchemaIncompatible, match=problem):
            check()


def test_a_table_upgraded_by_another_program_remains_writable(
    catalog: Catalog, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = Path(ensure_table(catalog, stream()).metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"format-version": 3, "next-row-id": 0}))
    with caplog.at_level(logging.WARNING):
        table = ensure_table(load_catalog(None), stream(schema=COLUMNS | {"gate": "string"}))
    assert table.metadata.format_version == 3
    assert "gate" in table.schema().column_names
    assert not caplog.text


def test_the_existing_table_layout_takes_precedence_with_a_warning(
    catalog: Catalog, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_table(catalog, stream())
    with caplog.at_level(logging.WARNING):
        table = ensure_table(catalog, stream(partition_by=["hour(departed)"], sort_by=["delay"]))
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert "the declared partitioning is [hour(departed)], but table demo.flights has [day(departed)]" in caplog.text
    assert "the declared sort order is [identity(delay) asc nulls-first], but table demo.flights has []" in caplog.text


def test_an_undeclared_required_column_needs_a_default_in_the_table(catalog: Catalog, stream: Stream) -> None:
    table = ensure_table(catalog, stream(table={"identifier": "demo.flights", "properties": {"format-version": "3"}}))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("gate", StringType(), required=True, default_value="none")
    assert ensure_table(catalog, stream()).schema().find_field("gate").required
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.set_default_value("gate", None)
    with pytest.raises(SchemaIncompatible, match="gate is string not null in the table, but is not declared"):
        ensure_table(catalog, stream())


def test_a_dropped_column_that_is_still_declared_is_reported(
    catalog: Catalog, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with ensure_table(catalog, stream()).transaction() as change:
        with change.update_schema() as update:
            update.delete_column("delay")
        change.set_properties({FORMER_COLUMNS_PROPERTY: json.dumps({"delay": None})})
    with caplog.at_level(logging.WARNING):
        table = ensure_table(catalog, stream())
    assert "delay" not in table.schema().column_names
    assert "the declared column delay was dropped from table demo.flights with `frazil evolve`" in caplog.text
    assert [*check_existing_tables(stream())] == [record.getMessage() for record in caplog.records]


def test_a_layout_that_is_not_declared_is_no_difference(
    catalog: Catalog, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_table(catalog, stream())
    with caplog.at_level(logging.WARNING):
        ensure_table(catalog, stream(partition_by=[]))
    assert caplog.text == ""


def test_dead_letters_have_a_table_of_their_own(catalog: Catalog, stream: Stream) -> None:
    table = ensure_dead_letters(catalog, stream())
    assert table.name() == ("demo", "flights_dead_letters")
    assert table.schema().as_struct() == iceberg.DEAD_LETTER_SCHEMA.as_struct()
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert ensure_dead_letters(catalog, stream()).metadata_location == table.metadata_location
    assert stream(dead_letters={"table": "ops.rejected"}).dead_letter_table == "ops.rejected"


def test_a_dead_letter_table_of_an_earlier_version_gets_the_headers_column(catalog: Catalog, stream: Stream) -> None:
    earlier = Schema(*(f for f in iceberg.DEAD_LETTER_SCHEMA.fields if f.name != "headers"))
    catalog.create_namespace_if_not_exists("demo")
    catalog.create_table("demo.flights_dead_letters", earlier)
    table = ensure_dead_letters(catalog, stream())
    assert table.schema().find_field("headers.element.value").field_type == BinaryType()
    assert not table.schema().find_field("headers").required
    assert ensure_dead_letters(catalog, stream()).metadata_location == table.metadata_location


def test_data_and_state_locations_follow_the_table_location(catalog: Catalog, stream: Stream, tmp_path: Path) -> None:
    table = ensure_table(catalog, stream(table={"identifier": "a.b", "location": f"file://{tmp_path}/t"}))
    assert data_location(table) == f"file://{tmp_path}/t/data"
    assert state_location(table, "flights") == f"file://{tmp_path}/t/_frazil/flights"
    moved = ensure_table(catalog, stream(table={"identifier": "a.c", "properties": {"write.data.path": "file:///d/"}}))
    assert data_location(moved) == "file:///d"


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("name", ["a b", "é", "p%20c", "p%c", "a;b", "a:b", "[a]{b}", "+&="])
def test_all_files_of_a_table_are_in_its_folder_whatever_its_name(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / name))
    table = ensure_table(load_catalog(None), stream(partition_by=[]))
    table.append(table.scan().to_arrow())
    open_store(table.location(), {}).put(f"{state_location(table, 'flights')}/one", b"1")

    files = {path for path in tmp_path.rglob("*") if path.is_file() and path.is_relative_to(tmp_path / name)}
    assert files == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.suffix for path in files} >= {".json", ".avro", ""}
    assert load_catalog(None).load_table("demo.flights").scan().count() == 0


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("sign", ["#", "?", "\t", "\n"])
def test_a_frazil_home_with_a_uri_delimiter_in_its_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / f"a{sign}b"))

    with pytest.raises(SpecError, match=r"FRAZIL_HOME .* has .* a folder without it"):
        load_catalog(None)

    assert [path.name for path in tmp_path.iterdir() if path.name != "empty"] == []


@pytest.mark.usefixtures("unconfigured")
def test_a_warehouse_path_that_would_be_truncated_at_a_delimiter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/a#b")

    with pytest.raises(SpecError, match="warehouse of the catalog 'lake' has '#'"):
        load_catalog("lake")


@pytest.mark.parametrize("place", ["location", "write.data.path", "write.metadata.path"])
def test_a_table_with_a_location_that_would_be_truncated_at_a_delimiter_is_refused(
    catalog: Catalog, stream: Stream, tmp_path: Path, place: str
) -> None:
    folder = f"file://{tmp_path}/a#b"
    catalog.create_namespace("demo")
    options = {"location": folder} if place == "location" else {"properties": {place: folder}}
    catalog.create_table("demo.flights", declared_table(stream()).schema, **options)

    with pytest.raises(SchemaIncompatible, match=f"demo.flights: {re.escape(place)} .*a#b' has '#'"):
        ensure_table(catalog, stream())
