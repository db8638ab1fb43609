"""The protocol as a state machine: whatever fails or dies between any two steps, each record is in a table once.

Planner, batches, committer, journals, settling, sweeping and resets are the real ones (`protocol_world`); Hypothesis
chooses who does what next, and which operation of a process fails before or after its effect, lands late, or is its
last. A failure is shrunk, and printed with the seed and the line that run it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

from frazil.commit import committer, marker_changes
from frazil.commit.commit_checks import check_ancestry, row_count
from frazil.commit.journal import bare_path
from frazil.commit.marker import BatchKey, BatchOutcome, Marker
from frazil.commit.marker_changes import reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.errors import (
    AdoptionRequired,
    CommitUnavailable,
    Fenced,
    KafkaUnavailable,
    OffsetGap,
    RolledBack,
    StaleBatch,
    TopicRecreated,
)
from frazil.offsets.spans import TopicPartition
from tests.java_rules import check_times

from .protocol_faults import Faults, InjectedError, KilledError
from .protocol_kafka import Good, Record, Topic
from .protocol_signals import Signals
from .protocol_world import DEAD, EVENTS, MAIN, ORDERS, STREAMS, MarkerMove, World, tally_of_the_world
from .protocol_writer import Writer

EXAMPLES = int(os.environ.get("FRAZIL_MODEL_EXAMPLES", "30"))
SEED = int(os.environ["FRAZIL_TEST_SEED"])
STEPS = 50
"""An example's most steps; a soak asks for more examples."""
MIN_STEPS = 34 * EXAMPLES
"""1,020 in `make test`, of other examples for each commit; most examples use all their steps."""
MAX_PROCESSES = 4
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
    *("append", "compact", "expire", "a late commit lands", "retention", "another topic", "another name"),
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
processes = st.integers(0, MAX_PROCESSES - 1)
tables = st.sampled_from([MAIN, DEAD])
streams = st.sampled_from([EVENTS, EVENTS, ORDERS])


@dataclass
class Forgotten:
    """The position and tables of a stream when it was forgotten."""

    offsets: Mapping[TopicPartition, int]
    rows: Counter[Record]


