"""Metadata that is neither parsed nor copied twice equals the catalog's metadata."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.table.catalogs import load_catalog
from frazil.table.faster_commits import MAX_CACHED_METADATA

ROW = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Catalog:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    found = load_catalog(None)
    found.create_namespace_if_not_exists("demo")
    return found


@pytest.fixture
def table(catalog: Catalog) -> Table:
    made = catalog.create_table("demo.t", ROW.schema)
    made.append(ROW)
    return made


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locations of the files that are parsed."""
    locations: list[str] = []
    parse: Callable[..., TableMetadata] = FromInputFile.table_metadata

    def watched(file: object, *rest: object) -> TableMetadata:
        locations.append(file.location)  # type: ignore[attr-defined]
        return parse(file, *rest)

    monkeypatch.setattr("pyiceberg.catalog.sql.FromInputFile.table_metadata", watched)
    return locations


def test_metadata_committed_by_this_process_is_never_parsed(catalog: Catalog, table: Table, parsed: list[str]):
    table.append(ROW)
    catalog.load_table("demo.t").append(ROW)
    assert parsed == []


def test_metadata_committed_by_another_process_is_parsed_once(catalog: Catalog, table: Table, parsed: list[str]):
    assert isinstance(catalog, SqlCatalog)
    load_catalog(None).load_table("demo.t").append(ROW)
    parsed.clear()
    seen = [catalog.load_table("demo.t") for _ in range(3)]
    assert parsed == [seen[0].metadata_location]
    assert {t.metadata_location for t in seen}.isdisjoint({table.metadata_location})
    assert len(seen[2].metadata.snapshots) == 2


def test_metadata_in_memory_is_that_of_its_file(catalog: Catalog, table: Table):
    for change in (
        lambda: table.append(ROW),
        lambda: table.transaction().set_properties({"a": "b"}).commit_transaction(),
        lambda: table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "kept").commit(),
        lambda: table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[1].snapshot_id).commit(),
    ):
        table.append(ROW)
        change()
        held, read = catalog.load_table("demo.t").metadata, load_catalog(None).load_table("demo.t").metadata
        assert held == read
        assert type(held) is type(read)
        text = catalog.load_table("demo.t").io.new_input(catalog.load_table("demo.t").metadata_location).open().read()
        assert text.decode() == read.model_dump_json()


def test_a_commit_does_not_change_the_previous_metadata(catalog: Catalog, table: Table):
    before = catalog.load_table("demo.t").metadata
    text = before.model_dump_json()
    table.append(ROW)
    table.transaction().set_properties({"a": "b"}).commit_transaction()
    after = catalog.load_table("demo.t").metadata
    assert before.model_dump_json() == text
    assert after.snapshots[0] is before.snapshots[0]
    assert after.snapshots is not before.snapshots
    assert after.properties is not before.properties


def test_only_a_bounded_number_of_table_metadata_is_cached(catalog: Catalog, table: Table, parsed: list[str]):
    for number in range(MAX_CACHED_METADATA + 1):
        catalog.create_table(f"demo.other_{number}", ROW.schema)
        catalog.load_table(f"demo.other_{number}")
    parsed.clear()
    catalog.load_table("demo.t")
    assert parsed == [table.metadata_location]


def test_a_commit_does_not_read_the_metadata_on_which_it_is_based(catalog: Catalog, table: Table, parsed: list[str]):
    for number in range(MAX_CACHED_METADATA + 1):
        catalog.create_table(f"demo.other_{number}", ROW.schema)
    parsed.clear()
    table.append(ROW)
    assert parsed == []
    assert len(load_catalog(None).load_table("demo.t").metadata.snapshots) == 2


def test_a_recreated_table_is_a_different_table(catalog: Catalog, table: Table):
    catalog.drop_table("demo.t")
    again = catalog.create_table("demo.t", ROW.schema)
    assert again.metadata.table_uuid != table.metadata.table_uuid
    assert catalog.load_table("demo.t").metadata == again.metadata
