"""What health says of a table that changes are merged into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.maintenance.health import TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.merge.contract import How
from frazil.spec.model import StreamSpec
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.upserts import UpsertWorld, upsert_world

SPEC = StreamSpec.model_validate(
    {
        "name": "events",
        "source": {"topics": ["events"], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.accounts",
        "schema": {"id": "long not null", "region": "string not null", "amount": "long", "at": "timestamptz"},
        "event-time": "at",
        "mode": "upsert",
        "key": "id",
    }
)
ROWS = 100


@pytest.fixture
def world(tmp_path: Path, frazil_home: Path) -> Iterator[UpsertWorld]:  # noqa: ARG001
    with catalog_in(tmp_path) as catalog:
        yield upsert_world(catalog, tmp_path)


def measured(world: UpsertWorld, *, deep: bool = False) -> TableHealth:
    table = MaintainedTable(world.table, world.table, None, TableKind.MAIN, SPEC.maintenance, (SPEC,))
    found = measure(world.catalog.inner, table, now_ms=world.clock_ms, deep=deep)
    assert found is not None
    return found


def merge_batches(world: UpsertWorld, how: How, batches: int) -> None:
    """The first inserts all rows, each later one changes some of each bucket."""
    world.how = how
    committer = world.begin()
    world.upsert(committer, [(n, ("eu", 0)) for n in range(ROWS)])
    for batch in range(1, batches):
        world.upsert(committer, [(n, ("eu", batch)) for n in range(batch, ROWS, 10)])


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_recent_files_are_those_that_merges_added_and_no_change_files(world: UpsertWorld, how: How):
    merge_batches(world, how, 5)
    recent, snapshots = measured(world).recent, world.load().metadata.snapshots
    assert recent is not None
    added = sum(int(s.summary.get("added-data-files") or 0) for s in snapshots if s.summary)
    assert (recent.commits, recent.files, recent.partitions) == (5, added, added), "one file for each bucket"
    if how == "copy-on-write":
        assert recent.bytes == sum(int(s.summary.get("added-files-size") or 0) for s in snapshots if s.summary)


def test_what_merges_write_in_place_of_other_files_is_no_growth(world: UpsertWorld):
    merge_batches(world, "copy-on-write", 8)
    found = measured(world)
    assert (found.files_since_compaction, found.bytes_since_compaction) == (found.data_files, found.data_bytes)
    assert found.recent is not None
    assert found.recent.bytes > 4 * found.data_bytes, "so much was written"
