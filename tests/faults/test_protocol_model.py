"""The protocol as a state machine: whatever fails or dies between any two steps, each record is in a table once.

The committer, journals, settling, sweeping and resets are the real ones (`protocol_world`); Hypothesis chooses who
does what next, and which operation of a process fails before or after its effect, lands late, or is its last.
A failure is shrunk, and printed with the line that runs it again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.exceptions import CommitFailedException

from frazil.commit.marker import BatchKey, Fate, Marker
from frazil.commit.marker_change import reset
from frazil.commit.reset import standing
from frazil.commit.rules import check_ancestry
from frazil.commit.settle import bare_path, sweep
from frazil.errors import CommitUnavailable, Fenced, RolledBack

from .protocol_world import DEAD, MAIN, SOURCE, TOPIC, InjectedError, KilledError, World, Writer

EXAMPLES = int(os.environ.get("FRAZIL_MODEL_EXAMPLES", "300"))
STEPS = 50
"""An example's most steps: 300 examples take about 45 s of CPU; a soak asks for more."""
MOST_PROCESSES = 3
FAULTS = {
    "commit": ["fail-before", "fail-after", "late", "others", "overtaken", "kill-before", "kill-after"],
    "load": ["fail-before", "kill-before"],
    "put": ["fail-before", "fail-after", "kill-before", "kill-after", "torn"],
    "get": ["fail-before", "kill-before"],
    "delete": ["fail-before", "kill-before", "kill-after"],
}


def _after_some(well: int, faults: list[str]) -> list[str]:
    return ["ok"] * well + faults


plans = st.one_of(
    st.just({}),
    st.just({"commit": ["others", "overtaken"]}),  # it once deleted the manifests of a snapshot that was expired
    st.fixed_dictionaries(
        {},
        optional={
            operation: st.builds(
                _after_some, st.integers(0, 2), st.lists(st.sampled_from(kinds), min_size=1, max_size=3)
            )
            for operation, kinds in FAULTS.items()
        },
    ),
)
records = st.lists(st.sampled_from([True, True, False, None]), max_size=6)
"""A good one, a bad one, or a gap in the offsets."""
processes = st.integers(0, MOST_PROCESSES - 1)
tables = st.sampled_from([MAIN, DEAD])


