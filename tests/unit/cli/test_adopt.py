"""What `frazil adopt` checks in the catalog before it writes a stream's first marker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from frazil.cli import marker
from frazil.cli.main import frazil
from frazil.commit import catalog_probe
from frazil.commit.marker import property_name
from frazil.errors import CommitRefused, SpecError
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import find_stream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.unit.doctor.test_connections import configure, declare


class Kafka:
    """A Kafka with one topic of one partition."""

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self) -> Any:
        return SimpleNamespace(identity=SourceIdentity("cluster", {"rides": "id"}), partitions={"rides": 1})

    def starts(self, start: str, partitions: object) -> dict[tuple[str, int], int]:  # noqa: ARG002
        return {("rides", 0): 0}


@pytest.fixture
def streams(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """A stream whose table a user has created in another catalog."""
    monkeypatch.setattr(marker, "open_kafka", lambda _: Kafka())
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    declare(tmp_path)
    ensure_table(load_catalog("lake"), find_stream(tmp_path, "rides"))
    return tmp_path


def adopt(streams: Path) -> Result:
    return CliRunner().invoke(frazil, ["adopt", "rides", "--yes", "--streams", str(streams)])


def is_adopted() -> bool:
    return property_name("rides") in load_catalog("lake").load_table("city.rides").properties


def test_a_catalog_that_cannot_hold_a_stream_is_refused_before_the_table_is_changed(
    streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_probe, "probe", lambda *_, **__: ("it ignores branches",))
    refused = adopt(streams).exception
    assert isinstance(refused, CommitRefused)
    assert "cannot hold a stream: it ignores branches" in str(refused)
    assert not is_adopted()


def test_adopting_a_stream_probes_a_valid_catalog_once(streams: Path, frazil_home: Path) -> None:
    done = adopt(streams)
    assert "Adopted: stream rides begins at" in done.output, done.exception
    assert is_adopted()
    assert len(list((frazil_home / "catalogs").iterdir())) == 1


def test_a_catalog_without_a_warehouse_is_reported_in_one_sentence_by_every_table_creation(
    streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_stream(streams, "rides")
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE")
    configure(monkeypatch, uri=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(SpecError, match=r"'lake' is misconfigured: No default path .*; set its `warehouse`, or"):
        ensure_table(load_catalog("lake"), spec)
