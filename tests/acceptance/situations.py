"""Situations. Each changes a stream's world in one way, and declares which problem must show and how it is fixed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Producer, TopicPartition
from pyiceberg.types import StringType

from frazil.commit.snapshot import SnapshotWriter
from tests.acceptance.world import World
from tests.polling import eventually

ODD = (
    b"not a ride",
    None,
    b"",
    b"[]",
    b"null",
    b'{"id": 1}',
    b'{"id": "x", "at": "2024-01-01T00:00:00Z"}',
    b'{"id": 9223372036854775808, "at": "2024-01-01T00:00:00Z"}',
    b'{"id": 1, "at": "2024-02-30T00:00:00Z"}',
    b'{"id": 1, "at": "9999-12-31T23:59:59-05:00"}',
    b'{"id": 1, "at": "0001-01-01T00:00:00+05:00"}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "fare": 10000000.00}',
    b'{"id": -2, "at": "2024-01-01T00:00:00Z", "fare": 100.0000}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "tags": "a"}',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "place": {"zip": 2147483648}}',
    b'\xef\xbb\xbf{"id": 1, "at": "2024-01-01T00:00:00Z"}',
    '{"id": 1, "at": "2024-01-01T00:00:00Z"}'.encode("utf-16"),
    b'{"id": 1, "at": "2024-01-01T00:00:00Z"} {"id": 2, "at": "2024-01-01T00:00:00Z"}',
    b'{"id": -1, "at": "2024-01-01T00:00:00Z"\n}',
    b"\x00\xff",
)
YEAR_10000_MS = 253_402_300_800_000
AHEAD_MS = 2 * 3600 * 1000


def nothing(world: World) -> None:
    """Change nothing."""


def _lived_in(world: World) -> None:
    """Prepare a stream that has been written for a while: rows in each partition, and a dead letter."""
    world.produce(24, odd=[b"never a ride"])
    world.catch_up()
    world.signal()


@dataclass(frozen=True, slots=True)
class Situation:
    """`red` is the exit code of every writer until the situation is fixed. `frazil status` must then show `word`."""

    name: str
    arise: Callable[[World], None]
    red: int | None = None
    word: str = ""
    fix: Callable[[World], None] | None = None
    before: Callable[[World], None] = field(default=_lived_in)
    audited: int | None = None
    """The exit code of `frazil audit --source` until the situation is fixed; None if it is not checked."""
    meets_a_running_writer: bool = True
    """Whether a writer that already runs ends in the same way; otherwise it does not notice the situation."""
    hides_records: bool = False
    """Whether no batch can begin until the situation is over."""

    def __str__(self) -> str:
        return self.name


def _quiet(world: World) -> None:
    """Let all partitions fall silent. Some may never have had a record."""
    world.idle_timeout = "1s"
    world.declare()


def _one_odd_record(world: World) -> None:
    world.produce(6, odd=ODD)
    world.produce(6)


def _odd_timestamps(world: World) -> None:
    for stamp in (0, YEAR_10000_MS):
        world.produce(world.shape.partitions, timestamp_ms=stamp)


def _clock_was_ahead(world: World) -> None:
    """Let a host write whose clock is two hours ahead. The next writer's clock is right."""
    world.clock_ms = AHEAD_MS
    world.produce(8)
    if world.running is None:
        world.catch_up()
        world.ahead = True
    world.clock_ms = 0


def _retention(world: World) -> None:
    """Let Kafka delete records that no writer has read."""
    gone = [r for r in world.witness() if r.partition == 0]
    first = max((r.offset for r in gone), default=-1) + 1
    world.stop()
    world.produce(3 * world.shape.partitions)
    world.lost |= {(world.generation, 0, r.offset) for r in world.witness() if r.partition == 0 and r.offset >= first}
    end = max(offset for _, _, offset in world.lost) + 1
    admin = world.kafka.admin()
    for answer in admin.delete_records([TopicPartition(world.topic, 0, end)]).values():
        answer.result(30)


def _cut(world: World) -> None:
    """Restore the broker's disk from a copy: a partition loses its newest records, which were read, and gets others."""
    log = world.kafka.folder / "data" / f"{world.topic}-0"
    (segment,) = log.glob("*.log")
    kept, end = segment.stat().st_size, max(r.offset for r in world.witness() if r.partition == 0) + 1
    world.produce(4 * world.shape.partitions)
    due = {at for at, _ in itertools.chain(*world.due())}
    if world.running is None:
        world.catch_up()
    eventually(lambda: {at for at, _ in (*world.landed(), *world.rejected())} >= due)
    world.kafka.kill()
    os.truncate(segment, kept)
    for derived in (*log.glob("*index"), *log.glob("*.snapshot")):
        derived.unlink()
    world.kafka.start()
    before = world.generation - 1
    world.seen = {(before if p == 0 and o >= end else g, p, o): r for (g, p, o), r in world.seen.items()}
    world.produce(6 * world.shape.partitions)


