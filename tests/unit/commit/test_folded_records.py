"""Old commit records are folded: each can be found, wherever a fold was interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.audit.claims import load_all_claims, load_claims
from frazil.commit.folded_records import MAX_PARALLEL_READS, MAX_SEGMENT_BYTES, split_records
from frazil.commit.history import Period, commit_records, first_offsets, table_position
from frazil.commit.journal import Journal, JournalStore, UnusableJournal, bare_path
from frazil.commit.marker import BatchKey
from frazil.commit.marker_changes import forget
from frazil.commit.settle import highest_epoch
from frazil.events import StreamEvent
from frazil.stream import hosting
from frazil.stream.hosting import RecordFolding
from frazil.table.storage import LocalStore

BATCHES = 23


def fold(world: Any, **changes: int) -> int:
    return sum(world.tables.journals.fold(world.marker(), **{"keep": 2, "limit": 4, **changes}))


def objects(world: Any, folder: str) -> list[str]:
    return [f.path.rsplit("/", 1)[-1] for f in world.store.list_files(f"{world.tables.state}/{folder}")]


def commit_batches(world: Any) -> None:
    """23 batches in three epochs, with a dead letter now and then."""
    for offset in range(BATCHES):
        if offset % 8 == 0:
            committer = world.begin()
        world.clock_ms += 60_000
        world.run(committer, {0: (offset, offset + 1)}, rejected={0: [offset]} if offset % 5 == 0 else {})


@pytest.fixture
def run(worlds_after: Any) -> Iterator[Any]:
    """A stream after these batches."""
    with worlds_after(commit_batches) as world:
        yield world


def seen(world: Any) -> dict[str, Any]:
    """Return everything that readers find in commit records."""
    journals, marker, metadata = world.tables.journals, world.marker(), world.load().metadata
    everything = Period(0, world.clock_ms + 1)
    return {
        "records": list(journals.records()),
        "newest first": list(journals.records(newest_first=True, below=BatchKey(3, 1))),
        "claims": load_all_claims(journals, marker, metadata),
        "of a window": load_claims(journals, marker, metadata, everything),
        "by path": [journals.read(path) for _, path in commit_records(metadata, "events")],
        "by key": [journals.get(journal.key) for journal in journals.records()],
        "position": table_position(metadata, journals, stream="events", table="demo.events"),
        "first offsets": first_offsets(metadata, journals),
        "highest epoch": (highest_epoch(world.tables), journals.highest_epoch()),
    }


def test_a_folded_commit_record_is_still_found_by_every_reader(run):
    before = seen(run)
    assert len(before["records"]) == len(before["by path"]) == BATCHES
    assert fold(run) == 20
    assert len(objects(run, "records")) == 5
    assert len(objects(run, "journal")) == 3
    assert seen(run) == before
    run.expire_all_but_newest()
    after = load_all_claims(run.tables.journals, run.marker(), run.load().metadata)
    assert after == replace(before["claims"], repeats=None), "only snapshots count repeats"
    everything = Period(0, run.clock_ms + 1)
    found = load_claims(run.tables.journals, run.marker(), run.load().metadata, everything)
    assert found.records == before["claims"].records


def test_a_stream_with_folded_commit_records_continues_restarts_and_sweeps_as_before(run):
    fold(run)
    rows, files = run.rows(), run.all_parquet_files()
    for offset in range(BATCHES, BATCHES + 9):
        committer = run.begin()
        run.run(committer, {0: (offset, offset + 1)})
    assert run.rows() == sorted([*rows, *((0, o) for o in range(BATCHES, BATCHES + 9))])
    assert files <= run.all_parquet_files()
    assert fold(run) == 8
    assert [r.progress[0].start for r in run.tables.journals.records()] == list(range(BATCHES + 9))


class CutStore(LocalStore):
    """Fails at the n-th operation that changes or reads an object."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("cut")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._count()
        return super().put_if_absent(path, data)

    def get(self, path: str) -> bytes | None:
        self._count()
        return super().get(path)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._count()
            super().delete([path])


def test_an_interrupted_fold_of_records_loses_nothing_and_continues(run):
    before, marker = seen(run), run.marker()
    state = run.tables.state
    cut = 0
    for at in range(200):
        try:
            list(JournalStore(CutStore(at % 19), state).fold(marker, keep=2, limit=4))
        except ConnectionError:
            cut += 1
        assert list(JournalStore(LocalStore(), state).records()) == before["records"]
    assert cut > 5
    fold(run)
    assert (len(objects(run, "records")), len(objects(run, "journal"))) == (5, 3)
    assert seen(run) == before


