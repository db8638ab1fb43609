"""Discarded dead letters are marked in one commit, despite faults; all others, and their files, stay unchanged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate

from frazil.commit import dead_letter_counts
from frazil.commit.backfill_records import BackfillMarker, branch_name, property_name
from frazil.commit.open_streams import OpenStream
from frazil.commit.sweep import referenced_paths
from frazil.dead_letters.selection import DiscardMark, Selection, count_by_day, discard, read_samples
from frazil.errors import CommitUnavailable, WriterBusy
from tests.unit.commit.conftest import EPOCH_BEGAN, World

MARK = DiscardMark("ada", "a test of the producer's", 1_800_000_000_000)
NOT_JSON = Selection(reasons=("NotJson",))
BAD = {0: [1, 2], 1: [7]}


@pytest.fixture
def opened(world: World) -> OpenStream:
    """A stream with three dead letters of two batches, and one of another stream in the same table."""
    writer = world.begin()
    world.run(writer, {0: (0, 5)}, rejected={0: [1, 2]})
    world.run(writer, {1: (0, 9)}, rejected={1: [7]})
    world.stream = "others"
    files = world.write_dead_letters(SimpleNamespace(epoch=9, batch=9), [(0, 1)])  # type: ignore[arg-type]
    world.stream = "events"
    world.load_dead_letters().append(_read(files[0].path))
    spec: Any = SimpleNamespace(name="events", source=SimpleNamespace(topics=("events",)), sensitive=None)
    return OpenStream(spec, world.tables)


def _read(path: str) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))


def test_dead_letters_and_their_files_keep_each_value_but_the_mark(world: World, opened: OpenStream) -> None:
    """PyIceberg reads a dead letter without headers as one with an empty list of them."""

    def dead_letters() -> list[dict[str, Any]]:
        table = world.load_dead_letters()
        paths = [task.file.file_path for task in table.scan().plan_files()]
        rows = [row for path in paths for row in _read(path).to_pylist()]
        marked = {"discarded_at", "discarded_by", "discard_reason"}
        return sorted(({k: v for k, v in row.items() if k not in marked} for row in rows), key=str)

    before = dead_letters()
    assert {row["headers"] for row in before} == {None}
    assert discard(opened, NOT_JSON, MARK) == 3
    assert dead_letters() == before


def discarded(world: World) -> list[tuple[str, int, int]]:
    rows = world.load_dead_letters().scan("discarded_at is not null").to_arrow().to_pylist()
    assert {(r["discarded_by"], r["discard_reason"], r["discarded_at"].timestamp()) for r in rows} <= {
        ("ada", "a test of the producer's", 1_800_000_000.0)
    }
    return sorted((r["stream"], r["kafka_partition"], r["kafka_offset"]) for r in rows)


MINE = [("events", 0, 1), ("events", 0, 2), ("events", 1, 7)]


def check_all_there(world: World) -> None:
    assert world.dead_letters() == [(0, 1), (0, 1), (0, 2), (1, 7)]
    table = world.load_dead_letters()
    assert world.manifests(table) == world.used_manifests(table)
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["total-records"] == "4"


def test_selected_dead_letters_are_discarded_once_and_those_of_other_streams_are_not(
    world: World, opened: OpenStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_counts, "MAX_RECENT_AGE_MS", world.tables.clock_ms())
    assert discard(opened, NOT_JSON, MARK) == 3
    assert discarded(world) == MINE
    check_all_there(world)
    head = world.load_dead_letters().current_snapshot()
    assert head is not None
    assert head.summary is not None
    (((name, _), more),) = dead_letter_counts.parse_dead_letter_summary(head.summary.additional_properties).by.items()
    assert (name, more) == ("NotJson", -3)
    assert discard(opened, NOT_JSON, DiscardMark("bob", "again", 0)) == 0
    assert world.load_dead_letters().current_snapshot() == head
    table = opened.tables.dead_letters.refresh()
    assert count_by_day(table, opened.spec, Selection()) == []
    (count,) = count_by_day(table, opened.spec, Selection(discarded=True))
    assert (count.day, count.reason, count.dead_letters, count.discarded) == (EPOCH_BEGAN.date(), "NotJson", 3, 3)
    (dead_letter,) = read_samples(table, opened.spec, Selection(discarded=True), limit=1)
    assert dead_letter.discarded == "ada, 2027-01-15T08:00:00+00:00: a test of the producer's"


@pytest.mark.parametrize(
    "selection",
    [
        Selection(reasons=("MissingField",)),
        Selection(begin=datetime(2014, 1, 1, tzinfo=UTC)),
        Selection(end=EPOCH_BEGAN),
    ],
)
def test_a_discard_that_selects_nothing_changes_nothing(world: World, opened: OpenStream, selection: Selection) -> None:
    before = world.load_dead_letters().metadata
    assert discard(opened, selection, MARK) == 0
    assert count_by_day(opened.tables.dead_letters.refresh(), opened.spec, selection) == []
    assert world.load_dead_letters().metadata == before


Fault = Callable[[World], object]
FAULTS: dict[str, Fault] = {
    "the answer is lost": lambda w: w.catalog.next_answer_is_lost(),
    "it lands late": lambda w: w.catalog.next_lands_late(),
    "the catalog fails": lambda w: w.catalog.next_fails_before(ConnectionError("away")),
    "a batch lands first": lambda w: w.catalog.next_meets(
        lambda: w.run(w.begin(), {0: (5, 8)}, rejected={0: [6]}), w.dead_letter_table
    ),
    "somebody rewrites all files first": lambda w: w.catalog.next_meets(
        lambda: w.load_dead_letters().overwrite(w.load_dead_letters().scan().to_arrow()), w.dead_letter_table
    ),
}


def unreferenced(world: World) -> set[str]:
    """Return the files and manifests that no snapshot of the dead-letter table needs."""
    table = world.load_dead_letters()
    files = world.parquet_files(table) - referenced_paths(table)
    return files | (world.manifests(table) - world.used_manifests(table))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_dead_letter_exists_once_and_is_marked_whatever_fails(
    world: World, opened: OpenStream, fault: str
) -> None:
    before = unreferenced(world)
    FAULTS[fault](world)
    assert discard(opened, NOT_JSON, MARK) == 3
    world.catalog.land_now()
    assert discarded(world) == MINE
    assert world.dead_letters() == sorted([(0, 1), (0, 1), (0, 2), (1, 7), *([(0, 6)] if "batch" in fault else [])])
    assert unreferenced(world) == before, "no file of a lost attempt is left"


def test_a_replay_that_begins_while_dead_letters_are_discarded_stops_the_discard(
    world: World, opened: OpenStream
) -> None:
    """A replay decodes the dead letters that it finds, so none of them may be marked after it has begun."""
    replay = BackfillMarker("events", "r1", {"dead-letters": "NotJson"}, digest="", epoch=1)

    def replay_begins() -> None:
        """The replay's snapshot has main's number: the requirement alone must refuse the discard, not the number."""
        table = world.load_dead_letters()
        (main,) = table.metadata.refs.values()
        began = SetSnapshotRefUpdate(ref_name=branch_name("events"), type="branch", snapshot_id=main.snapshot_id)
        world.catalog.inner.commit_table(
            table, (), (began, SetPropertiesUpdate(updates={property_name("events"): replay.to_property()}))
        )

    world.catalog.next_meets(replay_begins, world.dead_letter_table)
    with pytest.raises(WriterBusy, match="are being replayed"):
        discard(opened, NOT_JSON, MARK)
    assert discarded(world) == []


def test_a_catalog_that_stays_unavailable_leaves_everything_unchanged(world: World, opened: OpenStream) -> None:
    world.catalog.next_fails_before(ConnectionError("away"), times=10_000)
    with pytest.raises(CommitUnavailable):
        discard(opened, NOT_JSON, MARK)
    world.catalog.faults.clear()
    assert discarded(world) == []
    assert world.dead_letters() == [(0, 1), (0, 1), (0, 2), (1, 7)]


def test_the_stream_continues_after_a_discard_and_a_dead_letter_read_again_stays_one(
    world: World, opened: OpenStream
) -> None:
    discard(opened, NOT_JSON, MARK)
    world.run(world.begin(), {0: (5, 9)}, rejected={0: [8]})
    assert world.dead_letters() == [(0, 1), (0, 1), (0, 2), (0, 8), (1, 7)]
    assert discarded(world) == MINE
