"""One streaming query over the planner's ranges: opened at the marker, watched, and closed between two batches.

What goes wrong in a batch is raised here, in the thread of who runs the query. Raised where it happens, Spark would
print it with a page of Java's trace, and go on with its text alone.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta

from frazil import errors
from frazil.commit.target import target_file_bytes
from frazil.errors import FrazilError
from frazil.events import PhaseBegan, ThrottleJudged
from frazil.host.exchange import open_exchange
from frazil.host.heartbeat import Phase
from frazil.stream.batch import BatchRunner
from frazil.stream.engine import Engine, Query, RunningQuery, Stage
from frazil.stream.plan import BatchPolicy
from frazil.stream.planner import PlannerSettings
from frazil.stream.planner_exchange import clear_report, read_rates, read_report, write_rates
from frazil.stream.position import Position

LOOK_S = 1.0
"""Between two looks at a query that runs on: each costs Spark a call into the JVM."""
LOOK_DRAINING_S = 0.2


@dataclass(slots=True)
class RangeQuery:
    """From the query's start to its end. Used once."""

    engine: Engine
    runner: BatchRunner
    drain: bool
    """Whatever is unread is due at once."""
    commits: int = 0
    failure: BaseException | None = None
    """What ended the batch at hand, and so the query."""
    batch_lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def run(self, *, until: Callable[[], bool]) -> None:
        """Return when `until` holds between two batches, or the query ended by itself; raise what ended it else."""
        query = self._open()
        try:
            self._watch(query, until)
        finally:
            self._close(query)

    def _open(self) -> RunningQuery:
        r = self.runner
        for old in r.run_folder.glob("checkpoint-*"):
            shutil.rmtree(old, ignore_errors=True)
        exchange = open_exchange(r.run_folder)
        clear_report(exchange)
        # An earlier writer may have left it stretched: what the table is like is judged anew.
        write_rates(exchange, replace(read_rates(exchange), stretch=1.0))
        r.emit(ThrottleJudged(None, stretch=1.0, was_under_pressure=False))
        interval_s = r.spec.commit.interval / timedelta(seconds=1)
        options = {
            "spec": r.spec.model_dump_json(by_alias=True),
            "settings": self._settings(interval_s).to_json(),
            "source": json.dumps(asdict(r.marker.source)),
            "position": json.dumps(Position.of(r.marker).to_json()),
        }
        checkpoint = r.run_folder / f"checkpoint-{r.committer.epoch}"
        query = self.engine.start(Query(r.spec.name, options, trigger_s(interval_s), checkpoint), self._run_batch)
        r.emit(PhaseBegan(Phase.WAITING))
        return query

    def _settings(self, interval_s: float) -> PlannerSettings:
        spec = self.runner.spec
        return PlannerSettings(
            stream=spec.name,
            topics=spec.source.topics,
            policy=BatchPolicy(
                interval_s=interval_s,
                longest_interval_s=spec.commit.longest_interval / timedelta(seconds=1),
                size_bytes=spec.commit.size,
                max_records=spec.commit.max_records,
                target_file_bytes=target_file_bytes(self.runner.tables.main.current()),
                parallelism=spec.resources.cores,
                drain=self.drain,
            ),
            idle_timeout_s=spec.watermark.idle_timeout / timedelta(seconds=1),
            exchange=str(self.runner.run_folder),
        )

    def _run_batch(self, stage: Stage) -> None:
        with self.batch_lock:
            if self.ended or self.failure:
                return
            try:
                self.commits += self.runner.run(stage)
            except BaseException as error:
                self.failure = error

    def _watch(self, query: RunningQuery, until: Callable[[], bool]) -> None:
        look_s = LOOK_DRAINING_S if self.drain else LOOK_S
        while True:
            try:
                ended = query.wait(look_s)
            except Exception as error:
                raise self._found() or error from error
            if found := self._found():
                raise found
            if ended or until():
                return

    def _found(self) -> BaseException | None:
        """The batch's own error, or the planner's, which comes from another process."""
        if self.failure:
            return self.failure
        report = read_report(open_exchange(self.runner.run_folder))
        if report and report.error_type:
            kind: type[FrazilError] = getattr(errors, report.error_type, FrazilError)
            return kind(report.error)
        return None

    def _close(self, query: RunningQuery) -> None:
        """Stop the query between two batches: the lock is free only when no batch of ours is at hand."""
        self.runner.emit(PhaseBegan(Phase.STOPPING))
        with self.batch_lock:
            self.ended = True
        query.stop()


def trigger_s(interval_s: float) -> float:
    """How often the engine asks the planner, in seconds: a small part of the commit interval, and no more than once a
    second where that is long, for a quiet stream costs little else."""
    return min(1.0, max(0.5, interval_s / 60), interval_s / 10)
