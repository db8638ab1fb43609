"""Rows of format version 3 keep their row ids. Tests derive the ids as the specification defines them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StringType

from frazil.commit import manifest_lists
from frazil.commit.failed_attempts import is_sequence_conflict
from frazil.commit.snapshot import SnapshotWriter
from frazil.errors import Fenced
from frazil.table.branches import MAIN, head_of
from tests.unit.commit.aligned import BRANCH, aligned_in
from tests.unit.commit.conftest import FaultyCatalog, World, new_world
from tests.unit.commit.upserts import BY_REGION, upsert_world

FAN_IN = 4


@pytest.fixture(autouse=True)
def small_fan_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_lists, "FAN_IN", FAN_IN)


@pytest.fixture
def world(catalog: FaultyCatalog, tmp_path: Path) -> World:
    return new_world(catalog, tmp_path, version=3)


def row_ids(table: Any, branch: str = MAIN) -> dict[str, range]:
    """The ids of each data file's rows."""
    head = head_of(table.metadata, branch)
    found: dict[str, range] = {}
    for manifest in head.manifests(table.io) if head else ():
        following = manifest[15]
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            if file.content is DataFileContent.DATA:
                first = following if file[16] is None else file[16]
                following += file.record_count if file[16] is None else 0
                assert file.file_path not in found
                found[file.file_path] = range(first, first + file.record_count)
    return found


def check(table: Any, branch: str = MAIN) -> dict[str, range]:
    """Check that no two rows have the same id, and that no snapshot reuses another's ids."""
    found = row_ids(table, branch)
    metadata = table.metadata
    ordered = sorted(found.values(), key=lambda ids: ids.start)
    assert all(one.stop <= other.start for one, other in pairwise(ordered))
    assert not ordered or ordered[-1].stop <= metadata.next_row_id
    snapshots: list[Snapshot] = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    assert len({one.sequence_number for one in snapshots}) == len(snapshots)
    ends = [(one.first_row_id or 0) + (one.added_rows or 0) for one in snapshots]
    assert all(end <= (one.first_row_id or 0) for end, one in zip(ends, snapshots[1:], strict=False))
    assert not ends or ends[-1] <= metadata.next_row_id
    return found


def commit(world: World, committer: Any, first: int, last: int) -> None:
    for number in range(first, last):
        world.run(committer, {0: (3 * number, 3 * number + 3)})


def kept(before: dict[str, range], after: dict[str, range]) -> bool:
    return before.items() <= after.items()


def test_rows_keep_their_ids_while_manifests_are_merged(world: World):
    committer, before = world.begin(), dict[str, range]()
    for number in range(2 * FAN_IN**2):
        commit(world, committer, number, number + 1)
        after = check(world.load())
        assert kept(before, after)
        before = after
    assert len(world.rows()) == 6 * FAN_IN**2
    assert len(world.load().current_snapshot().manifests(world.load().io)) < FAN_IN**2  # type: ignore[union-attr]


