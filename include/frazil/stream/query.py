"""One streaming query over the planner's ranges: opened at the marker, watched, and closed between two batches.

An error in a batch is raised here, in the thread that runs the query. Raised in the batch, Spark would print it with a
page of Java stack trace and keep only its text.
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

CHECK_S = 1.0
"""Between two checks of a running query: each is a call into the JVM."""
CHECK_DRAINING_S = 0.2


@dataclass(slots=True)
class RangeQuery:
    """One run of the query, from its start to its end."""

    engine: Engine
    runner: BatchRunner
    drain: bool
    """Everything unread is due at once."""
    commits: int = 0
    failure: BaseException | None = None
    """What ended the current batch, and so the query."""
    batch_lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def run(self, *, until: Callable[[], bool]) -> None:
        """Return once `until` holds between two batches or the query ends by itself; raise the error that ends it."""
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
        # An earlier writer may have left the interval stretched; this one judges the table itself.
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
        check_s = CHECK_DRAINING_S if self.drain else CHECK_S
        while True:
            try:
                ended = query.wait(check_s)
            except Exception as error:
                raise self._found() or error from error
            if found := self._found():
                raise found
            if ended or until():
                return

    def _found(self) -> BaseException | None:
        """The batch's own error, or the planner's from its process."""
        if self.failure:
            return self.failure
        report = read_report(open_exchange(self.runner.run_folder))
        if report and report.error_type:
            kind: type[FrazilError] = getattr(errors, report.error_type, FrazilError)
            return kind(report.error)
        return None

    def _close(self, query: RunningQuery) -> None:
        """Stop the query between two batches: the lock is free only while no batch runs."""
        self.runner.emit(PhaseBegan(Phase.STOPPING))
        with self.batch_lock:
            self.ended = True
        query.stop()


def trigger_s(interval_s: float) -> float:
    """How often the engine asks the planner, in seconds: a small part of the commit interval, at most 1 s.

    Asking is most of what a quiet stream costs.
    """
    return min(1.0, max(0.5, interval_s / 60), interval_s / 10)
