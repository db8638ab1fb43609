"""What happens to a stream's writer and table, whatever is so."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest
from pyspark.errors import IllegalArgumentException

from frazil.errors import Fenced, SpecError, WriterBusy
from tests.acceptance.command_server import Running
from tests.acceptance.situations import Situation
from tests.acceptance.world import BEGIN, STEP, World
from tests.polling import eventually


@dataclass(frozen=True, slots=True)
class StreamEvent:
    name: str
    to: Callable[[World, Situation], None]

    def __str__(self) -> str:
        return self.name


def writer(world: World, situation: Situation) -> Running | None:
    """The writer that runs, or a new one, with nothing left to do; None where it ended as the situation says."""
    already = world.running is not None
    running = world.running or world.run()
    if situation.red is None or (already and not situation.meets_a_running_writer):
        assert world.quiet(running), running.said[-3000:]
        return running
    done = running.end()
    world.running = None
    assert done.code == situation.red, done.err[-3000:]
    return None


def stop(world: World, situation: Situation) -> None:
    """SIGTERM: the current batch commits."""
    if writer(world, situation):
        world.stop()


def kill(world: World, situation: Situation) -> None:
    if running := writer(world, situation):
        os.kill(world.writer_pid(), signal.SIGKILL)
        running.end()
        world.running = None


def die_after(point: str) -> Callable[[World, Situation], None]:
    """A start that kills itself at a point of its first batch, if it comes to one."""

    def to(world: World, situation: Situation) -> None:
        if world.running is not None:
            stop(world, situation)
        world.produce(3)
        done = world.start("run", world.name, "--until-caught-up", dies_after=point).end()
        assert done.code in ({situation.red} if situation.red else {0, 128 + signal.SIGKILL}), done.err[-3000:]

    return to


def start_twice(world: World, situation: Situation) -> None:
    """The second on the same host is refused, and the first goes on."""
    if running := writer(world, situation):
        second = world.frazil("run", world.name)
        assert second.code == (SpecError if situation.red == SpecError.exit_code else WriterBusy).exit_code, second.err
        assert running.runs


def take_over(world: World, situation: Situation) -> None:
    """A writer of another host takes the stream; the first finds that out at its next commit, and ends."""
    if first := writer(world, situation):
        second = world.run(host="two")
        if situation.red is None:
            _replaced(world, first, second)
        else:
            assert second.end().code == situation.red
            world.running = first


def zombie(world: World, situation: Situation) -> None:
    """A writer that stood still while it was replaced ends; its successor goes on."""
    if situation.red is not None:
        stop(world, situation)
    elif first := writer(world, situation):
        pid = world.writer_pid()

        def stands_still() -> bool:
            os.kill(pid, signal.SIGSTOP)
            if world.catalog_is_free():
                return True
            os.kill(pid, signal.SIGCONT)
            return False

        eventually(stands_still)
        _replace(world, first, pid)


def zombie_in_a_batch(world: World, situation: Situation) -> None:
    """One that stood still between the stage and the journal of a batch, which its successor swept."""
    if situation.hides_records:
        zombie(world, situation)
        return
    stop(world, situation)
    if situation.red is None:
        world.produce(3)
        first = world.run(stops_after="stage")
        # Asked again each time: for a moment after the start, `frazil run` itself stands for its writer.
        eventually(lambda: psutil.Process(world.writer_pid()).status() == psutil.STATUS_STOPPED)
        _replace(world, first, world.writer_pid())


def _replace(world: World, first: Running, pid: int) -> None:
    """A writer of another host takes over while this one is stopped; then this one continues."""
    try:
        second = world.run(host="two")
        assert world.quiet(second, "two")
    finally:
        os.kill(pid, signal.SIGCONT)
    _replaced(world, first, second)


def _replaced(world: World, first: Running, second: Running) -> None:
    assert world.quiet(second, "two")
    world.fix()
    world.produce(2 * world.shape.partitions)
    assert first.end().code == Fenced.exit_code, first.said[-3000:]
    assert world.quiet(second, "two"), second.said[-3000:]


def new_column(world: World, situation: Situation) -> None:
    """The declaration gets a column, and the writer is started again."""
    stop(world, situation)
    world.extra_columns = "  surge: double\n"
    if situation.red != SpecError.exit_code:
        world.declare()


def expire(world: World, situation: Situation) -> None:
    """A user keeps none but the newest snapshots.

    The table's windows were checked before, as they are each minute: late rows whose commits are expired before any
    check reopen nothing (docs/explanation/how-it-works.md). `frazil maintain` expires no such commit.
    """
    if writer(world, situation) and situation.red is None:
        world.signal()
        table = world.table()
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
        if gone:
            table.maintenance.expire_snapshots().by_ids(gone).commit()


def compact(world: World, situation: Situation) -> None:
    """A user rewrites all files; while a table is ahead of its clock, Java refuses to write to it."""
    if writer(world, situation):
        options = "options => map('rewrite-all', 'true')"
        rewrite = f"CALL `default`.system.rewrite_data_files(table => '{world.identifier}', {options})"
        if world.ahead:
            with pytest.raises(IllegalArgumentException, match="Expected sorted snapshot log entries"):
                world.spark().sql(rewrite)
        else:
            world.spark().sql(rewrite).collect()


def backfill(world: World, situation: Situation) -> None:
    """All that Kafka has is requested again: nothing is missing, and nothing lands twice.

    A backfill of a table with a key merges each requested record without a row again, and changes no row. One of a
    stream with a transform drops again what was dropped.
    """
    if writer(world, situation) and situation.red is None:
        done = world.frazil("backfill", world.name)
        assert done.code == 0, done.err
        complete = "no requested record is missing" in done.out
        again = world.shape.keeps != "all" or world.shape.transformed
        assert complete or (again and "published" in done.out), done.out


def audit(world: World, situation: Situation) -> None:
    if writer(world, situation) and situation.red is None:
        done = world.frazil("audit", world.name, "--source")
        assert done.code == 0, done.out + done.err
        world.airflow_run("audits", hours_ahead=1, streams=[world.name], source=True)


def create_events(world: World, situation: Situation) -> None:
    """An operator presses *Create event* on the table's assets, also with what looks like an event of frazil's."""
    writer(world, situation)
    if situation.red != SpecError.exit_code and world.windows:
        key = f"{BEGIN + 400 * STEP:%Y-%m-%d}" + ("T00" if world.windows == "hour" else "")
        for asset, extra, of in itertools.product(
            (world.identifier, f"{world.identifier}.reopened"),
            ({}, {"note": None}, {key: {"number": 1, "revision": 1}}),
            (None, "no window", key),
        ):
            world.airflow.create_event(asset, extra=extra, key=of)


def run_dags(world: World, situation: Situation) -> None:
    """Airflow's DAGs of the stream and its table run next to the writer."""
    if writer(world, situation) and situation.red is None:
        world.signal()
        world.airflow_run("maintenance", tables=[world.identifier], actions=["manifests", "expiry", "orphans"])
        world.airflow_run("audits", hours_ahead=1, streams=[world.name])


HAPPENINGS = (
    StreamEvent("it is stopped", stop),
    StreamEvent("it is killed", kill),
    *(
        StreamEvent(f"it dies after the {point}", die_after(point))
        for point in ("stage", "journal", "dead letters", "commit")
    ),
    StreamEvent("it is started twice", start_twice),
    StreamEvent("another host takes over", take_over),
    StreamEvent("it stands still, is replaced, and goes on", zombie),
    StreamEvent("it stands still in a batch, is replaced, and goes on", zombie_in_a_batch),
    StreamEvent("its declaration gets a column", new_column),
    StreamEvent("snapshots are expired", expire),
    StreamEvent("files are compacted", compact),
    StreamEvent("a backfill is asked for", backfill),
    StreamEvent("it is audited", audit),
    StreamEvent("events of its table are created by hand", create_events),
    StreamEvent("its DAGs run in Airflow", run_dags),
)
