"""Manifest lists cached by commits equal the lists in the files."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table.snapshots import Snapshot

from frazil.commit import manifest_lists
from frazil.commit.manifest_lists import MAX_CACHED_ENTRIES, read_manifests
from frazil.table.faster_commits import BoundedCache


def heads(world: Any) -> tuple[Any, list[Snapshot]]:
    table = world.catalog.inner.load_table("demo.events")
    return table.io, table.metadata.snapshots


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifest lists that are read."""
    paths: list[str] = []
    read = Snapshot.manifests

    def watched(snapshot: Snapshot, io: Any) -> Any:
        paths.append(snapshot.manifest_list)
        return read(snapshot, io)

    monkeypatch.setattr(Snapshot, "manifests", watched)
    return paths


def test_a_cached_manifest_list_equals_its_file(world: Any):
    committer = world.begin()
    for number in range(4):
        committer.commit(world.stage(committer, {0: (number, number + 1)}))
    io, snapshots = heads(world)
    written = [s.manifests(io) for s in snapshots]
    assert [len(manifests) for manifests in written] == [0, 1, 2, 3, 4]
    for snapshot, manifests in zip(snapshots, written, strict=True):
        assert read_manifests(snapshot, io) == manifests


def test_a_list_that_this_process_wrote_is_not_read_for_the_next_commit(world: Any, reads: list[str]):
    committer = world.begin()
    for number in range(3):
        committer.commit(world.stage(committer, {0: (number, number + 1)}))
    assert reads == []


def test_a_manifest_list_of_another_process_is_read_once_and_kept_unchanged(
    world: Any, reads: list[str], monkeypatch: pytest.MonkeyPatch
):
    committer = world.begin()
    for number in range(3):
        committer.commit(world.stage(committer, {0: (number, number + 1)}))
    monkeypatch.setattr(manifest_lists, "_cache", BoundedCache(MAX_CACHED_ENTRIES))
    committer.commit(world.stage(committer, {0: (3, 4)}))
    committer.commit(world.stage(committer, {0: (4, 5)}))
    assert len(reads) == 1
    io, snapshots = heads(world)
    *_, before, after = (s.manifests(io) for s in snapshots)
    assert after[1:] == before
    assert [m.sequence_number for m in after] == sorted((m.sequence_number for m in after), reverse=True)


def test_only_a_bounded_number_of_entries_of_manifest_lists_is_cached(world: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_lists._cache, "_limit", 20)
    committer = world.begin()
    for number in range(8):
        committer.commit(world.stage(committer, {0: (number, number + 1)}))
    kept = [len(entries) for entries in manifest_lists._cache._kept.values()]
    assert (kept[-1], len(kept) + sum(kept)) == (8, 9 + 8)
