"""Kills a writer of many tables: no table loses or repeats a row, and no reader sees part of a step."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import StaticTable
from sqlalchemy import select
from sqlalchemy.orm import Session

from frazil.commit.marker import read_marker
from frazil.table.catalogs import load_catalog
from tests.polling import eventually

BASE = "commit: {interval: 1s%s}\nroute: {by: field, name: note, template: 'test.of_{value}', limit: %d%s}\n"
HOME = "events"


def record(number: int, note: str) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{number % 60:02d}Z", "note": note}).encode()


def ids(identifier: str) -> list[int]:
    return sorted(load_catalog(None).load_table(identifier).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


class Writers:
    """The stream's writer as a process. Many of these are killed."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.kills = stream, 0
        self.process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        if self.process is None or self.process.poll() is not None:
            command = self.stream.command(without_jvm=True)
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.kills += 1


@pytest.fixture
def writers(stream: Any) -> Iterator[Writers]:
    found = Writers(stream)
    yield found
    found.kill()


class Cuts:
    """Reads all tables in one statement: their rows in total, and the rows that the marker counts."""

    def __init__(self) -> None:
        catalog = load_catalog(None)
        assert isinstance(catalog, SqlCatalog)
        self.engine, self.seen = catalog.engine, set[tuple[int, int]]()
        self.failed: list[BaseException] = []

    def check(self) -> None:
        where = IcebergTables.table_namespace == "test"
        with Session(self.engine) as session:
            rows = session.execute(select(IcebergTables.table_name, IcebergTables.metadata_location).where(where)).all()
        tables = {str(name): StaticTable.from_metadata(str(location)) for name, location in rows}
        marker = read_marker(tables[HOME].properties, HOME) if HOME in tables else None
        heads = [table.current_snapshot() for table in tables.values()]
        landed = sum(int(head.summary["total-records"] or 0) for head in heads if head and head.summary)
        self.seen.add((landed, sum(marker.offsets.values()) if marker else 0))

    @contextmanager
    def polled(self) -> Iterator[None]:
        ended = threading.Event()

        def repeat() -> None:
            try:
                while not ended.wait(0.01):
                    self.check()
            except BaseException as error:
                self.failed.append(error)

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_with_atomic_route_commits_a_reader_never_sees_a_batch_in_only_some_tables(
    stream: Any, writers: Writers, kills: int
) -> None:
    stream.declare(BASE % (", atomic: true", 10, ", tables: {other: test.events_other}"))
    chance, cuts, sent = random.Random(kills), Cuts(), 0

    def send() -> None:
        nonlocal sent
        notes = ("a", "b", "other", "no\x00table" * 30)  # the last is too long: a dead letter
        stream.produce([record(sent + n, notes[n % 4]) for n in range(200)], partitions=4)
        sent += 200

    with cuts.polled():
        while writers.kills < kills:
            writers.ensure()
            for _ in range(3):
                before = len(cuts.seen)
                send()
                with suppress(AssertionError):  # a writer that was killed while it started has yet to commit
                    eventually(lambda: len(cuts.seen) > before, within_s=20)  # noqa: B023
            threading.Event().wait(chance.uniform(0, 1.5))  # the load, not a wait
            send()
            writers.kill()
        stream.catch_up()
    cuts.check()
    assert cuts.failed == []
    assert sorted(rows - position for rows, position in cuts.seen) == [0] * len(cuts.seen), "a mixed cut"
    assert max(cuts.seen) == (sent, sent)
    assert len(cuts.seen) > kills
    found = [*ids("test.of_a"), *ids("test.of_b"), *ids("test.events_other")]
    assert sorted(found) == [number for number in range(sent) if number % 4 != 3]
    assert stream.table("_dead_letters").scan().count() == sent // 4
    print(f"{writers.kills} kills, {len(cuts.seen)} states seen, {sent} records")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [40, 500])
def test_tables_lose_and_repeat_nothing_while_the_writer_is_killed(stream: Any, writers: Writers, count: int) -> None:
    stream.declare(BASE % ("", count, ", otherwise: dead-letters"))
    chance, sent, rounds = random.Random(7), 0, 25
    for number in range(rounds):
        values = 4 + (count - 4) * number // (rounds - 1)  # new ones come all the time
        stream.produce([record(sent + n, f"v{(sent + n) % values}") for n in range(10 * count)], partitions=4)
        sent += 10 * count
        writers.ensure()
        threading.Event().wait(chance.uniform(1, 5) * max(1, count / 125))  # the load, not a wait
        if chance.random() < 0.6:
            writers.kill()
    kills = writers.kills
    writers.kill()
    stream.catch_up()
    catalog = load_catalog(None)
    made = [f"test.{name}" for _, name in catalog.list_tables("test") if name.startswith("of_")]
    assert kills
    assert len(made) == count
    assert sorted(number for name in made for number in ids(name)) == [*range(sent)]
    for name in made:
        notes = catalog.load_table(name).scan(selected_fields=("note",)).to_arrow()["note"]
        assert {f"test.of_{note}" for note in notes.unique().to_pylist()} == {name}
    assert (stream.ids(), stream.table("_dead_letters").scan().count()) == ([], 0)
    print(f"{count} tables, {sent} records, {kills} kills, each record once")