def test_two_folds_at_once_lose_and_repeat_nothing(run):
    before, marker = seen(run), run.marker()
    one, two = (JournalStore(run.store, run.tables.state) for _ in range(2))
    first, second = one.fold(marker, keep=2, limit=4), two.fold(marker, keep=1, limit=3)
    for _ in range(4):
        next(first, None)
        next(second, None)
        assert list(run.tables.journals.records()) == before["records"]
        assert list(run.tables.journals.records(newest_first=True)) == before["records"][::-1]
    assert seen(run) == before


def test_folded_records_are_read_ahead_by_at_most_the_number_of_parallel_reads():
    record, read = bytes(MAX_SEGMENT_BYTES), []

    def one(key: BatchKey) -> bytes:
        read.append(key)
        return record

    keys = [BatchKey(1, n) for n in range(1, 200)]
    for number, group in enumerate(split_records(keys, one), 1):
        assert list(group) == keys[number - 1 : number]
        assert len(read) <= number + MAX_PARALLEL_READS
    assert sorted(read) == keys


def test_objects_that_are_not_the_streams_commit_records_are_left_alone(run):
    journals = run.tables.journals
    other = dataclasses.replace(journals.get(BatchKey(1, 2)), stream="others").to_bytes()
    run.store.put(journals.path(BatchKey(1, 2)), other)
    run.store.put(journals.path(BatchKey(1, 3)), b"torn")
    # What a fenced writer journaled late, and no one commits.
    late = dataclasses.replace(journals.get(BatchKey(1, 8)), key=BatchKey(1, 9))
    run.store.put(journals.path(late.key), late.to_bytes())
    fold(run)
    assert set(journals.keys()) >= {(1, 2), (1, 3), (1, 9)}
    assert journals.entry(BatchKey(1, 2), table_uuid=str(run.load().metadata.table_uuid), stream="events") is (
        UnusableJournal.FOREIGN
    )
    run.begin()
    assert set(journals.keys()).isdisjoint({late.key})


def test_damaged_commit_records_count_as_missing_and_no_data_file_is_lost(run, caplog):
    fold(run)
    rows, path = run.rows(), f"{run.tables.state}/records/{objects(run, 'records')[0]}"
    Path(bare_path(path)).write_bytes(b"\x1f\x8bno")
    run.begin()
    assert run.rows() == rows
    assert len(list(run.tables.journals.records())) == BATCHES - 4
    assert "cannot be read, and count as missing" in caplog.text


@pytest.mark.parametrize("read", [lambda j: j.get, lambda j: lambda key: j.read(j.path(key))])
def test_a_commit_record_folded_since_the_last_check_is_found(run, read: Callable[..., Any]):
    reader = JournalStore(run.store, run.tables.state)
    assert isinstance(read(reader)(BatchKey(1, 1)), Journal)
    fold(run)
    assert isinstance(read(reader)(BatchKey(1, 1)), Journal)
    assert read(reader)(BatchKey(9, 9)) is None


@pytest.mark.parametrize("stopped", ["before it writes", "after it wrote"])
def test_a_fold_concurrent_with_a_forget_leaves_no_objects(run, stopped: str):
    """`forget` removes the marker, lists and deletes while a fold is between its read and its last step."""
    journals, marker, state = run.tables.journals, run.marker(), run.tables.state
    write = journals._folded.write

    def stopped_write(records: Any) -> bool:
        if stopped == "after it wrote":
            written = write(records)
            forget(run.tables, state=state)
            return written
        forget(run.tables, state=state)
        return write(records)

    journals._folded.write = stopped_write
    folding = journals.fold(marker, keep=2, limit=4, forgotten=lambda: run.tables.marker() is None)
    assert list(folding) == []
    assert run.store.list_files(state) == []


def test_a_writer_folds_records_until_none_are_left_or_it_stops(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "open_existing_catalog", lambda _: run.catalog)
    monkeypatch.setattr(hosting, "FOLD_PAUSE_S", 0.0)
    for name, number in (("keep", 2), ("limit", 4)):
        monkeypatch.setitem(JournalStore.fold.__kwdefaults__, name, number)
    spec: Any = SimpleNamespace(name="events", table=SimpleNamespace(catalog="lake", identifier="demo.events"))
    events: list[StreamEvent] = []
    stopped, goes_on = RecordFolding(spec, events.append), RecordFolding(spec, events.append)
    stopped.__exit__()
    assert stopped.fold() == 4
    assert goes_on.fold() > 4
    assert goes_on.fold() == 0
    assert len(events) == 2
