"""A batch's rows and its dead letters in one step: both appear or neither does, despite any fault meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from frazil.commit.committer import Committer
from frazil.commit.stream_tables import StreamTables
from frazil.errors import CommitRefused
from frazil.table.atomic_catalogs import CommitTables, TableChange, find_commit_tables

Committed = Sequence[CommitTableResponse] | None
Fault = Callable[[Callable[[], Committed]], Committed]


class FaultyAtOnce:
    """Commits to several tables of the catalog. The next ones fail."""

    def __init__(self, inner: CommitTables) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        self.late: list[Callable[[], Committed]] = []
        self.tables: list[list[str]] = []

    def __call__(self, changes: Sequence[TableChange]) -> Committed:
        self.tables.append([change.table.name()[-1] for change in changes])
        for effect in self.late:
            with suppress(CommitFailedException):
                effect()
        self.late.clear()

        def effect() -> Committed:
            return self.inner(changes)

        return self.faults.pop(0)(effect) if self.faults else effect()


@pytest.fixture
def at_once(world: Any) -> FaultyAtOnce:
    return FaultyAtOnce(find_commit_tables(world.catalog.inner))


@pytest.fixture
def tables(world: Any, at_once: FaultyAtOnce) -> StreamTables:
    return dataclasses.replace(world.tables, commit_atomically=at_once)


@pytest.fixture
def committer(world: Any, tables: StreamTables) -> Committer:
    begun = world.take_over(tables)
    world.settle(begun, tables)
    return begun


def staged(world: Any, committer: Committer) -> Any:
    """A batch of four records, one of them bad."""
    journal = world.stage(committer, {0: (0, 4)}, rejected={0: [2]})
    assert world.tables.journals.put(journal)
    return journal


def landed(world: Any) -> bool:
    """Whether both are there, each once. Fails if only one is."""
    found = world.rows(), world.dead_letters()
    assert found in (([], []), ([(0, 0), (0, 1), (0, 3)], [(0, 2)]))
    return found != ([], [])


def metadata_files(world: Any) -> set[str]:
    """Return all metadata files of both tables."""
    return {str(path) for path in world.root.glob("warehouse/**/*.metadata.json")}


def named(world: Any) -> set[str]:
    """Return the metadata files that a table's metadata or its log names."""
    both = world.load(), world.load_dead_letters()
    logged = {entry.metadata_file for table in both for entry in table.metadata.metadata_log}
    return {path.removeprefix("file://") for path in logged | {table.metadata_location for table in both}}


def test_rows_and_dead_letters_are_one_commit(world, committer, at_once):
    before = len(world.catalog.attempts)
    marker = committer.commit(staged(world, committer))
    assert at_once.tables == [["events_dead_letters", "events"]]
    assert len(world.catalog.attempts) == before
    assert landed(world)
    assert marker == world.marker()
    assert marker.settled == world.dead_letter_marker().settled
    assert metadata_files(world) == named(world)


def test_without_dead_letters_only_the_table_is_committed_to(world, committer, at_once):
    journal = world.stage(committer, {0: (0, 4)})
    committer.commit(journal)
    assert at_once.tables == []
    assert len(world.rows()) == 4


def test_an_atomic_commit_needs_no_table_load_afterwards(world, committer):
    committer.commit(staged(world, committer))
    loads = world.catalog.loads
    committer.commit(world.stage(committer, {0: (4, 8)}, rejected={0: [5]}))
    assert world.catalog.loads == loads
    assert (len(world.rows()), len(world.dead_letters())) == (6, 2)


def test_a_lost_response_to_an_atomic_commit_is_resolved_by_reading_the_tables(world, committer, at_once):
    def lost(effect: Callable[[], Committed]) -> Committed:
        effect()
        raise ConnectionError("the answer was lost")

    at_once.faults = [lost]
    assert committer.commit(staged(world, committer)) == world.marker()
    assert len(at_once.tables) == 1
    assert landed(world)


def test_a_commit_that_lands_late_lands_once(world, committer, at_once):
    def late(effect: Callable[[], Committed]) -> Committed:
        at_once.late.append(effect)
        raise ConnectionError("no answer in time")

    at_once.faults = [late]
    committer.commit(staged(world, committer))
    assert len(at_once.tables) == 2
    assert landed(world)


