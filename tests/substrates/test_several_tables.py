"""Commits to five tables in one step: no reader ever sees only some of them changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest

from frazil.table.atomic_catalogs import find_commit_tables
from tests.several_tables import NAMES, NAMESPACE, Cuts, commit_number, handles, make_tables, open_catalog

FIRST_SEED = 103
"""With the next seed, a process loses answers and commits late before it kills itself at its seventh attempt."""


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URI and warehouse of a catalog with five empty tables. Each test's is a catalog of its own in the database."""
    uri = f"sqlite:///{tmp_path}/catalog.db?timeout=30"
    if request.param == "postgres":
        uri = request.getfixturevalue("postgres").uri
    place = uri, (tmp_path / f"warehouse-{uuid4().hex[:6]}").as_uri()
    catalog = open_catalog(*place)
    make_tables(catalog)
    yield place
    for name in NAMES:
        catalog.drop_table(f"{NAMESPACE}.{name}")
    catalog.engine.dispose()


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Repeat `work` in a thread. Yields the list of its errors."""
    ended, failed = Event(), []

    def repeat() -> None:
        try:
            while not ended.wait(0.01):
                work()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield failed
    finally:
        ended.set()
        thread.join()


@pytest.mark.rotates(2)
@pytest.mark.parametrize("commits", [10, pytest.param(500, marks=pytest.mark.soak)])
def test_a_reader_never_sees_a_partial_multi_table_commit(address: tuple[str, str], commits: int) -> None:
    """Through kills, lost answers, commits that land late, and another user who commits to one of the tables."""
    catalog, rival = open_catalog(*address), open_catalog(*address)
    cuts, seen = Cuts(catalog), []

    def observe() -> None:
        seen.append(cuts.counts())

    def interfere() -> None:
        with rival.load_table(f"{NAMESPACE}.c").transaction() as change:
            change.set_properties(rival=uuid4().hex)

    starts = 0
    with repeating(observe) as blind, repeating(interfere):
        for starts in range(1, commits + 2):
            command = [sys.executable, "-m", "tests.several_tables", *address, str(commits), str(FIRST_SEED + starts)]
            ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
            if ended.returncode == 0:
                break
            assert ended.returncode == -9, ended.stderr
    observe()
    assert starts > 1, "no kill"
    assert blind == []
    assert [cut for cut in seen if len(set(cut.values())) != 1] == []
    assert set(seen[-1].values()) == {commits}
    print(f"{commits} commits, {starts} starts, {len(seen)} looks at {len({c['a'] for c in seen})} states")
    for handle in handles(catalog):
        numbers = [s.summary["test.number"] for s in handle.current().metadata.snapshots if s.summary]
        assert numbers == [str(n) for n in range(1, commits + 1)], "each once, in order"


def test_two_writers_of_the_same_tables_in_opposite_order_do_not_deadlock(address: tuple[str, str]) -> None:
    def numbers(key: str, *names: str) -> Callable[[], object]:
        catalog = open_catalog(*address)
        commit_atomically, tables = find_commit_tables(catalog), handles(catalog, names)
        count = iter(range(1, 1000))
        return lambda: commit_number(tables, next(count), commit_atomically=commit_atomically, key=key)

    first = numbers("first", "a", "b", "c")
    with repeating(numbers("second", "c", "b", "a")) as failed:
        for _ in range(10):
            first()
    assert failed == []
    found = [handle.current().metadata.properties for handle in handles(open_catalog(*address), ("a", "b", "c"))]
    assert {table["first"] for table in found} == {"10"}
    assert len({table.get("second") for table in found}) == 1