def _made_again(world: World) -> None:
    world.witness()
    admin = world.kafka.admin()
    admin.delete_topics([world.topic], operation_timeout=30)[world.topic].result(30)
    world.generation += 1

    def made() -> bool:
        try:
            world.new_topic()
        except Exception:  # the name is free only after a moment
            return False
        return True

    eventually(made)
    world.produce(40 * world.shape.partitions)


def _reset(world: World, *to: str) -> None:
    done = world.frazil("reset", world.name, "--to", *to, "--yes")
    assert done.code == 0, done.err


def _broken_file(world: World) -> None:
    world.file.write_text(world.file.read_text().replace("table:", "tabel:"))


def _foreign_column(world: World) -> None:
    with world.table().update_schema() as update:
        update.add_column("added_by_others", StringType())


def _renamed(world: World) -> None:
    """Rename a column of the table while records that contain it are unread."""
    _rename(world, "note", "remark")
    world.produce(2 * world.shape.partitions)


def _rename(world: World, old: str, new: str) -> None:
    with world.table().update_schema() as update:
        update.rename_column(old, new)


def _foreign_writes(world: World) -> None:
    """Set properties, create a tag, and append an empty table, as other programs might."""
    table = world.table()
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "somebody else"})
    prepared = SnapshotWriter(()).prepare(table, summary={}, now_ms=time.time_ns() // 1_000_000)
    table.catalog.commit_table(table, prepared.requirements, prepared.updates)
    table = world.table()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()


def rolled_back(world: World) -> None:
    """Roll the table back by two commits, as a user might."""
    world.stop()
    world.produce(8)
    world.catch_up()
    table = world.table()
    _, back = table.history()[-1], table.history()[-3]
    table.manage_snapshots().rollback_to_snapshot(back.snapshot_id).commit()


def another_stream(world: World) -> None:
    """Begin a second stream in the table, with events in windows that have been signalled."""
    neighbour = world.add_neighbour()
    neighbour.produce(30, odd=[b"no ride either"])
    neighbour.catch_up()
    neighbour.pause()


def _open_transaction(world: World) -> None:
    """Begin a transaction that does not end, which hides all later records of its partitions."""
    stays_open = {"transactional.id": world.name, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap, **stays_open})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(world.shape.partitions):
        producer.produce(world.topic, value=world.value(), partition=number)
    producer.flush(30)
    world.produce(world.shape.partitions)
    world.pending_fix = lambda: producer.commit_transaction(30)


def _aborted(world: World) -> None:
    """Create offsets without readable records: transaction markers, and records of aborted transactions."""
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap, "transactional.id": world.name})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(2 * world.shape.partitions):
            producer.produce(world.topic, value=world.value(), partition=number % world.shape.partitions)
        producer.flush(30)
        end(30)


def _loaded(world: World) -> None:
    """Keep the host's processors busy."""
    burning = [multiprocessing.get_context("spawn").Process(target=_burn, daemon=True) for _ in range(4)]
    for process in burning:
        process.start()
    world.cleanups.append(lambda: [process.kill() for process in burning] and None)


def _burn() -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        pass


SITUATIONS = (
    Situation("an empty topic", nothing, before=nothing),
    Situation("nothing unread", nothing),
    Situation("partitions that fell silent", _quiet),
    Situation("a backlog", lambda world: world.produce(150)),
    Situation("records that were never committed to any table", lambda world: world.produce(30), before=nothing),
    Situation("odd records", _one_odd_record),
    Situation("odd Kafka timestamps", _odd_timestamps),
    Situation("a clock that was ahead", _clock_was_ahead),
    Situation("records that retention took", _retention, 11, "OffsetGap", lambda w: _reset(w, "marker")),
    Situation("a log that was cut and grew", _cut, 11, "OffsetGap", lambda w: _reset(w, "marker"), audited=1),
    Situation("a topic made again", _made_again, 14, "TopicRecreated", lambda w: _reset(w, "earliest")),
    Situation("a broken file", _broken_file, 10, "tabel", World.declare, meets_a_running_writer=False),
    Situation("a column that others added", _foreign_column),
    Situation(
        "a column that others renamed", _renamed, 15, "SchemaIncompatible", lambda w: _rename(w, "remark", "note"),
    ),
    Situation("foreign writes", _foreign_writes),
    Situation("a table rolled back", rolled_back, 12, "RolledBack", lambda w: _reset(w, "table")),
    Situation("a second stream in the table", another_stream),
    Situation("a transaction that is open", _open_transaction, hides_records=True),
    Situation("transactions that were aborted", _aborted),
    Situation("a loaded host", _loaded),
)  # fmt: skip
