"""The SQL catalog of fast tests behaves like PyIceberg's own, and reads its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from tests.plain_catalog import PLAIN, PYICEBERG, catalogs_with

SCHEMA = Schema(NestedField(1, "x", LongType()))


@pytest.fixture(params=[PLAIN, PYICEBERG], ids=["plain", "pyiceberg"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlCatalog]:
    with catalogs_with(request.param):
        found = opened(tmp_path)
        found.create_namespace("demo")
        found.create_table("demo.a", SCHEMA)
        yield found
        found.engine.dispose()


def opened(folder: Path) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def set_property(catalog: SqlCatalog, value: str) -> None:
    catalog.load_table("demo.a").transaction().set_properties({"value": value}).commit_transaction()


def test_a_commit_whose_requirement_does_not_hold_changes_nothing(catalog: SqlCatalog) -> None:
    table, other = catalog.load_table("demo.a"), catalog.create_table("demo.b", SCHEMA)
    with pytest.raises(CommitFailedException, match="Table UUID does not match"):
        catalog.commit_table(
            table, (AssertTableUUID(uuid=other.metadata.table_uuid),), (SetPropertiesUpdate(updates={"value": "1"}),)
        )
    assert catalog.load_table("demo.a").metadata_location == table.metadata_location


def test_the_later_of_two_concurrent_commits_fails(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, write = opened(tmp_path), catalog._write_metadata

    def overtaken(*arguments: Any, **named: Any) -> None:
        write(*arguments, **named)
        set_property(other, "first")

    monkeypatch.setattr(catalog, "_write_metadata", overtaken)
    with pytest.raises(CommitFailedException, match=r"updated by another process: demo\.a"):
        set_property(catalog, "second")
    assert catalog.load_table("demo.a").properties["value"] == "first"
    other.engine.dispose()


def test_namespaces_and_tables_are_found_by_their_exact_names(catalog: SqlCatalog) -> None:
    catalog.create_namespace("a_b.c")
    names = ["demo", "dem", "demo.x", "a_b", "axb", "a_b.c", "c"]
    assert [name for name in names if catalog.namespace_exists(name)] == ["demo", "a_b", "a_b.c"]
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("demo.a", SCHEMA)
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("none.a", SCHEMA)
    with pytest.raises(NoSuchTableError, match=r"does not exist: demo\.none"):
        catalog.load_table("demo.none")


@pytest.mark.parametrize("other", [PLAIN, PYICEBERG], ids=["plain", "pyiceberg"])
def test_both_catalog_implementations_read_the_metadata_of_the_other(
    catalog: SqlCatalog, tmp_path: Path, other: Any
) -> None:
    set_property(catalog, "1")
    with catalogs_with(other):
        second = opened(tmp_path)
        set_property(second, second.load_table("demo.a").properties["value"] + "2")
        second.engine.dispose()
    assert catalog.load_table("demo.a").properties["value"] == "12"
