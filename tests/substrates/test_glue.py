"""A stream in AWS Glue, as far as moto has it, whose conditional update by version is Glue's; the tables are local.

Glue and S3 together were tried on moto's server, which is no dependency: see docs/reference/catalogs.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from frazil.commit.settle import settle
from frazil.errors import Fenced, StaleBatch
from frazil.table.catalogs import load_catalog
from tests.substrates.conftest import catalog_of, configure
from tests.substrates.test_behaviour import Made, offsets, rows, staged

SUBSTRATE = "glue+local"


@pytest.fixture
def substrate(frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:  # noqa: ARG001
    properties = {
        "type": "glue",
        "warehouse": (tmp_path / "warehouse").as_uri(),
        "glue.region": "us-east-1",
        "glue.access-key-id": "key",
        "glue.secret-access-key": "secret",
    }
    configure(monkeypatch, SUBSTRATE, properties)
    with mock_aws():
        yield SUBSTRATE


def test_batches_of_a_writer_land_once_each_with_their_dead_letters(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 100), 1: (0, 50)})
    stream.land({0: (100, 200)}, rejected={0: [100, 150]})
    good = [row for row in offsets(0, 0, 200) if row[1] not in (100, 150)] + offsets(1, 0, 50)
    assert rows(stream.tables) == sorted(good)
    assert rows(stream.tables, dead_letters=True) == [(0, 100), (0, 150)]


def test_the_older_of_two_writers_is_fenced(made: Made) -> None:
    first, second = made(), made()
    first.land({0: (0, 10)})
    waiting = staged(first, 10, 20)
    second.begin()
    settle(second.tables, second.committer)  # type: ignore[arg-type]
    with pytest.raises((Fenced, StaleBatch)):
        first.committer.commit(waiting)  # type: ignore[union-attr]
    second.land({0: (20, 30)})
    assert rows(second.tables) == offsets(0, 0, 30)


def test_a_commit_that_lost_a_race_is_tried_again_on_the_new_base(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    stream.tables.main.current()
    other = load_catalog(catalog_of(SUBSTRATE)).load_table(stream.spec.table.identifier)
    other.transaction().set_properties({"owner": "others"}).commit_transaction()  # PyIceberg cannot append to version 3
    stream.land({0: (10, 20)})
    assert rows(stream.tables) == offsets(0, 0, 20)
