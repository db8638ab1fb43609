"""A merge and its batch's dead letters in one step: both appear or neither does, despite any fault meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frazil.table.atomic_catalogs import find_commit_tables
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.upserts import upsert_world

BEFORE = {1: ("eu", 1), 2: ("us", 2)}
AFTER = {1: ("eu", 10), 3: ("us", 3)}
OTHERS = {9: ("eu", 9)}


class Killed(BaseException):
    """Simulates a kill within the process."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    with catalog_in(tmp_path) as catalog:
        yield upsert_world(catalog, tmp_path)


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
@pytest.mark.parametrize("happens", ["nothing", "lost", "appended", "compacted", "killed before", "killed after"])
def test_a_merge_and_its_dead_letters_are_one_commit(world: Any, how: Any, happens: str) -> None:
    world.how, inner, calls, states = how, find_commit_tables(world.catalog.inner), [], []

    def at_once(changes: Any) -> Any:
        calls.append([change.table.name()[-1] for change in changes])
        if len(calls) > 1:
            return inner(changes)
        if happens == "killed before":
            raise Killed
        if happens == "appended":
            world.append_accounts(OTHERS)
        elif happens == "compacted":
            world.compact()
        try:
            answer = inner(changes)
        finally:
            states.append((world.accounts(), world.dead_letters()))
        if happens == "lost":
            raise ConnectionError("the answer was lost")
        if happens == "killed after":
            raise Killed
        return answer

    world.tables = dataclasses.replace(world.tables, commit_atomically=at_once)
    committer = world.begin()
    world.upsert(committer, list(BEFORE.items()))
    assert not calls
    stage = world.stage_changes
    world.stage_changes = lambda key, changes: stage(key, changes) + world.write_dead_letters(key, [(0, 4)])
    journal = world.change(committer, [(1, AFTER[1]), (2, None), (3, AFTER[3])])
    with suppress(Killed):
        committer.commit(journal)
    if happens.startswith("killed"):
        world.begin()
    others = OTHERS if happens == "appended" else {}
    whole = {**AFTER, **others}, [(0, 4)]
    assert (world.accounts(), world.dead_letters()) == whole
    assert all(state in (whole, ({**BEFORE, **others}, [])) for state in states)
    assert calls[0] == ["accounts_dead_letters", "accounts"]
    assert len(calls) == (2 if happens in {"appended", "compacted", "killed before"} else 1)