FAULTS: dict[str, Callable[[World], None]] = {
    "the answer is lost": lambda world: world.catalog.next_answer_is_lost("demo.events"),
    "the commit lands late": lambda world: world.catalog.next_lands_late("demo.events"),
    "another engine commits first": lambda world: world.catalog.next_meets(world.compact, "demo.events"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_that_is_tried_again_uses_each_id_once(world: World, fault: str):
    committer = world.begin()
    commit(world, committer, 0, 2 * FAN_IN)
    FAULTS[fault](world)
    commit(world, committer, 2 * FAN_IN, 2 * FAN_IN + 2)
    check(world.load())
    assert len(world.rows()) == 6 * (FAN_IN + 1)


def test_row_ids_stay_valid_when_a_writer_dies_after_its_journal_and_another_takes_over(world: World):
    first = world.begin()
    commit(world, first, 0, 2)
    journal = world.stage(first, {0: (6, 9)})
    assert world.tables.journals.put(journal)
    second = world.begin()  # commits the journal
    with pytest.raises(Fenced):
        first.commit(journal)
    commit(world, second, 3, 5)
    check(world.load())
    assert len(world.rows()) == 15


def test_rows_that_move_from_the_open_branch_get_ids_of_main(tmp_path: Path):
    aligned = aligned_in(tmp_path, version=3)
    for minute in (5, 65, 130, 190, 250, 400):
        aligned.run([minute, minute + 1], [minute])
        aligned.check()
        check(aligned.world.load())
        check(aligned.world.load(), BRANCH)
    assert aligned.main()


@pytest.mark.parametrize("version", [2, 3])
def test_files_that_stay_when_others_of_their_manifest_leave_keep_their_ids(
    catalog: FaultyCatalog, tmp_path: Path, version: int
):
    world = upsert_world(catalog, tmp_path, BY_REGION, version=version, how="copy-on-write")
    committer = world.begin()
    world.upsert(committer, [(1, ("eu", 1)), (2, ("us", 2)), (3, ("ap", 3))])
    if version == 2:
        upgrade(world)
        world.upsert(committer, [(4, ("af", 4))])
    before = check(world.load())
    for amount in (5, 6):
        world.upsert(committer, [(2, ("us", amount))])
        after = check(world.load())
        assert len(before.items() & after.items()) == len(before) - 1
    assert world.accounts()[2] == ("us", 6)


def upgrade(world: World) -> None:
    """Give the table format version 3, as another engine does."""
    table = world.load()
    at = Path(table.metadata_location.removeprefix("file://"))
    upgraded = json.loads(at.read_text()) | {"format-version": 3, "next-row-id": 0}
    path = at.with_name(f"{int(at.name[:5]) + 1:05d}-{table.metadata.table_uuid}.metadata.json")
    path.write_text(json.dumps(upgraded))
    with world.catalog.inner.engine.begin() as connection:
        changed = connection.exec_driver_sql(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?",
            (path.as_uri(), table.metadata_location),
        )
        assert changed.rowcount == 1


def test_a_table_upgraded_by_another_engine_continues_with_ids_for_all_rows(
    catalog: FaultyCatalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    world = new_world(catalog, tmp_path, version=2)
    committer = world.begin()
    commit(world, committer, 0, FAN_IN + 1)
    world.catalog.next_meets(lambda: upgrade(world), "demo.events")
    with caplog.at_level(logging.INFO, "frazil.commit.compare_and_swap"):
        commit(world, committer, FAN_IN + 1, FAN_IN + 2)
    said = [record.getMessage() for record in caplog.records if record.name == "frazil.commit.compare_and_swap"]
    assert [text.partition(" in ")[0] for text in said] == [
        "commit to demo.events: the table became format version 3: preparing the commit again"
    ]
    before = check(world.load())
    assert sum(map(len, before.values())) == 3 * (FAN_IN + 2)
    commit(world, committer, FAN_IN + 2, 3 * FAN_IN)
    assert kept(before, check(world.load()))
    assert len(world.rows()) == 9 * FAN_IN


def test_a_manifest_merge_from_before_a_table_upgrade_is_not_used_once_rows_have_ids(
    catalog: FaultyCatalog, tmp_path: Path
):
    world = new_world(catalog, tmp_path, version=2)
    committer, before = world.begin(), dict[str, range]()
    commit(world, committer, 0, FAN_IN)

    def upgrade_and_commit() -> None:
        upgrade(world)
        table = world.load()
        theirs = SnapshotWriter(()).prepare(table, summary={}, now_ms=world.clock_ms)
        world.catalog.inner.commit_table(table, theirs.requirements, theirs.updates)
        before.update(check(world.load()))

    world.catalog.next_meets(upgrade_and_commit, "demo.events")
    commit(world, committer, FAN_IN, FAN_IN + 1)
    assert before
    assert kept(before, check(world.load()))


def test_a_new_column_changes_no_row_id(world: World):
    committer = world.begin()
    commit(world, committer, 0, 2)
    before = check(world.load())
    with world.load().update_schema() as update:
        update.add_column("more", StringType())
    commit(world, committer, 2, 2 * FAN_IN)
    assert kept(before, check(world.load()))


def test_a_snapshot_whose_number_another_branch_took_is_refused(world: World):
    committer = world.begin()
    commit(world, committer, 0, 1)
    table = world.load()
    ours = SnapshotWriter(()).prepare(table, summary={}, now_ms=world.clock_ms)
    theirs = SnapshotWriter((), branch="aside").prepare(table, summary={}, now_ms=world.clock_ms)
    world.catalog.inner.commit_table(table, theirs.requirements, theirs.updates)
    with pytest.raises(ValueError, match="older than last sequence number") as refused:
        world.catalog.inner.commit_table(table, ours.requirements, ours.updates)
    assert is_sequence_conflict(refused.value)
    commit(world, committer, 1, 2)
    check(world.load())


def test_rows_that_a_merge_copies_keep_the_default_of_a_column_that_they_did_not_have(
    catalog: FaultyCatalog, tmp_path: Path
):
    world = upsert_world(catalog, tmp_path, BY_REGION, version=3, how="copy-on-write")
    committer = world.begin()
    world.upsert(committer, [(1, ("eu", 1)), (2, ("eu", 2)), (3, ("us", 3))])
    with world.load().update_schema() as update:
        update.add_column("gate", StringType(), default_value="A1")
    world.upsert(committer, [(1, ("eu", 10))])
    rows = world.load().scan().to_arrow().sort_by("id")
    assert rows["amount"].to_pylist() == [10, 2, 3]
    assert rows["gate"].to_pylist()[1:] == ["A1", "A1"]
