"""The loop of an epoch: ask the planner for the next batch's end, run that batch, and repeat
(docs/adr/0014-the-batch-loop-is-ours.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from frazil.commit.staging_targets import target_file_bytes
from frazil.events import PhaseBegan, ThrottleEvaluated
from frazil.host.heartbeat import Phase
from frazil.offsets.spans import TopicPartition
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import Engine
from frazil.stream.hosting import Hosting
from frazil.stream.plan import BatchPolicy, PlannerReport, Position, read_rates, write_rates
from frazil.stream.planner import POLL_INTERVAL_S, BatchPlanner, PlannerSettings
from frazil.stream.whole_transactions import whole_transactions

STOP_CHECK_INTERVAL_S = 0.1
"""Interval (s) at which the loop checks whether to stop, while the brokers do not respond."""
CHECK_INTERVAL_S = 0.9
"""Minimum time (s) between two checks of the engine."""


@dataclass(slots=True)
class BatchLoop:
    """Runs the batches of one epoch from the marker's position. Used once."""

    engine: Engine
    runner: BatchRunner
    drain: bool
    set_planner_report: Callable[[PlannerReport | None], None]
    """Receives the planner's reports; None when the epoch begins."""
    hosting: Hosting = field(default_factory=Hosting)
    commits: int = 0
    planner: BatchPlanner | None = field(default=None, init=False)

    def run(self, *, until: Callable[[], bool], wait: Callable[[float], object]) -> None:
        """Run batches until `until` returns True.

        `wait` (seconds) returns early if `until` may return another result.
        """
        self.planner = planner = self._create_planner()
        position = planner.position
        interval_s = planning_interval_s(planner.settings.policy.interval_s, max_s=self.hosting.max_polling_s)
        try:
            # Waits for Spark to start. Until then the planner is not polled, so its silence is not a stall.
            self.engine.check()
            checked = time.monotonic()
            self.runner.emit(PhaseBegan(Phase.WAITING))
            while not until():
                began = time.monotonic()
                end = next_position(planner, until)
                # A batch may take long, so a requested stop must not start another one.
                if end is None or until():
                    return
                if end != position:
                    due = time.monotonic()
                    # A writer in the queue must not look stuck.
                    waiting = partial(self.runner.emit, PhaseBegan(Phase.WAITING))
                    with self.hosting.slots.slot(cancelled=until, on_wait=waiting) as admitted:
                        if not admitted:
                            return
                        planner.record_queue_time(time.monotonic() - due)
                        plans = planner.plans(position, end)
                        with poll_during_batch(planner):
                            self.runner.run(partial(self.engine.run, plans), end, tasks=len(plans))
                        self.commits += 1
                    position = end
                if not until():
                    wait(max(0.0, interval_s - (time.monotonic() - began)))
                if not until() and time.monotonic() - checked >= CHECK_INTERVAL_S:
                    self.engine.check()
                    self.runner.follow()
                    checked = time.monotonic()
        finally:
            self.runner.emit(PhaseBegan(Phase.STOPPING))

    def is_left_unread(self, tp: TopicPartition) -> bool:
        """Return whether the partition's records cannot be read: its topic is gone, or a source transaction is open."""
        planner, offset = self.planner, self.runner.marker.offsets.get(tp, 0)
        return planner is not None and (planner.is_deleted(tp[0]) or planner.is_held_back(tp, offset))

    def _create_planner(self) -> BatchPlanner:
        """Create the epoch's planner. Clears the report and the stretched commit interval of an earlier epoch."""
        r = self.runner
        self.set_planner_report(None)
        # An earlier writer may have stretched the commit interval; this writer evaluates the table itself.
        write_rates(r.run_folder, replace(read_rates(r.run_folder), stretch=1.0))
        r.emit(ThrottleEvaluated(None, stretch=1.0, was_under_pressure=False))
        return BatchPlanner(
            settings=self._planner_settings(),
            kafka=r.kafka,
            source=r.marker.source,
            position=Position.from_marker(r.marker),
            report=self.set_planner_report,
            whole_transactions=whole_transactions(r.spec, r.kafka_properties, r.marker.transaction),
        )

    def _planner_settings(self) -> PlannerSettings:
        spec = self.runner.spec
        interval_s = spec.commit.interval / timedelta(seconds=1)
        polling_s = planning_interval_s(interval_s, max_s=self.hosting.max_polling_s)
        # Batches start earlier by the polling interval, because a record may wait that long before it is seen.
        early_s = polling_s if polling_s > POLL_INTERVAL_S else 0.0
        return PlannerSettings(
            stream=spec.name,
            topics=spec.source.reads,
            policy=BatchPolicy(
                interval_s=interval_s - early_s,
                longest_interval_s=spec.commit.longest_interval / timedelta(seconds=1),
                size_bytes=spec.commit.size,
                max_records=spec.max_records,
                target_file_bytes=target_file_bytes(self.runner.tables.main.current()),
                parallelism=spec.resources.cores,
                drain=self.drain,
            ),
            idle_timeout_s=spec.watermark.idle_timeout / timedelta(seconds=1),
            run_folder=self.runner.run_folder,
            # The loop's timing is not exact. A shorter interval makes sure that each iteration polls Kafka.
            poll_s=max(POLL_INTERVAL_S, 0.8 * polling_s),
        )


def next_position(planner: BatchPlanner, until: Callable[[], bool]) -> Position | None:
    """Return the planner's next position; None if `until` returns True first.

    A daemon thread waits for the brokers.
    """
    if (position := planner.position_without_poll()) is not None:
        return position
    answer: Future[Position] = Future()
    thread = threading.Thread(target=_set_next_position, args=(planner, answer), name="planner", daemon=True)
    thread.start()
    while True:
        thread.join(STOP_CHECK_INTERVAL_S)
        if answer.done():
            return answer.result()
        if until():
            return None


@contextmanager
def poll_during_batch(planner: BatchPlanner) -> Iterator[None]:
    """Let the planner poll the brokers in a thread while a batch runs. Does not wait for the thread to end."""
    batch_ended = threading.Event()

    def poll() -> None:
        while not batch_ended.wait(POLL_INTERVAL_S):
            planner.observe()

    threading.Thread(target=poll, name="observer", daemon=True).start()
    try:
        yield
    finally:
        batch_ended.set()


def _set_next_position(planner: BatchPlanner, answer: Future[Position]) -> None:
    try:
        answer.set_result(planner.next_position())
    except BaseException as error:
        answer.set_exception(error)


def planning_interval_s(commit_interval_s: float, *, max_s: float = 1.0) -> float:
    """Return the planner's polling interval (s): a fraction of the commit interval, at most `max_s`."""
    part = 60 if max_s <= POLL_INTERVAL_S else 12
    return min(max_s, max(0.5, commit_interval_s / part), commit_interval_s / 10)
