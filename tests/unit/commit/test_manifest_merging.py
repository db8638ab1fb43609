"""Small manifests are merged as a table grows, and each file keeps its entry."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestFile

from frazil.commit import manifest_lists
from frazil.commit.journal import bare_path
from frazil.commit.manifest_writing import MAX_REMEMBERED_BYTES, recently_written
from frazil.table.branches import head_of
from tests.java_rules import check_times

FAN_IN = 4


@pytest.fixture(autouse=True)
def small_fan_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_lists, "FAN_IN", FAN_IN)


def manifests(world: Any) -> list[ManifestFile]:
    table = world.load()
    head = head_of(table.metadata)
    return [] if head is None else head.manifests(table.io)


def data_files(world: Any) -> dict[str, Any]:
    """Return all fields of the listed data files, by path."""
    contents = [Path(bare_path(one.manifest_path)).read_bytes() for one in manifests(world)]
    entries: list[Any] = [entry for content in contents for entry in fastavro.reader(io.BytesIO(content))]
    found = {entry["data_file"]["file_path"]: entry["data_file"] for entry in entries}
    assert len(found) == len(entries)
    return found


def numbers(world: Any) -> dict[str, tuple[int, int, int]]:
    """The snapshot and the sequence numbers of each listed file, by path."""
    io_ = world.load().io
    entries = [entry for one in manifests(world) for entry in one.fetch_manifest_entry(io_)]
    return {e.data_file.file_path: (e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries}


def commit(world: Any, committer: Any, first: int, last: int) -> None:
    for number in range(first, last):
        committer.commit(world.stage(committer, {0: (number, number + 1)}))


def test_many_commits_leave_few_manifests_and_all_rows(world: Any):
    committer = world.begin()
    most = 0
    for number in range(5 * FAN_IN**2):
        commit(world, committer, number, number + 1)
        most = max(most, len(manifests(world)))
    assert most <= 2 * FAN_IN + 5
    assert world.rows() == [(0, number) for number in range(5 * FAN_IN**2)]
    check_times(world.load().metadata)


def test_a_merged_manifest_keeps_the_fields_snapshot_and_sequence_numbers_of_its_files(world: Any):
    committer = world.begin()
    commit(world, committer, 0, FAN_IN)
    files, before = data_files(world), numbers(world)
    assert len(manifests(world)) == FAN_IN
    commit(world, committer, FAN_IN, FAN_IN + 1)
    assert len(manifests(world)) == 2
    assert {path: data_files(world)[path] for path in files} == files
    assert {path: numbers(world)[path] for path in before} == before
    (merged,) = (one for one in manifests(world) if one.existing_files_count == FAN_IN)
    assert merged.min_sequence_number == min(sequence for _, sequence, _ in before.values())
    assert merged.existing_rows_count == FAN_IN
    assert not merged.added_files_count


def test_a_commit_that_lost_a_race_reuses_its_merge_only_for_the_same_manifests(world: Any):
    committer = world.begin()
    commit(world, committer, 0, FAN_IN)
    world.catalog.next_meets(world.compact, table="demo.events")
    commit(world, committer, FAN_IN, FAN_IN + 1)
    assert world.rows() == [(0, number) for number in range(FAN_IN + 1)]
    assert world.manifests() == world.used_manifests()
    world.catalog.next_fails_before(CommitFailedException("lost"), table="demo.events")
    commit(world, committer, FAN_IN + 1, 4 * FAN_IN)
    assert world.rows() == [(0, number) for number in range(4 * FAN_IN)]
    assert len(data_files(world)) == len(numbers(world))
    assert world.manifests() == world.used_manifests()


def test_two_manifests_are_merged_if_three_have_too_many_entries(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_lists, "MAX_MERGED_ENTRIES", 2)
    commit(world, world.begin(), 0, FAN_IN + 1)
    assert len(manifests(world)) == FAN_IN


def test_manifests_of_an_earlier_process_are_left_to_maintenance(world: Any):
    committer = world.begin()
    commit(world, committer, 0, FAN_IN)
    for one in manifests(world):
        recently_written.forget(one.manifest_path)
    commit(world, world.begin(), FAN_IN, 2 * FAN_IN + 1)
    assert sorted((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests(world)) == [
        *[1] * (FAN_IN + 1),
        FAN_IN,
    ]
    assert world.rows() == [(0, number) for number in range(2 * FAN_IN + 1)]


def test_a_table_that_switches_merging_off_keeps_a_manifest_for_each_commit(world: Any):
    committer = world.begin()
    with world.load().transaction() as change:
        change.set_properties({manifest_lists.MERGE_ENABLED: "false"})
    commit(world, committer, 0, 2 * FAN_IN)
    assert len(manifests(world)) == 2 * FAN_IN


def test_commits_to_hundreds_of_other_tables_do_not_prevent_a_merge(world: Any):
    committer = world.begin()
    commit(world, committer, 0, FAN_IN)
    (small, *_) = [recently_written.get(one.manifest_path) for one in manifests(world)]
    others = [f"other-{number}" for number in range(500)]
    for other in others:
        recently_written.keep(other, small)
    commit(world, committer, FAN_IN, FAN_IN + 1)
    assert len(manifests(world)) == 2
    for other in others:
        recently_written.forget(other)


def test_entries_of_large_manifests_take_bounded_memory(world: Any):
    committer = world.begin()
    commit(world, committer, 0, 1)
    (small,) = [recently_written.get(one.manifest_path) for one in manifests(world)]
    files = (bytes(10_000),) * 1_000
    large = dataclasses.replace(small, copied=dataclasses.replace(small.copied, data_files=files))
    for number in range(20):
        recently_written.keep(f"large-{number}", large)
    kept = [number for number in range(20) if recently_written.get(f"large-{number}")]
    assert kept == list(range(20 - len(kept), 20))
    assert len(kept) == MAX_REMEMBERED_BYTES // 11_000_000
    for number in kept:
        recently_written.forget(f"large-{number}")