@pytest.mark.parametrize("table", ["demo.events", "demo.events_dead_letters"])
def test_a_conflict_on_one_table_leaves_the_other_as_it_was(world, committer, at_once, table):
    seen = []

    def overtaken(effect: Callable[[], Committed]) -> Committed:
        with world.catalog.inner.load_table(table).transaction() as change:
            change.set_properties(somebody="else")
        try:
            return effect()
        finally:
            seen.append(landed(world))

    journal = staged(world, committer)
    at_once.faults = [overtaken] * 3
    committer.commit(journal)
    assert seen == [False] * 3
    assert len(at_once.tables) == 4
    assert landed(world)
    assert metadata_files(world) == named(world), "nothing else can need the metadata of a commit that lost its race"
    assert world.manifests() == world.used_manifests()


def test_a_commit_that_fails_before_the_database_is_asked_to_commit_leaves_no_metadata(world, committer, monkeypatch):
    journal, fails = staged(world, committer), [locked(), ConnectionError("reset")]
    execute = Connection.execute

    def failing(self: Connection, *args: Any, **kwargs: Any) -> Any:
        result = execute(self, *args, **kwargs)
        if fails and "UPDATE" in str(args[0]):
            raise fails.pop()
        return result

    monkeypatch.setattr(Connection, "execute", failing)
    committer.commit(journal)
    assert not fails
    assert landed(world)
    assert metadata_files(world) == named(world)


@pytest.mark.parametrize("done", [False, True])
def test_an_error_of_the_database_commit_keeps_the_metadata_until_its_outcome_is_known(
    world, committer, monkeypatch, done
):
    journal, fails = staged(world, committer), [locked()]
    commit = Connection.commit

    def failing(self: Connection) -> None:
        if done or not fails:
            commit(self)
        if fails:
            raise fails.pop()

    monkeypatch.setattr(Connection, "commit", failing)
    committer.commit(journal)
    assert not fails
    assert landed(world)
    assert named(world) <= metadata_files(world)
    assert len(metadata_files(world) - named(world)) == (0 if done else 2)


def test_a_metadata_file_that_cannot_be_written_removes_the_others_of_its_commit(world, committer, monkeypatch):
    catalog, journal, fails = world.catalog.inner, staged(world, committer), [OSError("no space left")]
    write, written = catalog._write_metadata, []

    def failing(**what: Any) -> None:
        written.append(what["metadata_path"])
        if fails and len(written) == 2:
            raise fails.pop()
        write(**what)

    monkeypatch.setattr(catalog, "_write_metadata", lambda m, i, p: failing(metadata=m, io=i, metadata_path=p))
    committer.commit(journal)
    assert len(written) == 4
    assert landed(world)
    assert metadata_files(world) == named(world)


def test_a_writer_killed_before_its_commit_changes_no_table_and_the_next_one_commits_to_both(world, tables, committer):
    class Killed(BaseException):
        pass

    def killed(_: Callable[[], Committed]) -> Committed:
        raise Killed

    journal = staged(world, committer)
    tables.commit_atomically.faults = [killed]  # type: ignore[union-attr]
    with pytest.raises(Killed):
        committer.commit(journal)
    assert not landed(world)
    assert world.settle(world.take_over(tables), tables).committed == (journal,)
    assert landed(world)


def test_dead_letters_that_a_writer_committed_before_it_died_are_not_committed_again(world, tables, committer, at_once):
    """A writer committed the tables one by one, before `commit.atomic` was declared."""
    journal = staged(world, committer)
    world.commit_dead_letters(committer, journal)
    assert world.settle(world.take_over(tables), tables).committed == (journal,)
    assert at_once.tables == []
    assert landed(world)


def test_a_writer_that_was_replaced_commits_to_neither_table(world, committer, at_once):
    journal = staged(world, committer)

    def replaced(effect: Callable[[], Committed]) -> Committed:
        world.take_over()
        return effect()

    at_once.faults = [replaced]
    with pytest.raises(Exception, match="epoch"):
        committer.commit(journal)
    assert not landed(world)
    assert metadata_files(world) == named(world)


def test_a_refusal_names_all_tables(world, committer, at_once):
    def refused(_: Callable[[], Committed]) -> Committed:
        raise NotImplementedError("read-only until Monday")

    at_once.faults = [refused] * 100
    with pytest.raises(
        CommitRefused, match=r"refuses to change tables demo\.events_dead_letters, demo\.events: read-only"
    ):
        committer.commit(staged(world, committer))
    assert not landed(world)


def locked() -> OperationalError:
    return OperationalError("COMMIT", {}, Exception("database is locked"))
