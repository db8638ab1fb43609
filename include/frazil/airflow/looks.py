"""Waits in the triggerer until windows of a table are complete, or somebody else signalled some; then a worker acts.

A look costs some 50 ms of metadata; a task of Airflow's costs seconds before it does anything. So one deferred task
looks again and again, and a worker is used only when there is something to signal, to judge or to send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from airflow.sdk import Context

THREADS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="frazil-looks")
"""Of our own: one catalog that does not answer must not hold up the triggerer's other work."""


class LookOperator(BaseBranchOperator):
    """Signals what is complete of one table, and goes on with those of its following tasks that have something to do.

    :param table: the table's identifier.
    :param streams: folder of the declared streams.
    :param expectations: folder of the quality gates' suites; None for no gates.
    :param poll_seconds: how often the table is looked at.
    """

    def __init__(
        self, *, table: str, streams: Path, expectations: Path | None, poll_seconds: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table, self.streams, self.poll_seconds = table, str(streams), poll_seconds
        self.expectations = str(expectations) if expectations else None

    def execute(self, context: Context) -> Any:
        """Go on at once with what Airflow was not told yet; wait for more otherwise."""
        from frazil.airflow import windows  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg

        number, following = windows.begin(self.table, Path(self.streams), context)
        if not following:
            trigger = LookTrigger(table=self.table, streams=self.streams, number=number, poll_seconds=self.poll_seconds)
            self.defer(trigger=trigger, method_name="execute_complete")
        return self.do_branch(context, following)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Signal, and branch."""
        from frazil.airflow import windows  # noqa: PLC0415 - as above

        suites = Path(self.expectations) if self.expectations else None
        following = windows.act(self.table, Path(self.streams), context, expectations=suites)
        return self.do_branch(context, following or None)


class LookTrigger(BaseTrigger):
    """Looks at a table every `poll_seconds`, and fires when there is something to do.

    `number` is that of the table's last signal when the task was deferred: a later one is somebody else's, such as a
    release. It holds no state: a triggerer that is restarted makes another from the same arguments.
    """

    def __init__(self, *, table: str, streams: str, number: int, poll_seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.streams, self.number, self.poll_seconds = table, streams, number, poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "table": self.table,
            "streams": self.streams,
            "number": self.number,
            "poll_seconds": self.poll_seconds,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, say what is waited for where that changed, wait; until there is something to do."""
        said = ""
        while True:
            ready, sentence = await asyncio.get_running_loop().run_in_executor(THREADS, self._look)
            if ready:
                yield TriggerEvent({"reason": sentence})  # type: ignore[no-untyped-call]
                return
            if sentence != said:
                self.log.info("%s: %s", self.table, sentence)
                said = sentence
            await asyncio.sleep(self.poll_seconds)

    def _look(self) -> tuple[bool, str]:
        """Whether there is something to do, and what the next window waits for."""
        from frazil.airflow import windows  # noqa: PLC0415 - loads PyIceberg

        try:
            return windows.ready(self.table, Path(self.streams), after=self.number)
        except FrazilError as error:
            return False, f"the look failed, and is tried again: {error}"
