"""The protocol as a state machine: whatever fails or dies between any two steps, each record is in a table once.

Planner, batches, committer, journals, settling, sweeping and resets are the real ones (`protocol_world`); Hypothesis
chooses who does what next, and which operation of a process fails before or after its effect, lands late, or is its
last. A failure is shrunk, and printed with the seed and the line that run it again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
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

from frazil.commit import held_letters
from frazil.commit.marker import BatchKey, Fate, Marker
from frazil.commit.marker_change import reset
from frazil.commit.reset import standing
from frazil.commit.rules import check_ancestry
from frazil.commit.settle import bare_path, sweep
from frazil.errors import (
    CommitUnavailable,
    Fenced,
    KafkaUnavailable,
    OffsetGap,
    RolledBack,
    StaleBatch,
    TopicRecreated,
)
from tests.java_rules import check_times

from .protocol_faults import Faults, InjectedError, KilledError
from .protocol_kafka import OLD, TOPIC, Good, Record
from .protocol_world import DEAD, MAIN, World, tally_of_the_world
from .protocol_writer import Writer

EXAMPLES = int(os.environ.get("FRAZIL_MODEL_EXAMPLES", "150"))
SEED = int(os.environ.get("FRAZIL_MODEL_SEED") or random.randrange(2**32))
STEPS = 50
"""An example's most steps; a soak asks for more examples."""
STEPS_AT_LEAST = 34 * EXAMPLES
"""5,000 and more in `make test`; most examples use all their steps."""
MOST_PROCESSES = 3
FAULTS = {
    "commit": ["fail-before", "fail-after", "late", "others", "overtaken", "kill-before", "kill-after"],
    "load": ["fail-before", "kill-before", "stale-1", "stale-2", "stale-3"],
    "put": ["fail-before", "fail-after", "kill-before", "kill-after", "torn"],
    "get": ["fail-before", "kill-before"],
    "delete": ["fail-before", "kill-before", "kill-after"],
    "write": ["fail-before", "fail-after", "kill-before", "kill-after", "torn"],
    "ask": ["fail-before", "kill-before"],
}


OTHERS = [
    *("append", "compact", "expire", "a late commit lands", "retention", "another topic"),
    *("a transaction", "the other topic"),
    *("another spec", "an optional column", "a required column", "an election", "a log that was cut"),
]


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
KINDS: list[Good | None] = [
    *("always", "always", "never", None),
    *("until a column is required", "once a column is required"),
]
records = st.lists(st.sampled_from(KINDS), max_size=6)
"""Good and bad ones, those that are as the schema has it when they are read, and gaps in the offsets."""
processes = st.integers(0, MOST_PROCESSES - 1)
tables = st.sampled_from([MAIN, DEAD])


