"""`RetryPolicy` with a catalog: bounded and jittered, and no retries of permanent errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from requests.exceptions import JSONDecodeError

from frazil.commit.compare_and_swap import Done, RetryPolicy, TableHandle, swap
from frazil.errors import CommitRefused, CommitUnavailable, RolledBack, StaleBatch, StorageUnavailable


def test_a_table_handle_loads_once_until_it_is_invalidated(world):
    handle = TableHandle(world.catalog, "demo.events")
    before = world.catalog.loads

    assert handle.current() is handle.current()
    assert world.catalog.loads == before + 1
    handle.forget()
    handle.current()
    assert world.catalog.loads == before + 2


def test_a_table_handle_never_returns_to_older_metadata_and_accepts_a_recreated_table(world, monkeypatch):
    handle = TableHandle(world.catalog, "demo.events")
    old = handle.current()
    world.begin()
    new = handle.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(type(world.catalog), "load_table", lambda *_: old)
        assert handle.refresh().metadata == new.metadata
        handle.forget()
        assert handle.current().metadata_location == new.metadata_location
    world.catalog.inner.drop_table("demo.events")
    again = world.catalog.inner.create_table("demo.events", old.schema())
    assert handle.refresh().metadata.table_uuid == again.metadata.table_uuid


def test_a_commit_without_a_conflict_loads_no_table(world):
    committer = world.begin()
    journal = world.stage(committer, {0: (0, 1)})
    before = world.catalog.loads

    committer.commit(journal)

    assert world.catalog.loads == before


def test_an_exception_that_a_decision_raises_on_purpose_ends_the_retry_loop_at_once(world):
    def decide(table):  # noqa: ARG001
        raise StaleBatch("stage it anew")

    with pytest.raises(StaleBatch):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=world.time.retry_policy())

    assert world.time.waits == []


@pytest.mark.parametrize("error", [OverflowError("date value out of range"), KeyError("a"), TypeError("b")])
def test_a_commit_that_cannot_be_prepared_fails_with_the_reason_and_is_not_retried_forever(world, error):
    def decide(table):  # noqa: ARG001
        raise error

    with pytest.raises(CommitRefused, match=rf"demo\.events cannot be prepared: {type(error).__name__}: .*journal"):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=world.time.retry_policy(total_s=600))

    assert len(world.time.waits) < 30
    assert world.time.now_s < 200


def test_an_error_is_retried_while_the_table_changes_or_if_a_server_caused_it(world):
    tried = []

    def decide(table):  # noqa: ARG001
        tried.append(None)
        if len(tried) < 40:
            if len(tried) % 10 == 0:
                world.foreign_append(offset=len(tried))
            raise OverflowError("date value out of range")
        if len(tried) < 80:
            raise JSONDecodeError("a page of a proxy", "<html>", 0)
        return Done("answer")

    retry_policy = world.time.retry_policy(total_s=3600)
    assert swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=retry_policy) == "answer"


def test_without_time_to_wait_a_commit_is_tried_once(world):
    tried = []

    def decide(table):  # noqa: ARG001
        tried.append(None)
        if len(tried) > 1:
            raise StaleBatch("stage it again")
        raise JSONDecodeError("a page of a proxy", "<html>", 0)

    with pytest.raises(CommitUnavailable):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=world.time.retry_policy(total_s=0))
    assert (len(tried), world.time.waits) == (1, [])


def test_a_table_that_changed_since_it_was_loaded_is_reloaded_once_before_an_error_is_raised(world):
    handle = TableHandle(world.catalog, "demo.events")
    rolled_back = handle.current().metadata_location
    requested = []

    def decide(table):
        requested.append(table.metadata_location)
        if table.metadata_location == rolled_back:
            raise RolledBack("a person has put it forward since")
        return Done("answer")

    with pytest.raises(RolledBack):
        swap(handle, decide, retry_policy=world.time.retry_policy())
    assert requested == [rolled_back]
    world.begin()
    assert swap(handle, decide, retry_policy=world.time.retry_policy()) == "answer"
    assert requested.count(rolled_back) == 2
    assert world.time.waits == []


def test_a_table_that_cannot_be_loaded_for_a_moment_is_waited_for(world):
    handle = TableHandle(world.catalog, "demo.events")
    seen = []

    def decide(table):
        seen.append(table)
        if len(seen) < 3:
            raise OSError("a manifest list was expired under us")
        return Done("answer")

    assert swap(handle, decide, retry_policy=world.time.retry_policy()) == "answer"
    assert len({id(table) for table in seen}) == 3


def test_expired_credentials_are_renewed_by_loading_the_table_again(world):
    handle = TableHandle(world.catalog, "demo.events")
    seen = []

    def decide(table):  # noqa: ARG001
        seen.append(handle.io_properties())
        if len(seen) == 1:
            raise PermissionError("AWS Error UNKNOWN: ExpiredToken: The provided token has expired.")
        return Done("answer")

    assert swap(handle, decide, retry_policy=world.time.retry_policy()) == "answer"
    assert seen[0] is not seen[1]


def test_retry_delays_double_up_to_their_maximum_and_end_by_the_deadline(world):
    longest = []
    retry_policy = RetryPolicy(total_s=30, first_s=0.05, max_s=5, clock=lambda: world.time.now_s, wait=world.time.sleep)

    def decide(table):  # noqa: ARG001
        longest.append(min(5, 0.05 * 2 ** len(longest)))
        raise ConnectionError("refused")

    with pytest.raises(CommitUnavailable, match="failed for 30 s"):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=retry_policy)

    assert all(0 <= wait <= limit for wait, limit in zip(world.time.waits, longest, strict=False))
    assert 30 <= world.time.now_s < 36
    assert len(set(world.time.waits)) > 3


def test_a_committer_asked_to_stop_during_an_outage_stops_waiting(world):
    waits = []
    retry_policy = RetryPolicy(wait=lambda seconds: waits.append(seconds) or len(waits) == 2)

    def decide(table):  # noqa: ARG001
        raise ConnectionError("refused")

    with pytest.raises(CommitUnavailable, match="because the writer was asked to end; the next start determines"):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=retry_policy)
    assert len(waits) == 2


def test_a_missing_manifest_list_names_the_remedy_for_a_restored_catalog(world):
    committer = world.begin()
    world.run(committer, {0: (0, 1)})
    retry_policy = RetryPolicy(clock=lambda: world.time.now_s, wait=world.time.sleep)

    def decide(table):
        manifest_list = Path(table.current_snapshot().manifest_list.removeprefix("file://"))
        manifest_list.unlink(missing_ok=True)
        return manifest_list.read_bytes()

    with pytest.raises(StorageUnavailable, match=r"FileNotFoundError.*restored: `A lost catalog` in docs/"):
        swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=retry_policy)


def test_an_outage_is_reported_when_it_begins_and_when_it_is_over(world, caplog):
    reported = []
    retry_policy = RetryPolicy(
        clock=lambda: world.time.now_s, wait=world.time.sleep, report=lambda *failed: reported.append(failed)
    )

    def decide(table):  # noqa: ARG001
        if world.time.now_s < 60:
            raise ConnectionError("refused")
        return Done("answer")

    assert swap(TableHandle(world.catalog, "demo.events"), decide, retry_policy=retry_policy) == "answer"
    first, last = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert first.startswith("a commit to demo.events cannot be prepared (ConnectionError: refused): retrying in")
    assert last.startswith("commits to table demo.events succeed again after 6")
    assert len(reported) > 10, "`frazil status` has the newest"
