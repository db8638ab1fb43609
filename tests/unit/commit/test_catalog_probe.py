"""A catalog that cannot hold a stream is recognised by a probe table, which is then removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate
from sqlalchemy import text

from frazil.commit import catalog_probe
from frazil.commit.catalog_probe import ABANDONED_AFTER_MS, PREFIX, check_catalog_guarantees, probe
from frazil.errors import CommitRefused
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.storage import LocalStore

NOW_MS = 1_700_000_000_000
SPEC = StreamSpec.model_validate(
    {
        "name": "rides",
        "source": {"topics": ["rides"], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
        "table": {"identifier": "city.rides", "catalog": "lake"},
        "schema": {"at": "timestamptz not null"},
        "event-time": "at",
    }
)


@pytest.fixture
def lake(frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:  # noqa: ARG001
    """A valid catalog that a user configured."""
    for key, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/lake.db",
        "WAREHOUSE": f"file://{tmp_path}/w",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
    return load_catalog("lake")


class Flawed:
    """A catalog that answers every commit, and does something else."""

    def __init__(self, inner: Catalog, **flaws: Callable[..., Any]) -> None:
        self._inner, self._flaws, self.commits = inner, flaws, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load_table(self, identifier: Any) -> Table:
        table = self._inner.load_table(identifier)
        return self._flaws["load"](table) if "load" in self._flaws else table

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        self.commits += 1
        if "swap" in self._flaws:
            self._flaws["swap"](self._inner, table)
        if "commit" in self._flaws:
            requirements, updates = self._flaws["commit"](requirements, updates)
        return self._inner.commit_table(self._inner.load_table(table.name()), requirements, updates)


def without_history(table: Table) -> Table:
    alone = [s.model_copy(update={"parent_snapshot_id": None}) for s in table.metadata.snapshots[-1:]]
    metadata = table.metadata.model_copy(update={"snapshots": alone})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def without_properties(requirements: Any, updates: Any) -> Any:
    return requirements, tuple(u for u in updates if not isinstance(u, SetPropertiesUpdate))


def unconditional(catalog: Any, base: Table) -> None:
    """The last writer wins: a commit continues from its own base, whatever the table has become."""
    with catalog.engine.begin() as connection:
        connection.execute(text("update iceberg_tables set metadata_location = :at"), {"at": base.metadata_location})


def branches_are_main(_: Any, updates: Any) -> Any:
    """Behave like Nessie: a commit to any branch is one to main."""
    return (), tuple(
        u.model_copy(update={"ref_name": "main"}) if isinstance(u, SetSnapshotRefUpdate) else u for u in updates
    )


def branches_are_ignored(requirements: Any, updates: Any) -> Any:
    return requirements, tuple(u for u in updates if not (isinstance(u, SetSnapshotRefUpdate) and u.ref_name != "main"))


def test_a_valid_catalog_passes_the_probe_which_leaves_nothing_behind(lake: Catalog, tmp_path: Path) -> None:
    assert probe(lake, SPEC, now_ms=NOW_MS) == ()
    assert lake.list_namespaces() == []
    assert [path for path in (tmp_path / "w").rglob("*") if path.name != "city"] == []


@pytest.mark.parametrize(
    ("flaws", "said"),
    [
        ({"load": without_history}, "not keep the snapshot history"),
        ({"commit": without_properties}, "drops table properties"),
        ({"swap": unconditional}, "not conditional"),
        ({"commit": branches_are_main}, "a commit to a branch replaces main's data"),
        ({"commit": branches_are_ignored}, "ignores branches"),
    ],
)
def test_the_catalog_probe_reports_each_flaw(lake: Catalog, flaws: dict[str, Callable[..., Any]], said: str) -> None:
    missing = probe(Flawed(lake, **flaws), SPEC, now_ms=NOW_MS)  # type: ignore[arg-type]
    assert said in "; ".join(missing)
    assert lake.list_namespaces() == []


def test_a_catalog_that_behaves_like_nessie_is_refused_with_the_findings_of_the_probe(lake: Catalog) -> None:
    nessie: Any = Flawed(lake, load=without_history, commit=branches_are_main)
    with pytest.raises(CommitRefused) as refused:
        check_catalog_guarantees(nessie, SPEC, now_ms=NOW_MS)
    # As Nessie 0.99.0 was refused, over SeaweedFS's S3.
    assert str(refused.value) == (
        "stream rides: the catalog 'lake' cannot hold a stream: it does not keep the snapshot history: after two "
        "commits the table shows only the last; a commit to a branch replaces main's data; it ignores branches: "
        "after a commit to a branch, the branch does not exist. Nothing was written to the stream's table. "
        "Declare the table in another catalog"
    )
    assert lake.list_namespaces() == []


def test_a_storage_without_conditional_puts_is_reported(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(store: LocalStore, path: str, data: bytes) -> bool:
        store.put(path, data)
        return True

    monkeypatch.setattr(LocalStore, "put_if_absent", put)
    (said,) = probe(lake, SPEC, now_ms=NOW_MS)
    assert "does not support conditional puts" in said


def test_a_flawed_catalog_is_refused_at_every_start_and_a_valid_one_is_probed_once(lake: Catalog) -> None:
    flawed: Any = Flawed(lake, swap=unconditional)
    for _ in range(2):
        with pytest.raises(
            CommitRefused, match=r"stream rides: the catalog 'lake' cannot hold a stream: .*conditional"
        ):
            check_catalog_guarantees(flawed, SPEC, now_ms=NOW_MS)
    valid: Any = Flawed(lake)
    check_catalog_guarantees(valid, SPEC, now_ms=NOW_MS)
    probed = valid.commits
    assert probed > 0
    check_catalog_guarantees(valid, SPEC, now_ms=NOW_MS)
    assert valid.commits == probed


def test_a_host_probes_a_catalog_again_after_the_probe_version_changed(
    lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_catalog_guarantees(lake, SPEC, now_ms=NOW_MS)
    monkeypatch.setattr(catalog_probe, "PROBE_VERSION", catalog_probe.PROBE_VERSION + 1)
    again: Any = Flawed(lake)
    check_catalog_guarantees(again, SPEC, now_ms=NOW_MS)
    assert again.commits > 0


def test_a_stream_starts_in_a_catalog_where_it_may_not_create_tables(
    lake: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ForbiddenError("create is not yours")

    lake.create_namespace("city")
    lake.create_table = refuse  # type: ignore[method-assign]
    check_catalog_guarantees(lake, SPEC, now_ms=NOW_MS)
    assert "could not check" in caplog.text


def test_the_next_probe_removes_the_leftovers_of_a_killed_probe_and_no_foreign_table(lake: Catalog) -> None:
    lake.create_namespace("city")
    killed, running = NOW_MS - ABANDONED_AFTER_MS - 1, NOW_MS - 1000
    for name in (f"{PREFIX}{killed}_ab12", f"{PREFIX}{running}_ab12", f"{PREFIX}mine", "rides"):
        lake.create_table(f"city.{name}", catalog_probe._SCHEMA)
    assert probe(lake, SPEC, now_ms=NOW_MS) == ()
    assert {name for _, name in lake.list_tables("city")} == {f"{PREFIX}{running}_ab12", f"{PREFIX}mine", "rides"}


def test_the_declared_format_version_is_probed(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = SPEC.table.model_copy(update={"properties": {"format-version": "3"}})
    spec = SPEC.model_copy(update={"table": table})
    assert probe(lake, spec, now_ms=NOW_MS) == ()
    create = lake.create_table
    monkeypatch.setattr(lake, "create_table", lambda *args, **more: create(*args, **{**more, "properties": {}}))
    assert probe(lake, spec, now_ms=NOW_MS) == ("it does not create tables of Iceberg format version 3",)
    assert probe(lake, SPEC, now_ms=NOW_MS) == ()