class Protocol(RuleBasedStateMachine):
    """Writers of two streams that begin, stage, journal, commit and die; and all that others do to their tables."""

    steps = 0
    """Steps of all examples together."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = tempfile.mkdtemp(prefix="frazil-model-", dir=memory if memory.is_dir() else None)
        self.world = World(Path(self.folder))
        self.signals = Signals(self.world)
        self.declared = {EVENTS}
        """The other stream begins later, if it does."""
        self.world.unread = self.signals.unread
        self.forgotten: dict[str, Forgotten] = {}
        """Streams that were forgotten, and have not begun again."""
        self.ever_forgotten: set[str] = set()
        self.writers: list[Writer] = []
        self.moves_seen = 0
        self.last_epochs: dict[Faults, int] = {}
        """The last epoch of each process that ever took over."""
        self.highest: dict[tuple[str, str], int] = {}
        """The highest epoch that each stream ever had in each table."""
        self.resetting = False
        self.lost: set[tuple[str, BatchKey]] = set()
        self.unreachable_records: set[Record] = set()
        """What retention deleted before it was committed, or before a reset could read it again: in or not in."""

    @property
    def record_lost(self) -> bool:
        """Whether a commit record is gone: that of a batch which was committed, be it after its journal was lost."""
        markers = {stream: self.world.marker(stream) for stream in STREAMS}
        return any((m := markers[stream]) and m.outcome_of(key) is BatchOutcome.COMMITTED for stream, key in self.lost)

    # Kafka

    @initialize(goods=records)
    def begin_with(self, goods: list[Good | None]) -> None:
        """Each partition has a record, without which no watermark is known."""
        for topic in self.world.topics.values():
            for partition in list(topic.ends):
                topic.produce(partition, ["always", *goods])

    @rule(stream=streams, partition=st.integers(0, 2), goods=records.filter(bool))
    def produce(self, stream: str, partition: int, goods: list[Good | None]) -> None:
        self.world.topics[stream].produce(partition, goods)

    # Writers

    @precondition(lambda self: len(self.writers) < MAX_PROCESSES)
    @rule(stream=streams, plan=plans, skips_gaps=st.booleans(), reads_old=st.sampled_from([False, False, True]))
    def start(self, stream: str, plan: dict[str, list[str]], skips_gaps: bool, reads_old: bool) -> None:
        """Take over and settle; the previous writer continues, paused or not. Sometimes only one topic is declared."""
        self.declared.add(stream)
        self._ask_for_adoption(stream)
        writer = Writer(self.world, stream, skips_gaps=skips_gaps, reads_old=reads_old)
        self.writers.append(writer)
        self._begin(writer, plan)

    def _begin(self, writer: Writer, plan: dict[str, list[str]]) -> None:
        self._step(writer, plan, writer.begin)
        self._recall()

    def _recall(self) -> None:
        """A stream that has a marker is not forgotten, or has begun again."""
        self.forgotten = {stream: past for stream, past in self.forgotten.items() if not self.world.marker(stream)}

    @rule(who=processes, limit=st.integers(1, 9), leftover=st.booleans(), plan=plans)
    def go_on(self, who: int, limit: int, leftover: bool, plan: dict[str, list[str]]) -> None:
        """One writer's next step: plan and stage up to `most` records, journal, or commit."""
        writer = self._pick(who, lambda _: True)
        if writer is None:
            return
        if writer.staged is None:
            self._step(writer, plan, lambda: writer.stage(limit, leftover=leftover))
        elif writer.journaled:
            self._step(writer, plan, writer.commit)
        elif self._step(writer, plan, writer.journal) is False:
            self._fenced(writer)

    @rule(who=processes, limit=st.integers(1, 9), goods=records)
    def run_a_batch(self, who: int, limit: int, goods: list[Good | None]) -> None:
        """Run all three steps with new records, so that long histories occur too."""
        if writer := self._pick(who, lambda w: w.staged is None):
            self._run_a_batch(writer, limit, goods)

    @rule(limit=st.integers(1, 9), goods=records, times=st.integers(1, 3))
    def both_streams_write(self, limit: int, goods: list[Good | None], times: int) -> None:
        """A while in which nothing fails, and windows complete."""
        for stream in STREAMS * times:
            able = [w for w in self._writers_of(stream) if w.began and w.staged is None]
            if not able and len(self.writers) < MAX_PROCESSES:
                self.start(stream=stream, plan={}, skips_gaps=True, reads_old=False)
                able = [w for w in self._writers_of(stream)[-1:] if w.began]
            for writer in able[-1:]:
                self._run_a_batch(writer, limit, goods)
            self.signals.observe(self.declared)

    def _run_a_batch(self, writer: Writer, limit: int, goods: list[Good | None]) -> None:
        writer.topic.produce(len(goods) % 3, goods)
        if self._step(writer, {}, lambda: writer.stage(limit, leftover=False)):
            journaled = self._step(writer, {}, writer.journal)
            if journaled:
                self._step(writer, {}, writer.commit)
            elif journaled is False:
                self._fenced(writer)

    @rule(who=processes)
    def find_a_batch_stale(self, who: int) -> None:
        """A stage may end like this for many reasons, even after another writer took over and swept its files."""
        writer = self._pick(who, lambda w: not w.journaled)
        if writer:
            writer.stale()

    @rule(who=processes, plan=plans)
    def begin_again(self, who: int, plan: dict[str, list[str]]) -> None:
        """A writer whose batch was stale begins a new epoch, at once or after it was paused and replaced."""
        stale = [writer for writer in self.writers if writer.epoch is not None and not writer.began]
        if stale:
            self._begin(stale[who % len(stale)], plan)

    @rule(who=processes)
    def kill(self, who: int) -> None:
        if self.writers:
            self.writers.pop(who % len(self.writers))

    # The others

    @rule(seconds=st.sampled_from([1, 5, 40]), skew_ms=st.sampled_from([0, -3_600_000, 3_600_000]))
    def time_passes(self, seconds: int, skew_ms: int) -> None:
        """Planners poll again, silent partitions become idle, and the wall clock may jump, even backwards."""
        self.world.clock.wait(seconds)
        self.world.skew_ms = skew_ms

    @rule(what=st.sampled_from(OTHERS), stream=streams, table=tables, partition=st.integers(0, 2))
    def others(self, what: str, stream: str, table: str, partition: int) -> None:
        """Other programs append, compact and expire; the table or topic changes; late commits land."""
        world, topic = self.world, self.world.topics[stream]
        operations: dict[str, Callable[[], None]] = {
            "append": world.foreign_append,
            "compact": lambda: world.compact(table),
            "expire": lambda: world.expire(table),
            "a late commit lands": world.catalog.land_late,
            "another spec": world.change_spec,
            "an optional column": lambda: world.add_column(required=False),
            "a required column": lambda: world.add_column(required=True),
            "retention": lambda: self._retention(stream, partition),
            "another topic": lambda: self._another_topic_of_the_name(stream),
            "another name": lambda: self._another_name(stream),
            "a transaction": lambda: self._transaction(topic, partition),
            "the other topic": lambda: setattr(topic, "old_end", topic.old_end + 1),
            "an election": lambda: topic.elect(partition),
            "a log that was cut": lambda: self._a_log_that_was_cut(stream, partition, grows=table == MAIN),
        }
        operations[what]()
        self._recall()

    def _retention(self, stream: str, partition: int) -> None:
        """Kafka deletes the older half of what a partition has: committed or not."""
        topic = self.world.topics[stream]
        first, end = topic.first.get(partition, 0), topic.ends.get(partition, 0)
        topic.first[partition] = (first + end + 1) // 2
        self._give_up(stream, partition, self._position(stream).get((stream, partition), 0))

    def _position(self, stream: str) -> Mapping[TopicPartition, int]:
        """The stream's position, or its last one before it was forgotten."""
        if stream in self.forgotten:
            return self.forgotten[stream].offsets
        marker = self.world.marker(stream)
        return marker.offsets if marker else {}

    def _another_topic_of_the_name(self, stream: str) -> None:
        """Everybody refuses a recreated topic, and nothing is written."""
        if self.world.marker(stream) is None:
            return
        before, topic = dict(self.world.catalog.metadata), self.world.topics[stream]
        topic.generation = 2
        with pytest.raises(TopicRecreated):
            Writer(self.world, stream).begin()
        for writer in [w for w in self._writers_of(stream) if w.began and w.staged is None][:1]:
            with contextlib.suppress(TopicRecreated, OffsetGap):
                assert not writer.stage(5, leftover=True), "read from a topic that is not the stream's"
            self._end_of(writer)
        assert self.world.catalog.metadata == before
        topic.generation = 1

    def _another_name(self, stream: str) -> None:
        """A stream that was renamed would read all of its topic again: it is refused, and nothing is written."""
        forgotten_in_vain = stream in self.forgotten and not row_count(self.world.catalog.metadata[MAIN])
        if not self._position(stream) or forgotten_in_vain:
            return
        before = dict(self.world.catalog.metadata)
        renamed = Writer(self.world, stream)
        renamed.tables = dataclasses.replace(renamed.tables, stream=f"{stream}-renamed")
        with pytest.raises(AdoptionRequired):
            renamed.begin()
        assert self.world.catalog.metadata == before

    def _writers_of(self, stream: str) -> list[Writer]:
        return [writer for writer in self.writers if writer.stream == stream]

    def _transaction(self, topic: Topic, partition: int) -> None:
        """Begin a transaction if none is open, otherwise commit the open one."""
        if partition in topic.pending:
            topic.produce(partition, [])
        else:
            topic.pending[partition] = 3

    def _a_log_that_was_cut(self, stream: str, partition: int, *, grows: bool) -> None:
        """Truncate a log: a reader that continues there is refused, even after it grows. Then the records come back."""
        topic, marker, tp = self.world.topics[stream], self.world.marker(stream), (stream, partition)
        read = marker.offsets.get(tp, 0) if marker else 0
        at = (topic.first.get(partition, 0) + read) // 2
        if marker is None or at >= read or tp not in marker.leader_epochs:
            return
        records, end, leaders = dict(topic.records), topic.ends[partition], list(topic.leaders.get(partition, [(0, 0)]))
        topic.cut(partition, at)
        if grows:
            topic.produce(partition, ["always"] * (end - at + 1))
        with pytest.raises(OffsetGap):
            Writer(self.world, stream).begin()
        for writer in [w for w in self._writers_of(stream) if w.planner and w.staged is None]:
            assert writer.planner
            if writer.planner.position.offsets.get(tp, 0) > at:
                with pytest.raises(OffsetGap):
                    writer.stage(5, leftover=True)
                self._end_of(writer)
        epoch = topic.leader_epoch(partition) + 1
        topic.records, topic.ends[partition] = records, end
        topic.leaders[partition] = [*leaders, (epoch, end)]

    @rule(stream=streams, plan=plans, keep=st.integers(0, 2), limit=st.integers(1, 4))
    def fold_records(self, stream: str, plan: dict[str, list[str]], keep: int, limit: int) -> None:
        """Next to whatever runs, cut short anywhere: no record of a committed batch is lost by it, or reported "
        "twice."""
        marker = self.world.marker(stream)
        if marker is None:
            return
        before = self._records(stream)
        process = Writer(self.world, stream)
        self._step(process, plan, lambda: sum(process.tables.journals.fold(marker, keep=keep, limit=limit)))
        assert self._records(stream) == before

    def _records(self, stream: str) -> list[BatchKey]:
        return [record.key for record in Writer(self.world, stream).tables.journals.records()]

    @rule(stream=streams, any_record=st.integers(0, 9).map(lambda n: n == 0))
    def lose_the_newest_journal(self, stream: str, any_record: bool) -> None:
        """Lose usually a journal that is not committed yet; sometimes a commit record."""
        journals, marker = Writer(self.world, stream).tables.journals, self.world.marker(stream)
        newest = next(reversed(journals.keys()), None)
        if newest is None or marker is None:
            return
        committed = marker.settled is not None and newest <= marker.settled
        if any_record or not committed:
            self.lost.add((stream, newest))
            Path(bare_path(journals.path(newest))).unlink()

    @precondition(lambda self: not self.record_lost)
    @rule(snapshots=st.integers(1, 3), order=st.permutations(STREAMS))
    def roll_back_and_reset(self, snapshots: int, order: list[str]) -> None:
        """A rollback behind a marker is refused by the stream's next start, until a user resets that stream."""
        if not self.world.roll_back(snapshots):
            return
        self.signals.rolled_back()
        head = self.world.catalog.metadata[MAIN].current_snapshot_id
        then = self.world.catalog.positions[head]
        for stream, past in self.forgotten.items():
            past.offsets, past.rows = then.get(stream, {}), self.world.rows(MAIN, stream)
        for stream in order:
            metadata, marker = self.world.catalog.metadata[MAIN], self.world.marker(stream)
            try:
                if marker:
                    check_ancestry(metadata, marker, table=MAIN)
            except RolledBack:
                with pytest.raises(RolledBack):
                    Writer(self.world, stream).begin()
                assert self.world.catalog.metadata[MAIN] is metadata
                self._reset(stream, then.get(stream, {}))

    @precondition(lambda self: not self.record_lost)
    @rule(stream=streams)
    def reset_in_place(self, stream: str) -> None:
        """`frazil reset --to marker`: the writer that runs is fenced, and nothing else changes."""
        if marker := self.world.marker(stream):
            self._reset(stream, marker.offsets)

    def _reset(self, stream: str, position: Mapping[TopicPartition, int]) -> None:
        process, topic = Writer(self.world, stream), self.world.topics[stream]
        target = {(stream, p): max(position.get((stream, p), 0), topic.first.get(p, 0)) for p in topic.ends}
        self.resetting = True
        with self._leaves_the_other(stream):
            reset(process.tables, target=target, source=topic.identity, seen=read_state_before_reset(process.tables))
        self._give_up_below(stream, position)
        self._check_markers()
        self.resetting = False

    @contextlib.contextmanager
    def _leaves_the_other(self, stream: str) -> Iterator[None]:
        """Nothing that frazil keeps of the other stream changes, nor any row."""
        (other,) = set(STREAMS) - {stream}

        def kept() -> tuple[Any, ...]:
            rows = self.world.rows(MAIN), self.world.rows(DEAD)
            return (self.world.marker(other), self.world.marker(other, DEAD), self._records(other), rows)

        before = kept()
        yield
        assert kept() == before

    def _give_up_below(self, stream: str, position: Mapping[TopicPartition, int]) -> None:
        """Accept the loss of the records after a position that Kafka no longer has."""
        for partition in self.world.topics[stream].ends:
            self._give_up(stream, partition, position.get((stream, partition), 0))

    def _give_up(self, stream: str, partition: int, position: int) -> None:
        topic = self.world.topics[stream]
        first = topic.first.get(partition, 0)
        self.unreachable_records |= {(t, p, o) for t, p, o in topic.records if p == partition and position <= o < first}

    @precondition(lambda self: not self.record_lost)
    @rule(stream=streams, plan=plans, now=st.booleans())
    def forget(self, stream: str, plan: dict[str, list[str]], now: bool) -> None:
        """Rarely. The stream's rows stay, and its writers are fenced; what fails half-way is done again."""
        marker = self.world.marker(stream)
        if marker is None or not now:
            return
        past = Forgotten(marker.offsets, self.world.rows(MAIN, stream))
        process = Writer(self.world, stream)
        with self._leaves_the_other(stream):
            self._step(process, plan, lambda: marker_changes.forget(process.tables, state=process.tables.state))
            process = Writer(self.world, stream)
            marker_changes.forget(process.tables, state=process.tables.state)
        assert self.world.marker(stream) is None
        assert self.world.marker(stream, DEAD) is None
        self.forgotten[stream] = past
        self.ever_forgotten.add(stream)
        self.lost = {(of, key) for of, key in self.lost if of != stream}
        self.declared -= {stream}

    def _ask_for_adoption(self, stream: str) -> None:
        """A stream does not begin by itself in a table with rows if it was forgotten, or no stream is known."""
        unknown = not any(self.world.marker(of) for of in STREAMS)
        if row_count(self.world.catalog.metadata[MAIN]) and (stream in self.forgotten or unknown):
            self._adopt(stream)
        elif stream in self.forgotten:  # it begins at what Kafka has, or another time if it is killed before it does
            self._give_up_below(stream, {})

    def _adopt(self, stream: str) -> None:
        """An operator chooses the position: here, the stream's former one."""
        process, metadata = Writer(self.world, stream), self.world.catalog.metadata[MAIN]
        with pytest.raises(AdoptionRequired):
            process.begin()
        assert self.world.catalog.metadata[MAIN] is metadata
        known, topic = self._position(stream), process.topic
        begin = {(stream, p): max(known.get((stream, p), 0), topic.first.get(p, 0)) for p in topic.ends}
        marker_changes.adopt(process.tables, offsets=begin, source=topic.identity)
        self._give_up_below(stream, known)
        self.forgotten.pop(stream, None)

    @rule(behind=st.integers(0, 3))
    def signal(self, behind: int) -> None:
        """The windows that all streams have passed, and those that any stream's late rows reopened."""
        self.signals.observe(self.declared, behind=behind)

    # What must hold

    @invariant()
    def every_record_below_the_marker_is_in_a_table_once(self) -> None:
        for stream in STREAMS:
            self._check_records(stream)

    def _check_records(self, stream: str) -> None:
        position, topic = self._position(stream), self.world.topics[stream]
        below = {
            record: good
            for record, good in topic.records.items()
            if record[2] < position.get(record[:2], 0) and record not in self.unreachable_records
        }
        rows, dead = self.world.rows(MAIN, stream), self.world.rows(DEAD, stream)
        if stream in self.forgotten:
            assert rows == self.forgotten[stream].rows, "the rows of a stream that is forgotten stay"
        assert all(count == 1 for count in (*rows.values(), *dead.values())), (rows, dead)
        assert not rows.keys() & dead.keys(), "what is a dead letter stays one, whatever a later schema says of it"
        assert rows.keys() - self.unreachable_records <= below.keys() <= rows.keys() | dead.keys()
        assert not any(topic.records[record] == "never" for record in rows)
        assert not any(topic.records[record] == "always" for record in dead)

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
        for move in moves[self.moves_seen :]:
            assert move.by is None or move.by.stream == move.stream, f"a process moved another stream's marker: {move}"
            if move.after is not None:
                self._check_epoch(move, move.after)
        self.moves_seen = len(moves)

    def _check_epoch(self, move: MarkerMove, after: Marker) -> None:
        """Check that no epoch is used twice, even after the stream was forgotten."""
        where = (move.stream, move.table)
        highest = self.highest.get(where, 0)
        assert after.key.epoch > highest if move.before is None else after.key.epoch >= highest, (move, highest)
        self.highest[where] = after.key.epoch
        if move.before is not None:
            self._check_move(move.table, move.before, after)
        if move.table == MAIN and move.by is not None and after.key.batch == 0:
            self._check_take_over(move.by, move.before, after)

    def _check_move(self, table: str, before: Marker, after: Marker) -> None:
        """The next batch of the same epoch, or a new epoch's beginning: a fenced writer's commit would be neither."""
        new_epoch = after.key.epoch > before.key.epoch and after.key.batch == 0
        assert new_epoch or after.key == (before.key.epoch, before.key.batch + 1), (table, before.key, after.key)
        assert after.sequence_number > before.sequence_number
        if not self.resetting:
            assert before.offsets.keys() <= after.offsets.keys(), (table, before, after)
            assert all(after.offsets[tp] >= offset for tp, offset in before.offsets.items())
            assert before.watermark_us is None or (after.watermark_us or 0) >= before.watermark_us

    def _check_take_over(self, by: Faults, before: Marker | None, after: Marker) -> None:
        """Takes over from another once, then only from itself: no successor is fenced by its predecessor."""
        last = self.last_epochs.get(by)
        assert last is None or (before is not None and before.key.epoch == last), (last, before, after.key)
        self.last_epochs[by] = after.key.epoch

    # The end

    def teardown(self) -> None:
        try:
            self._first_excluded_batch()
        finally:
            shutil.rmtree(self.folder)

    def _first_excluded_batch(self) -> None:
        """Run one epoch per stream without faults: all produced records are in a table, and no file is orphaned."""
        self.world.catalog.land_late()
        self.world.clock.wait(60)
        for stream in sorted(self.declared):
            self._write_to_the_end(stream)
        self.world.catalog.land_late()
        self.every_record_below_the_marker_is_in_a_table_once()
        self.no_file_of_a_table_is_missing()
        self.markers_only_go_forward()
        self.signals.observe(self.declared)
        if not (self.record_lost or self.ever_forgotten):  # those files are left to remove_orphan_files
            for table in (MAIN, DEAD):
                assert self.world.data_files(table) <= self.world.references(table)

    def _write_to_the_end(self, stream: str) -> None:
        self._ask_for_adoption(stream)
        writer = Writer(self.world, stream, skips_gaps=True)
        writer.begin()
        self._recall()
        while writer.stage(10_000, leftover=True):
            assert writer.journal()
            writer.commit()
            self.world.clock.wait(60)
        marker, topic = self.world.marker(stream), self.world.topics[stream]
        assert marker is not None
        assert all(marker.offsets[stream, p] == end for p, end in topic.ends.items())
        assert marker.offsets[topic.old, 0] == topic.old_end

    # How a step of a process may end

    def _pick(self, who: int, ready: Callable[[Writer], bool]) -> Writer | None:
        able = [writer for writer in self.writers if writer.began and ready(writer)]
        return able[who % len(able)] if able else None

    def _step(self, writer: Writer, plan: dict[str, list[str]], step: Callable[[], Any]) -> Any:
        """Return the step's result; None if the step ended the process in an allowed way."""
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
        found = [self.world.marker(writer.stream, table) for table in (MAIN, DEAD)]
        newest = max((m.key.epoch for m in found if m), default=None)
        forgotten = writer.stream in self.ever_forgotten and self.world.marker(writer.stream) is None
        assert writer.epoch is None or forgotten or (newest or 0) > writer.epoch, "fenced by nobody"
        self._end_of(writer)

    def _end_of(self, writer: Writer) -> None:
        if writer in self.writers:
            self.writers.remove(writer)


@pytest.mark.timeout(1200)
def test_each_record_is_in_a_table_once_whatever_fails_between_any_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    Protocol.steps = 0
    monkeypatch.setattr(committer, "tally_rows", tally_of_the_world)
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
    assert Protocol.steps >= MIN_STEPS
