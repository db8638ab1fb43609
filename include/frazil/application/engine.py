"""One Spark for the writers of many streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from frazil.application.daemon_threads import DaemonThreads
from frazil.stream.engine import Engine, TaskAnswer
from frazil.stream.merge_tasks import MergeTasks
from frazil.stream.stage_rows import StageRows

CHECK_S = 1.0


class CancellingEngine(Engine, Protocol):
    def cancel(self, stream: str) -> None:
        """End the tasks of a stream's current batch, which then fails."""


class SharedEngine:
    """Starts and ends an engine that many writers use at once.

    A few threads run all batches, because each Python thread that calls Spark occupies a thread of the JVM.
    """

    def __init__(self, engine: CancellingEngine, *, batches: int) -> None:
        self._engine = engine
        self._jobs = DaemonThreads(batches, "batch")
        self._ready, self._over = threading.Event(), threading.Event()
        self._watch = threading.Thread(target=self._check, name="engine", daemon=True)
        self.failed: Exception | None = None
        """Why no batch can run, once the engine has failed."""

    def __enter__(self) -> Self:
        self._engine.__enter__()
        self._engine.warm_up()
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._jobs.close()
        self._engine.__exit__(None, None, None)

    def of_stream(self) -> Engine:
        """Return the engine for one writer. This view neither starts nor ends the engine."""
        return _Part(self)

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
        """Wait for the engine to start. If it has ended, raise the error that ended it."""
        self._ready.wait()
        if self.failed is not None:
            raise self.failed

    @property
    def parallelism(self) -> int:
        return self._engine.parallelism

    def _check(self) -> None:
        """Check the engine once a second, in a thread, for all writers."""
        while True:
            try:
                self._engine.check()
            except Exception as error:  # py4j raises anything when the JVM is gone
                if not self._over.is_set():
                    self.failed = error
                self._ready.set()
                return
            self._ready.set()
            if self._over.wait(CHECK_S):
                return


class _Part:
    def __init__(self, whole: SharedEngine) -> None:
        self._whole = whole

    @property
    def parallelism(self) -> int:
        return self._whole.parallelism

    def warm_up(self) -> None:
        """Do nothing: the engine is warm, or becomes warm before the first batch."""

    def ready(self, until: Callable[[], bool]) -> bool:
        return self._whole.ready(until)

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        return self._whole.run(plans, work)

    def merge(self, plans: Sequence[str], work: MergeTasks) -> Sequence[str]:
        return self._whole.merge(plans, work)

    def check(self) -> None:
        self._whole.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: other writers still use the engine."""
