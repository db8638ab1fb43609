"""The trigger that supervises a writer from the triggerer, and tells the task's log what it does and why."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection
from airflow.triggers.base import BaseTrigger, TriggerEvent

from frazil.airflow.acts import Act, act_of, follow, look_up

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

    from frazil.supervise.supervisor import Step, Supervisor

PROGRESS_SECONDS = 300.0
"""A writer that goes on as before is mentioned this often."""
CONNECTION_SECONDS = 30.0


class WriterTrigger(BaseTrigger):
    """Looks at one writer every few seconds, and carries out what the supervisor decides.

    It holds no state and no secret: a triggerer that is restarted makes another from the same arguments, which finds
    the writer by its run folder. It fires once, when the supervisor gives up or nothing is left to supervise.
    All that blocks runs in a thread.
    """

    def __init__(self, *, stream: str, streams: str, application: str, poll_seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream, self.streams, self.application = stream, streams, application
        self.poll_seconds = poll_seconds
        self._supervisor: Supervisor | None = None
        self._said: tuple[object, ...] = ()
        self._said_at_s = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "stream": self.stream,
            "streams": self.streams,
            "application": self.application,
            "poll_seconds": self.poll_seconds,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Step, tell, wait; until there is something for the task to say."""
        supervisor = await self._make_supervisor()
        while True:
            step = await asyncio.to_thread(supervisor.step)
            self._tell(step)
            if step.decision.action in {"give up", "end"}:
                yield TriggerEvent(_event(step))  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """The task is deferred no longer, and nobody's restart is the reason: the writer follows what a person did."""
        instance = self.task_instance
        if instance is None:
            return
        act = await self._act(instance)
        self.log.info("In Airflow the task was %s; the writer of %s follows.", act, self.stream)
        if act is Act.TAKEN_OVER:
            return
        supervisor = await self._make_supervisor()
        self._tell(await asyncio.to_thread(follow, act, supervisor, run_id=instance.run_id))

    async def _act(self, instance: TaskInstance) -> Act:
        try:
            task = await asyncio.to_thread(
                look_up,
                dag_id=instance.dag_id,
                run_id=instance.run_id,
                task_id=instance.task_id,
                try_number=instance.try_number,
            )
        except Exception:
            self.log.warning("What became of the task cannot be looked up.", exc_info=True)
            return Act.UNKNOWN
        return act_of(task)

    async def _make_supervisor(self) -> Supervisor:
        """In a thread, for importing PyIceberg takes a second."""
        if self._supervisor is None:
            loop = asyncio.get_running_loop()
            self._supervisor = await asyncio.to_thread(self._supervise, loop)
        return self._supervisor

    def _supervise(self, loop: asyncio.AbstractEventLoop) -> Supervisor:
        from frazil.supervise.supervisor import Supervisor, WriterProgram  # noqa: PLC0415 - loads PyIceberg

        def connections(ids: frozenset[str]) -> Mapping[str, str]:
            asked = asyncio.run_coroutine_threadsafe(_connections(ids), loop)
            return asked.result(CONNECTION_SECONDS)

        program = WriterProgram(self.stream, Path(self.streams), Path(self.application))
        return Supervisor(program, connections=connections)

    def _tell(self, step: Step) -> None:
        """Log what the writer said, and the decision where it is another than before, or some time has passed."""
        for line in step.writer_log:
            self.log.info("writer | %s", line)
        if step.problem:
            self.log.error("%s: %s", self.stream, step.problem)
        decision = step.decision
        said = (decision.action, decision.cause, decision.until_ms)
        if said == self._said and time.monotonic() - self._said_at_s < PROGRESS_SECONDS:
            return
        self._said, self._said_at_s = said, time.monotonic()
        self.log.info("%s: %s (%s): %s", self.stream, decision.action, decision.cause, decision.reason)


def _event(step: Step) -> dict[str, Any]:
    decision = step.decision
    return {
        "action": str(decision.action),
        "cause": str(decision.cause),
        "reason": decision.reason,
        "subject": decision.subject,
        "table_fingerprint": step.table_fingerprint,
    }


async def _connections(ids: frozenset[str]) -> dict[str, str]:
    """Airflow connections as JSON, by id; the caller keeps them to itself."""
    return {name: _as_json(await Connection.async_get(name)) for name in sorted(ids)}


def _as_json(connection: Connection) -> str:
    fields = ("conn_type", "host", "login", "password", "schema", "port")
    known = {field: getattr(connection, field) for field in fields}
    return json.dumps({**known, "extra": connection.extra_dejson})