class Protocol(RuleBasedStateMachine):
    """Writers that begin, stage, journal, commit, pause and die; and all that others do to their tables."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.mkdtemp(prefix="frazil-model-", dir=memory if memory.is_dir() else None)
        self.world = World(Path(self.folder))
        self.writers: list[Writer] = []
        self.moves_seen = 0
        self.resetting = False
        self.lost: set[BatchKey] = set()

    @property
    def record_lost(self) -> bool:
        """Whether a commit record is gone: that of a batch which was committed, be it after its journal was lost."""
        marker = self.world.marker()
        return marker is not None and any(marker.fate(key) is Fate.COMMITTED for key in self.lost)

    # Kafka

    @initialize(goods=records)
    def begin_with(self, goods: list[bool | None]) -> None:
        self.world.topic.produce(0, goods)

    @rule(partition=st.integers(0, 2), goods=records.filter(bool))
    def produce(self, partition: int, goods: list[bool | None]) -> None:
        self.world.topic.produce(partition, goods)

    # Writers

    @precondition(lambda self: len(self.writers) < MOST_PROCESSES)
    @rule(plan=plans)
    def start(self, plan: dict[str, list[str]]) -> None:
        """Take over and settle; the writer of before goes on, paused or not."""
        writer = Writer(self.world)
        self.writers.append(writer)
        self._step(writer, plan, writer.begin)

    @rule(who=processes, most=st.integers(0, 5), leftover=st.booleans(), plan=plans)
    def go_on(self, who: int, most: int, leftover: bool, plan: dict[str, list[str]]) -> None:
        """One writer's next step: stage up to `most` offsets a partition (none make a tick), journal, or commit."""
        writer = self._pick(who, lambda _: True)
        if writer is None:
            return
        if writer.staged is None:
            self._step(writer, {}, lambda: writer.stage(most, leftover=leftover))
        elif writer.journaled:
            self._step(writer, plan, writer.commit)
        elif self._step(writer, plan, writer.journal) is False:
            self._fenced(writer)

    @rule(who=processes, most=st.integers(0, 5))
    def run_a_batch(self, who: int, most: int) -> None:
        """All three at once, so that long histories are made too."""
        writer = self._pick(who, lambda w: w.staged is None)
        if writer:
            self._step(writer, {}, lambda: writer.stage(most, leftover=False))
            journaled = self._step(writer, {}, writer.journal)
            if journaled:
                self._step(writer, {}, writer.commit)
            elif journaled is False:
                self._fenced(writer)

    @rule(who=processes)
    def kill(self, who: int) -> None:
        if self.writers:
            self.writers.pop(who % len(self.writers))

    # The others

    @rule(what=st.sampled_from(["append", "compact", "expire", "a late commit lands"]), table=tables)
    def others(self, what: str, table: str) -> None:
        """What appends, compacts and expires beside us; and a commit that was reported failed arrives."""
        if what == "append":
            self.world.foreign_append()
        elif what == "compact":
            self.world.compact(table)
        elif what == "expire":
            self.world.expire(table)
        else:
            self.world.catalog.land_late()

    @rule(plan=plans)
    def sweep_daily(self, plan: dict[str, list[str]]) -> None:
        """Maintenance sweeps beside whatever runs."""
        marker = self.world.marker()
        if marker:
            process = Writer(self.world)
            self._step(process, plan, lambda: sweep(process.tables, process.store, below_epoch=marker.at.epoch))

    @rule(any_record=st.integers(0, 9).map(lambda n: n == 0))
    def lose_the_newest_journal(self, any_record: bool) -> None:
        """Mostly one that nobody has committed yet; now and then a commit record."""
        journals, marker = Writer(self.world).tables.journals, self.world.marker()
        newest = next(reversed(journals.keys()), None)
        if newest is None or marker is None:
            return
        committed = marker.settled is not None and newest <= marker.settled
        if any_record or not committed:
            self.lost.add(newest)
            Path(bare_path(journals.path(newest))).unlink()

    @precondition(lambda self: not self.record_lost and self.world.marker() is not None)
    @rule(snapshots=st.integers(1, 3))
    def roll_back_and_reset(self, snapshots: int) -> None:
        """A rollback behind the marker is refused by the next start, until somebody resets the stream."""
        marker = self.world.marker()
        if marker is None or not self.world.roll_back(snapshots):
            return
        metadata = self.world.catalog.metadata[MAIN]
        try:
            check_ancestry(metadata, marker, table=MAIN)
        except RolledBack:
            with pytest.raises(RolledBack):
                Writer(self.world).begin()
            assert self.world.catalog.metadata[MAIN] is metadata
            self._reset(self.world.catalog.positions[metadata.current_snapshot_id])

    def _reset(self, position: dict[tuple[str, int], int]) -> None:
        process = Writer(self.world)
        target = {(TOPIC, p): position.get((TOPIC, p), 0) for p in range(3)}
        self.resetting = True
        reset(process.tables, process.store, target=target, source=SOURCE, seen=standing(process.tables))
        self._check_markers()
        self.resetting = False

    # What must hold

    @invariant()
    def every_record_below_the_marker_is_in_a_table_once(self) -> None:
        marker = self.world.marker()
        below = {
            record: good
            for record, good in self.world.topic.records.items()
            if marker and record[1] < marker.offsets.get((TOPIC, record[0]), 0)
        }
        assert self.world.rows(MAIN) == Counter(record for record, good in below.items() if good)
        dead = self.world.rows(DEAD)
        assert all(count == 1 for count in dead.values()), dead
        assert {record for record, good in below.items() if not good} <= dead.keys()
        assert not any(self.world.topic.records[record] for record in dead)

    @invariant()
    def no_file_of_a_table_is_missing(self) -> None:
        for table in (MAIN, DEAD):
            missing = {path for path in self.world.references(table) if not Path(path).exists()}
            assert not missing, missing

    @invariant()
    def markers_only_go_forward(self) -> None:
        self._check_markers()

    def _check_markers(self) -> None:
        moves = self.world.catalog.marker_moves
        for table, before, after in moves[self.moves_seen :]:
            assert after is not None
            if before is not None:
                self._check_move(table, before, after)
        self.moves_seen = len(moves)

    def _check_move(self, table: str, before: Marker, after: Marker) -> None:
        """The next batch of the same epoch, or a new epoch's beginning: a fenced writer's commit would be neither."""
        new_epoch = after.at.epoch > before.at.epoch and after.at.batch == 0
        assert new_epoch or after.at == (before.at.epoch, before.at.batch + 1), (table, before.at, after.at)
        assert after.sequence_number > before.sequence_number
        if not self.resetting:
            assert all(after.offsets[tp] >= offset for tp, offset in before.offsets.items())
            assert before.watermark_us is None or (after.watermark_us or 0) >= before.watermark_us

    # The end

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        """One epoch in which nothing fails: all that was produced is in, and no file is nobody's."""
        self.world.catalog.land_late()
        writer = Writer(self.world)
        writer.begin()
        writer.stage(10_000, leftover=True)
        assert writer.journal()
        writer.commit()
        self.world.catalog.land_late()
        marker = self.world.marker()
        assert marker is not None
        assert all(marker.offsets[TOPIC, p] == end for p, end in self.world.topic.ends.items())
        self.every_record_below_the_marker_is_in_a_table_once()
        self.no_file_of_a_table_is_missing()
        self.markers_only_go_forward()
        if not self.record_lost:  # folders older than the oldest record are left to remove_orphan_files
            for table in (MAIN, DEAD):
                assert self.world.data_files(table) <= self.world.references(table)

    # How a step of a process may end

    def _pick(self, who: int, ready: Callable[[Writer], bool]) -> Writer | None:
        able = [writer for writer in self.writers if writer.marker is not None and ready(writer)]
        return able[who % len(able)] if able else None

    def _step(self, writer: Writer, plan: dict[str, list[str]], step: Callable[[], Any]) -> Any:
        """What the step answers; None when it ended the process, in one of the ways that are allowed."""
        writer.faults.planned = {operation: list(kinds) for operation, kinds in plan.items()}
        try:
            answer = step()
        except Fenced:
            self._fenced(writer)
        except (KilledError, InjectedError):
            self._end_of(writer)
        except CommitUnavailable as error:
            if not isinstance(error.__cause__, InjectedError | CommitFailedException):
                raise
            self._end_of(writer)
        else:
            writer.faults.planned = {}
            return True if answer is None else answer
        return None

    def _fenced(self, writer: Writer) -> None:
        dead = self.world.marker(DEAD)
        newest = max(m.at.epoch for m in (self.world.marker(), dead) if m)
        assert writer.epoch is None or newest > writer.epoch, "fenced by nobody"
        self._end_of(writer)

    def _end_of(self, writer: Writer) -> None:
        if writer in self.writers:
            self.writers.remove(writer)


@pytest.mark.timeout(1200)
def test_each_record_is_in_a_table_once_whatever_fails_between_any_two_steps() -> None:
    run_state_machine_as_test(
        Protocol,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
