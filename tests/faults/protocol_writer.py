"""One writer process in the protocol model, step by step: the real planner, batch and committer, without Spark."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, keep_topics
from frazil.commit.settle import SettleResult, highest_epoch, settle
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import delete_fenced_batch, sweep_batch
from frazil.errors import Fenced
from frazil.ingest.contract import RangeProgress, StageContext, StagedFile, StageResult, StageTask
from frazil.kafka.logs import check_no_gap, check_not_truncated, describe_lost_ranges, find_truncations
from frazil.spec.model import StreamSpec
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import TaskAnswer
from frazil.stream.notices import Notices
from frazil.stream.plan import BatchPolicy, Position
from frazil.stream.planner import BatchPlanner, PlannerSettings
from frazil.stream.progress import ProgressFolder
from frazil.stream.route import StreamRoute
from frazil.stream.stage_rows import StageRows

from .protocol_faults import Faults
from .protocol_kafka import ProcessKafka, Record, Topic, is_good, time_us, window_of
from .protocol_world import MAIN, STREAMS, World

IDLE_S = 30.0
SPECS = {
    stream: StreamSpec.model_validate(
        {
            "name": stream,
            "source": {"bootstrap-servers": "nowhere:9092", "topics": stream},
            "table": MAIN,
            "schema": {"n": "timestamptz"},
            "event-time": "n",
            "complete": "hour",
            "complete-from": "1970-01-01T00:00:00Z",
        }
    )
    for stream in STREAMS
}


@dataclass(slots=True)
class ModelStage:
    """Stages empty files that stand for records. `leftover` also leaves the files of a failed attempt."""

    world: World
    topic: Topic
    plans: Sequence[str]
    leftover: bool

    def __call__(self, work: StageRows) -> tuple[TaskAnswer, ...]:
        tasks = [StageTask.from_json(json.loads(plan)) for plan in self.plans]
        return tuple(TaskAnswer(self._task(task, work.context), seconds=0.0) for task in tasks)

    def _task(self, task: StageTask, context: StageContext) -> StageResult:
        """Return the result of a task: a file of good records, and a file of bad ones."""
        good: list[Record] = []
        bad: list[Record] = []
        progress = []
        strict = any(f.required for f in Schema.model_validate_json(context.main.schema_json).fields)
        for r in task.ranges:
            read = self.topic.read(r.partition, r.start, r.end) if r.topic == self.topic.name else []
            kept = context.existing_dead_letters.get((r.topic, r.partition))
            held = BitMap64.deserialize(kept) if kept else BitMap64()
            new = [(record, is_good(kind, strict=strict)) for record, kind in read if record[2] not in held]
            good += [record for record, fine in new if fine]
            bad += [record for record, fine in new if not fine]
            times = [time_us(record) for record, fine in new if fine]
            counts = (len(times), len(read) - len(times))
            progress.append(
                RangeProgress(r.topic, r.partition, r.start, r.end, *counts, max_event_time_us=max(times, default=None))
            )
        for _ in range(2 if self.leftover else 1):
            files = self._files(context, tuple(good), tuple(bad))
        return StageResult(files, tuple(progress), Counter(map(window_of, good)))

    def _files(
        self, context: StageContext, good: tuple[Record, ...], bad: tuple[Record, ...]
    ) -> tuple[StagedFile, ...]:
        made = []
        if good:
            schema_id = Schema.model_validate_json(context.main.schema_json).schema_id
            made.append(self.world.new_file(context.main.folder, "main", good, schema_id=schema_id))
        if bad:
            made.append(self.world.new_file(context.dead_letters.folder, "dead-letters", bad))
        return tuple(made)


class Writer:
    """Does what `frazil.stream.writer` does around the batches. It may be paused between any two steps."""

    def __init__(self, world: World, stream: str, *, skips_gaps: bool = False, reads_old: bool = True) -> None:
        self.world, self.stream, self.skips_gaps = world, stream, skips_gaps
        self.topic = world.topics[stream]
        self.faults = Faults(self._others, stream)
        self.tables: StreamTables = world.tables(self.faults)
        self.topics = (self.topic.name, self.topic.old) if reads_old else (self.topic.name,)
        self.kafka: Any = ProcessKafka(self.topic, self.faults, self.topics)
        self.committer: Committer | None = None
        self.planner: BatchPlanner | None = None
        self.runner: BatchRunner | None = None
        self.staged: Journal | None = None
        self.journaled = False

    def _others(self) -> None:
        self.world.foreign_append()
        self.world.expire(MAIN)

    @property
    def epoch(self) -> int | None:
        return self.committer.epoch if self.committer else None

    @property
    def began(self) -> bool:
        return self.planner is not None

    def begin(self) -> SettleResult:
        """Take over, settle, skip what retention deleted (or raise an error), and open a planner at the marker.

        After a stale batch, call this again: the next epoch must follow this writer's own last one.
        """
        self.planner = None
        topics = self.kafka.describe()
        committer = Committer.take_over(
            self.tables,
            source=topics.identity,
            initial=lambda: self.kafka.earliest(topics.partitions),
            first_epoch=1 + highest_epoch(self.tables),
            after=self.epoch,
        )
        self.committer = committer
        settled = settle(self.tables, committer)
        marker = self.tables.marker()
        assert marker is not None
        marker = self._after_gaps(committer, marker, topics.partitions)
        self.runner = self._open_tables(committer, marker)
        self.planner = self._plan_from(marker)
        return settled

    def _after_gaps(self, committer: Committer, marker: Marker, partitions: Any) -> Marker:
        available = self.kafka.earliest(partitions)
        read = keep_topics(marker.offsets, self.topics)
        cut = find_truncations(self.kafka, read, marker.leader_epochs, pause=lambda: None)
        check_not_truncated(read, cut, stream=self.stream)
        if not self.skips_gaps:
            check_no_gap(marker.offsets, available, stream=self.stream)
        elif lost := describe_lost_ranges(marker.offsets, available):
            return committer.skip(available, lost=lost)
        return marker

    def _open_tables(self, committer: Committer, marker: Marker) -> BatchRunner:
        return BatchRunner(
            spec=SPECS[self.stream],
            kafka=self.kafka,
            kafka_properties={},
            tables=self.tables,
            committer=committer,
            marker=marker,
            emit=lambda _: None,
            run_folder=self.world.folder,
            progress=ProgressFolder(f"{self.world.folder}/progress", {}),
            route=StreamRoute.begin(SPECS[self.stream], self.tables, marker, None, lambda _: None),
            notices=Notices(lambda _: None, self.tables.main.identifier),
        )

    def _plan_from(self, marker: Marker) -> BatchPlanner:
        policy = BatchPolicy(
            interval_s=1.0, size_bytes=1, max_records=1, target_file_bytes=100, parallelism=2, drain=True
        )
        folder = Path(self.world.folder, f"run-{self.stream}-{self.epoch}")
        folder.mkdir(exist_ok=True)
        return BatchPlanner(
            settings=PlannerSettings(self.stream, self.topics, policy, IDLE_S, folder),
            kafka=self.kafka,
            source=marker.source,
            position=Position.from_marker(marker),
            clock=self.world.clock,
        )

    def stale(self) -> None:
        """Abandon the current batch. The next step begins an epoch."""
        self.planner, self.staged, self.journaled = None, None, False

    def stage(self, limit: int, *, leftover: bool) -> bool:
        """Plan up to `limit` records or an empty commit, and stage them. Return False if no batch is due."""
        planner, runner = self.planner, self.runner
        assert planner is not None
        assert runner is not None
        policy = dataclasses.replace(planner.settings.policy, max_records=limit)
        planner.settings = dataclasses.replace(planner.settings, policy=policy)
        self.world.clock.wait(1)  # a planner looks once a second
        start = planner.position
        position = planner.next_position()
        if position == start:
            return False
        pending = {(self.topic.name, p) for p in self.topic.pending}
        assert not position.idle & pending, "idle, with records in an open transaction"
        stage = ModelStage(self.world, self.topic, planner.plans(start, position), leftover)
        key = BatchKey(runner.committer.epoch, runner.marker.key.batch + 1)
        # The model's tables have columns of their own, which no stream declares.
        with mock.patch("frazil.stream.stage_context.check_rows_fit"):
            _, self.staged = runner.stage(stage, key, position, tasks=len(stage.plans))
        self.journaled = False
        return True

    def journal(self) -> bool:
        assert self.staged is not None
        self.journaled = self.tables.journals.put(self.staged)
        if not self.journaled:
            delete_fenced_batch(self.tables, self.staged.key)
        return self.journaled

    def commit(self) -> Marker:
        assert self.runner is not None
        assert self.staged is not None
        try:
            self.runner.marker = self.runner.committer.commit(self.staged)
        except Fenced:
            delete_fenced_batch(self.tables, self.staged.key)
            raise
        sweep_batch(self.tables, self.staged)
        self.staged, self.journaled = None, False
        return self.runner.marker