class Protocol(RuleBasedStateMachine):
    """Writers that begin, stage, journal, commit, pause and die; and all that others do to their tables."""

    steps = 0
    """Of all examples together."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.mkdtemp(prefix="frazil-model-", dir=memory if memory.is_dir() else None)
        self.world = World(Path(self.folder))
        self.writers: list[Writer] = []
        self.moves_seen = 0
        self.last_epochs: dict[Faults, int] = {}
        """Of each process that ever took over."""
        self.resetting = False
        self.lost: set[BatchKey] = set()
        self.out_of_reach: set[Record] = set()
        """What retention deleted before it was committed, or before a reset could read it again: in or not in."""

    @property
    def record_lost(self) -> bool:
        """Whether a commit record is gone: that of a batch which was committed, be it after its journal was lost."""
        marker = self.world.marker()
        return marker is not None and any(marker.fate(key) is Fate.COMMITTED for key in self.lost)

    # Kafka

    @initialize(goods=records)
    def begin_with(self, goods: list[Good | None]) -> None:
        self.world.topic.produce(0, goods)

    @rule(partition=st.integers(0, 2), goods=records.filter(bool))
    def produce(self, partition: int, goods: list[Good | None]) -> None:
        self.world.topic.produce(partition, goods)

    # Writers

    @precondition(lambda self: len(self.writers) < MOST_PROCESSES)
    @rule(plan=plans, skips_gaps=st.booleans(), reads_old=st.booleans())
    def start(self, plan: dict[str, list[str]], skips_gaps: bool, reads_old: bool) -> None:
        """Take over and settle; the writer of before goes on, paused or not. One topic is declared now and then."""
        writer = Writer(self.world, skips_gaps=skips_gaps, reads_old=reads_old)
        self.writers.append(writer)
        self._step(writer, plan, writer.begin)

    @rule(who=processes, most=st.integers(1, 9), leftover=st.booleans(), plan=plans)
    def go_on(self, who: int, most: int, leftover: bool, plan: dict[str, list[str]]) -> None:
        """One writer's next step: plan and stage up to `most` records, journal, or commit."""
        writer = self._pick(who, lambda _: True)
        if writer is None:
            return
        if writer.staged is None:
            self._step(writer, plan, lambda: writer.stage(most, leftover=leftover))
        elif writer.journaled:
            self._step(writer, plan, writer.commit)
        elif self._step(writer, plan, writer.journal) is False:
            self._fenced(writer)

    @rule(who=processes, most=st.integers(1, 9), goods=records)
    def run_a_batch(self, who: int, most: int, goods: list[Good | None]) -> None:
        """All three at once, with something new to read, so that long histories are made too."""
        self.world.topic.produce(len(goods) % 3, goods)
        writer = self._pick(who, lambda w: w.staged is None)
        if writer and self._step(writer, {}, lambda: writer.stage(most, leftover=False)):
            journaled = self._step(writer, {}, writer.journal)
            if journaled:
                self._step(writer, {}, writer.commit)
            elif journaled is False:
                self._fenced(writer)

    @rule(who=processes)
    def find_a_batch_stale(self, who: int) -> None:
        """What a stage may end with for many reasons, also after somebody else took over and swept its files."""
        writer = self._pick(who, lambda w: not w.journaled)
        if writer:
            writer.stale()

    @rule(who=processes, plan=plans)
    def begin_again(self, who: int, plan: dict[str, list[str]]) -> None:
        """A writer whose batch was stale goes on with a new epoch, at once or after it was paused and replaced."""
        stale = [writer for writer in self.writers if writer.epoch is not None and not writer.began]
        if stale:
            writer = stale[who % len(stale)]
            self._step(writer, plan, writer.begin)

    @rule(who=processes)
    def kill(self, who: int) -> None:
        if self.writers:
            self.writers.pop(who % len(self.writers))

    # The others

    @rule(seconds=st.sampled_from([1, 5, 40]), skew_ms=st.sampled_from([0, -3_600_000, 3_600_000]))
    def time_passes(self, seconds: int, skew_ms: int) -> None:
        """Planners look again, silent partitions become idle; and the wall clock may step, back as well."""
        self.world.clock.wait(seconds)
        self.world.skew_ms = skew_ms

    @rule(what=st.sampled_from(OTHERS), table=tables, partition=st.integers(0, 2))
    def others(self, what: str, table: str, partition: int) -> None:
        """What appends, compacts and expires beside us, what changes the table, the topic, and what lands late."""
        world = self.world
        acts: dict[str, Callable[[], None]] = {
            "append": world.foreign_append,
            "compact": lambda: world.compact(table),
            "expire": lambda: world.expire(table),
            "a late commit lands": world.catalog.land_late,
            "another spec": world.change_spec,
            "an optional column": lambda: world.add_column(required=False),
            "a required column": lambda: world.add_column(required=True),
            "retention": lambda: self._retention(partition),
            "another topic": self._another_topic_of_the_name,
            "a transaction": lambda: self._transaction(partition),
            "the other topic": lambda: setattr(world.topic, "old_end", world.topic.old_end + 1),
            "an election": lambda: world.topic.elect(partition),
            "a log that was cut": lambda: self._a_log_that_was_cut(partition, grows=table == MAIN),
        }
        acts[what]()

    def _retention(self, partition: int) -> None:
        """Kafka deletes the older half of what a partition has: committed or not."""
        topic, marker = self.world.topic, self.world.marker()
        first, end = topic.first.get(partition, 0), topic.ends.get(partition, 0)
        topic.first[partition] = (first + end + 1) // 2
        self._give_up(partition, marker.offsets.get((TOPIC, partition), 0) if marker else 0)

    def _another_topic_of_the_name(self) -> None:
        """A topic that was deleted and made again is refused by everybody, and nothing is written."""
        if self.world.marker() is None:
            return
        before = dict(self.world.catalog.metadata)
        self.world.topic.topic_id = "topic-2"
        with pytest.raises(TopicRecreated):
            Writer(self.world).begin()
        for writer in [w for w in self.writers if w.began and w.staged is None][:1]:
            with contextlib.suppress(TopicRecreated, OffsetGap):
                assert not writer.stage(5, leftover=True), "read from a topic that is not the stream's"
            self._end_of(writer)
        assert self.world.catalog.metadata == before
        self.world.topic.topic_id = "topic-1"

    def _transaction(self, partition: int) -> None:
        """Begins where none is open, and commits where one is."""
        topic = self.world.topic
        if partition in topic.pending:
            topic.produce(partition, [])
        else:
            topic.pending[partition] = 3

    def _a_log_that_was_cut(self, partition: int, *, grows: bool) -> None:
        """Whoever read on from where it was cut is refused, whatever it grows to; then the records come back."""
        topic, marker, tp = self.world.topic, self.world.marker(), (TOPIC, partition)
        read = marker.offsets.get(tp, 0) if marker else 0
        at = (topic.first.get(partition, 0) + read) // 2
        if marker is None or at >= read or tp not in marker.leader_epochs:
            return
        records, end, leaders = dict(topic.records), topic.ends[partition], list(topic.leaders.get(partition, [(0, 0)]))
        topic.cut(partition, at)
        if grows:
            topic.produce(partition, ["always"] * (end - at + 1))
        with pytest.raises(OffsetGap):
            Writer(self.world).begin()
        for writer in [w for w in self.writers if w.planner and w.staged is None]:
            assert writer.planner
            if writer.planner.position.offsets.get(tp, 0) > at:
                with pytest.raises(OffsetGap):
                    writer.stage(5, leftover=True)
                self._end_of(writer)
        epoch = topic.leader_epoch(partition) + 1
        topic.records, topic.ends[partition] = records, end
        topic.leaders[partition] = [*leaders, (epoch, end)]

    @rule(plan=plans)
    def sweep_daily(self, plan: dict[str, list[str]]) -> None:
        """Maintenance sweeps beside whatever runs."""
        marker = self.world.marker()
        if marker:
            process = Writer(self.world)
            self._step(process, plan, lambda: sweep(process.tables, below_epoch=marker.at.epoch))

    @rule(plan=plans, keep=st.integers(0, 2), most=st.integers(1, 4))
    def fold_records(self, plan: dict[str, list[str]], keep: int, most: int) -> None:
        """Beside whatever runs, cut short anywhere: no record of a committed batch is lost by it, or told twice."""
        marker = self.world.marker()
        if marker is None:
            return
        before = self._records()
        process = Writer(self.world)
        self._step(process, plan, lambda: sum(process.tables.journals.fold(marker, keep=keep, most=most)))
        assert self._records() == before

    def _records(self) -> list[BatchKey]:
        return [record.key for record in Writer(self.world).tables.journals.records()]

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
        first = self.world.topic.first
        target = {(TOPIC, p): max(position.get((TOPIC, p), 0), first.get(p, 0)) for p in self.world.topic.ends}
        self.resetting = True
        source = self.world.topic.identity
        reset(process.tables, target=target, source=source, seen=standing(process.tables))
        for partition in self.world.topic.ends:
            self._give_up(partition, position.get((TOPIC, partition), 0))
        self._check_markers()
        self.resetting = False

    def _give_up(self, partition: int, position: int) -> None:
        first = self.world.topic.first.get(partition, 0)
        self.out_of_reach |= {(p, o) for p, o in self.world.topic.records if p == partition and position <= o < first}

    # What must hold

    @invariant()
    def every_record_below_the_marker_is_in_a_table_once(self) -> None:
        marker = self.world.marker()
        below = {
            record: good
            for record, good in self.world.topic.records.items()
            if marker and record[1] < marker.offsets.get((TOPIC, record[0]), 0) and record not in self.out_of_reach
        }
        rows, dead = self.world.rows(MAIN), self.world.rows(DEAD)
        assert all(count == 1 for count in (*rows.values(), *dead.values())), (rows, dead)
        assert not rows.keys() & dead.keys(), "what is a dead letter stays one, whatever a later schema says of it"
        assert rows.keys() - self.out_of_reach <= below.keys() <= rows.keys() | dead.keys()
        assert not any(self.world.topic.records[record] == "never" for record in rows)
        assert not any(self.world.topic.records[record] == "always" for record in dead)

    @invariant()
    def no_file_of_a_table_is_missing(self) -> None:
        for table in (MAIN, DEAD):
            missing = {path for path in self.world.references(table) if not Path(path).exists()}
            assert not missing, missing

    @invariant()
    def java_reads_the_metadata(self) -> None:
        for metadata in self.world.catalog.metadata.values():
            check_times(metadata)

    @invariant()
    def markers_only_go_forward(self) -> None:
        Protocol.steps += 1
        self._check_markers()

    def _check_markers(self) -> None:
        moves = self.world.catalog.marker_moves
        for table, before, after, by in moves[self.moves_seen :]:
            assert after is not None
            if before is not None:
                self._check_move(table, before, after)
            if table == MAIN and by is not None and after.at.batch == 0:
                self._check_take_over(by, before, after)
        self.moves_seen = len(moves)

    def _check_move(self, table: str, before: Marker, after: Marker) -> None:
        """The next batch of the same epoch, or a new epoch's beginning: a fenced writer's commit would be neither."""
        new_epoch = after.at.epoch > before.at.epoch and after.at.batch == 0
        assert new_epoch or after.at == (before.at.epoch, before.at.batch + 1), (table, before.at, after.at)
        assert after.sequence_number > before.sequence_number
        if not self.resetting:
            assert all(after.offsets[tp] >= offset for tp, offset in before.offsets.items())
            assert before.watermark_us is None or (after.watermark_us or 0) >= before.watermark_us

    def _check_take_over(self, by: Faults, before: Marker | None, after: Marker) -> None:
        """Once from whoever is there, then from itself alone: no successor is fenced by its predecessor."""
        last = self.last_epochs.get(by)
        assert last is None or (before is not None and before.at.epoch == last), (last, before, after.at)
        self.last_epochs[by] = after.at.epoch

    # The end

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        """One epoch in which nothing fails: all that was produced is in, and no file is nobody's."""
        self.world.catalog.land_late()
        self.world.clock.wait(60)
        writer = Writer(self.world, skips_gaps=True)
        writer.begin()
        while writer.stage(10_000, leftover=True):
            assert writer.journal()
            writer.commit()
            self.world.clock.wait(60)
        self.world.catalog.land_late()
        marker = self.world.marker()
        assert marker is not None
        assert all(marker.offsets[TOPIC, p] == end for p, end in self.world.topic.ends.items())
        assert marker.offsets[OLD, 0] == self.world.topic.old_end
        self.every_record_below_the_marker_is_in_a_table_once()
        self.no_file_of_a_table_is_missing()
        self.markers_only_go_forward()
        if not self.record_lost:  # folders older than the oldest record are left to remove_orphan_files
            for table in (MAIN, DEAD):
                assert self.world.data_files(table) <= self.world.references(table)

    # How a step of a process may end

    def _pick(self, who: int, ready: Callable[[Writer], bool]) -> Writer | None:
        able = [writer for writer in self.writers if writer.began and ready(writer)]
        return able[who % len(able)] if able else None

    def _step(self, writer: Writer, plan: dict[str, list[str]], step: Callable[[], Any]) -> Any:
        """What the step answers; None when it ended the process, in one of the ways that are allowed."""
        writer.faults.planned = {operation: list(kinds) for operation, kinds in plan.items()}
        try:
            answer = step()
        except Fenced:
            self._fenced(writer)
        except StaleBatch:
            writer.stale()
        except (KilledError, InjectedError, KafkaUnavailable, OffsetGap):
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
def test_each_record_is_in_a_table_once_whatever_fails_between_any_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"FRAZIL_MODEL_SEED={SEED} FRAZIL_MODEL_EXAMPLES={EXAMPLES}")
    Protocol.steps = 0
    monkeypatch.setattr(held_letters, "tally", tally_of_the_world)
    run_state_machine_as_test(
        seed(SEED)(Protocol),  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Protocol.steps >= STEPS_AT_LEAST
