"""Shares one Spark engine among the writers of many streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

from frazil.stream.engine import Engine, TaskAnswer
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows
from frazil.table.parallel import DaemonThreads

CHECK_INTERVAL_S = 1.0


class CancellableEngine(Engine, Protocol):
    def cancel(self, stream: str) -> None:
        """Cancel the tasks of a stream's current batch, so that the batch fails."""


class SharedEngine:
    """An engine that many writers share. It runs batches in few threads, because each also needs a JVM thread."""

    def __init__(self, engine: CancellableEngine, *, batches: int) -> None:
        self._engine = engine
        self._jobs = DaemonThreads(batches, "batch")
        self._ready, self._over = threading.Event(), threading.Event()
        self._watch = threading.Thread(target=self._watch_engine, name="engine", daemon=True)
        self.failed: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[Self]:
        self._engine.__enter__()
        self._engine.warm_up()
        self._watch.start()
        try:
            yield self
        finally:
            self._over.set()
            self._jobs.close()
            self._engine.__exit__(None, None, None)

    def warm_up(self) -> None:
        """Do nothing: `running` has warmed up the engine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: other writers still use the engine."""

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        if not plans:
            return ()
        return self._jobs.submit(lambda: self._engine.run(plans, work)).result()

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        if not plans:
            return ()
        return self._jobs.submit(lambda: self._engine.merge(plans, work)).result()

    def ready(self, until: Callable[[], bool]) -> bool:
        return self._engine.ready(until)

    def cancel(self, stream: str) -> None:
        self._engine.cancel(stream)

    def check(self) -> None:
        self._ready.wait()
        if self.failed is not None:
            raise self.failed

    @property
    def parallelism(self) -> int:
        return self._engine.parallelism

    def _watch_engine(self) -> None:
        while True:
            try:
                self._engine.check()
            except Exception as error:  # py4j raises anything when the JVM is gone
                if not self._over.is_set():
                    self.failed = error
                self._ready.set()
                return
            self._ready.set()
            if self._over.wait(CHECK_INTERVAL_S):
                return
