"""Events that happen to a stream's writer and table, in any situation."""

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
    """Return a running writer that has nothing left to do; None if it ended with the situation's exit code."""
    already = world.running is not None
    running = world.running or world.run()
    if situation.red is None or (already and not situation.meets_a_running_writer):
        assert world.quiet(running), running.error_output[-3000:]
        return running
    done = running.end()
    world.running = None
    assert done.code == situation.red, done.err[-3000:]
    return None


def stop(world: World, situation: Situation) -> None:
    """Send the writer SIGTERM; the current batch commits."""
    if writer(world, situation):
        world.stop()


def kill(world: World, situation: Situation) -> None:
    if running := writer(world, situation):
        os.kill(world.writer_pid(), signal.SIGKILL)
        running.end()
        world.running = None


def die_after(point: str) -> Callable[[World, Situation], None]:
    """Start a writer that kills itself at a point of its first batch, if it reaches that point."""

    def to(world: World, situation: Situation) -> None:
        if world.running is not None:
            stop(world, situation)
        world.produce(3)
        done = world.start("run", world.name, "--until-caught-up", dies_after=point).end()
        assert done.code in ({situation.red} if situation.red else {0, 128 + signal.SIGKILL}), done.err[-3000:]

    return to


def start_twice(world: World, situation: Situation) -> None:
    """Start a second writer on the same host. It is refused, and the first one continues."""
    if running := writer(world, situation):
        second = world.frazil("run", world.name)
        assert second.code == (SpecError if situation.red == SpecError.exit_code else WriterBusy).exit_code, second.err
        assert running.runs


def take_over(world: World, situation: Situation) -> None:
    """Let a writer on another host take over the stream. The first writer notices at its next commit, and ends."""
    if first := writer(world, situation):
        second = world.run(host="two")
        if situation.red is None:
            _replaced(world, first, second)
        else:
            assert second.end().code == situation.red
            world.running = first


def zombie(world: World, situation: Situation) -> None:
    """Stop a writer's process, replace the writer, then continue the process: it ends, and its successor continues."""
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
    """Replace a writer that is stopped between a batch's staging and journal. Its successor deletes the files."""
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
    """Let a writer on another host take over while this one is stopped; then continue this one."""
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
    assert first.end().code == Fenced.exit_code, first.error_output[-3000:]
    assert world.quiet(second, "two"), second.error_output[-3000:]


def new_column(world: World, situation: Situation) -> None:
    """Add a column to the declaration, with the writer stopped."""
    stop(world, situation)
    world.extra_columns = "  surge: double\n"
    if situation.red != SpecError.exit_code:
        world.declare()


def expire(world: World, situation: Situation) -> None:
    """Expire all snapshots except the newest ones, as a user might.

    The table's windows are checked before this, as in operation every minute. If late rows' commits expired before a
    check, the rows would reopen nothing (docs/explanation/how-it-works.md). `frazil maintain` expires no such commit.
    """
    if writer(world, situation) and situation.red is None:
        world.signal()
        table = world.table()
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        gone = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
        if gone:
            table.maintenance.expire_snapshots().by_ids(gone).commit()


def compact(world: World, situation: Situation) -> None:
    """Rewrite all files, as a user might. While the table's times are in the future, Java refuses to write."""
    if writer(world, situation):
        options = "options => map('rewrite-all', 'true')"
        rewrite = f"CALL `default`.system.rewrite_data_files(table => '{world.identifier}', {options})"
        if world.ahead:
            with pytest.raises(IllegalArgumentException, match="Expected sorted snapshot log entries"):
                world.spark().sql(rewrite)
        else:
            world.spark().sql(rewrite).collect()


def backfill(world: World, situation: Situation) -> None:
    """Request everything in Kafka again. No record is missing, and none lands twice.

    A backfill of a table with a key merges the requested records without a row again, and changes no row. A backfill
    with a transform drops the same records again.
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
    """Press *Create event* on the table's assets, as an operator might, even with data like frazil's own."""
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
    """Run Airflow's DAGs of the stream and its table next to the writer."""
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
