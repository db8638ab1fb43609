"""Answers of a REST catalog to a commit: refusals differ from unknown outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from frazil.commit.compare_and_swap import TableHandle
from frazil.commit.failed_attempts import MAX_REFUSALS
from frazil.commit.stream_tables import StreamTables
from frazil.errors import AccessDenied, CommitRefused, CommitUnavailable

from .rest_answers import RestAnswers, rest_catalog

pytestmark = pytest.mark.processes


@pytest.fixture
def answers(world: Any) -> RestAnswers:
    return RestAnswers(world.catalog.inner)


@pytest.fixture
def tables(world: Any, answers: RestAnswers) -> Iterator[StreamTables]:
    """The world's stream, whose writer meets its catalog over HTTP."""
    with rest_catalog(answers) as catalog:
        yield dataclasses.replace(
            world.tables,
            targets={
                "main": TableHandle(catalog, world.table),
                "dead-letters": TableHandle(catalog, world.dead_letter_table),
            },
        )


def journaled(world: Any, tables: StreamTables) -> tuple[Any, Any]:
    committer = world.take_over(tables)
    journal = world.stage(committer, {0: (0, 3)})
    assert tables.journals.put(journal)
    return committer, journal


@pytest.mark.parametrize("status", [400, 405, 422, 501])
def test_a_permanent_refusal_of_the_catalog_ends_the_commit_with_the_message_of_the_catalog(
    world, tables, answers, status
):
    """It once counted as an unknown outcome: ten minutes of looking again, at every start."""
    committer, journal = journaled(world, tables)
    answers.tried, answers.commits = 0, [status] * 100
    with pytest.raises(CommitRefused, match=r"refuses to change table demo\.events: .*read-only until Monday.*journal"):
        committer.commit(journal)
    assert answers.tried == MAX_REFUSALS
    assert sum(world.time.waits) < 10, "seconds, and not the minutes of an unknown outcome"
    assert world.rows() == []
    answers.commits = []
    assert world.settle(world.take_over(tables), tables).committed == (journal,)
    assert world.rows() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("answer", [400, 404, 408, 409, 422, 429, 500, 502, 503, 504, -500, -502, -503, -504, -400])
def test_after_any_other_catalog_answer_the_commit_is_checked_again_and_the_batch_lands_once(
    world, tables, answers, answer
):
    """404 of a table that is present is a proxy's, as a single 400 may be; below 0 the commit was done all the same."""
    committer, journal = journaled(world, tables)
    answers.commits = [answer]
    committer.commit(journal)
    assert world.rows() == [(0, 0), (0, 1), (0, 2)]
    assert world.manifests() == world.used_manifests()


def test_a_commit_refused_during_concurrent_changes_is_retried(world, tables, answers):
    committer, journal = journaled(world, tables)
    original = answers.commit

    def overtaken(identifier: str, body: bytes) -> Any:
        if answers.commits:
            world.foreign_append(offset=1_000 + len(answers.commits))
        return original(identifier, body)

    answers.commit, answers.commits = overtaken, [400] * 5
    committer.commit(journal)
    assert len(world.rows()) == 3 + 5


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_permission_ends_the_commit_at_once(world, tables, answers, status):
    committer, journal = journaled(world, tables)
    answers.commits = [status] * 100
    with pytest.raises(AccessDenied, match="read-only until Monday"):
        committer.commit(journal)
    assert world.rows() == []


def test_a_commit_to_a_missing_table_is_reported(world, tables, answers):
    committer, journal = journaled(world, tables)
    answers.commits = [404] * 100
    world.catalog.inner.drop_table("demo.events")
    with pytest.raises(CommitUnavailable, match=r"table demo\.events no longer exists"):
        committer.commit(journal)
