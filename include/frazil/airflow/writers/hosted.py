"""The task of one stream in the DAG of an application that streams share: it shows the stream, and supervises none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from frazil.airflow.deferral import SETTLED_SECONDS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from frazil.host.records import GivenUp

POLL_SECONDS = 5.0
BY = "Airflow"


class HostedStreamOperator(BaseOperator):
    """Shows one stream of an application that streams share, for as long as the application runs it.

    The application supervises its streams itself. This task fails when it gives up on the stream, which then stays as
    it is until a person acts: `frazil resume STREAM`, or *Clear* here. *Clear* of a stream that runs restarts it, and
    *Mark failed* (or *success*) pauses it; both leave the other streams alone.

    :param stream: name of the declared stream.
    :param application: name of the application.
    :param streams: folder of the declared streams.
    """

    ui_color = "#e6f2ee"

    def __init__(self, *, stream: str, application: str, streams: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream, self.application, self.streams = stream, application, str(streams)

    def execute(self, context: Context) -> None:
        """Hand over to the trigger. A task that was cleared after the application gave up lets the stream run again."""
        from frazil.host.claim import Claim, write_claim  # noqa: PLC0415 - needed by a running task only

        instance = context["ti"]
        write_claim(self.stream, Claim(instance.run_id, instance.try_number))
        trigger = HostedStreamTrigger(
            stream=self.stream,
            application=self.application,
            streams=self.streams,
            resume=instance.try_number > 1,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Fail: the application gave up on the stream."""
        raise AirflowFailException(f"{self.stream}: {event['reason']}")


class HostedStreamTrigger(BaseTrigger):
    """Looks at the stream's run folder every few seconds. Fires when its application gave it up, or runs it no more."""

    def __init__(self, *, stream: str, application: str, streams: str, resume: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream, self.application, self.streams, self.resume = stream, application, streams, resume

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("stream", "application", "streams", "resume")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, report, wait."""
        settled_at_s = time.monotonic() + SETTLED_SECONDS
        said = None
        if self.resume and await self._in_thread(self._given_up):
            await self._in_thread(partial(self._ask, "resume", "its task was cleared"))
        while True:
            state, given_up = await self._in_thread(self._look)
            if state != said:
                said = state
                self.log.info("%s: %s", self.stream, state)
            if state is None and time.monotonic() > settled_at_s:
                yield TaskSuccessEvent()
                return
            if given_up is not None and time.monotonic() > settled_at_s:
                yield TriggerEvent({"reason": given_up.reason})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(POLL_SECONDS)

    async def on_kill(self) -> None:
        """The task is no longer deferred, and not because of a restart: apply to the stream what a person did."""
        from frazil.airflow.writers.acts import Act, act_of, look_up  # noqa: PLC0415 - few kills happen
        from frazil.airflow.writers.trigger import LOOK_UP_SECONDS  # noqa: PLC0415

        instance = self.task_instance
        if instance is None:
            return
        found = await asyncio.wait_for(
            look_up(
                self.stream,
                dag_id=instance.dag_id,
                run_id=instance.run_id,
                task_id=instance.task_id,
                try_number=instance.try_number,
            ),
            LOOK_UP_SECONDS,
        )
        act = act_of(found)
        self.log.info("In Airflow the task was %s.", act)
        if act is Act.MARKED:
            await self._in_thread(partial(self._ask, "pause", f"the task of run {instance.run_id} was marked"))
        elif act is Act.CLEARED:
            await self._in_thread(partial(self._ask, "restart", f"the task of run {instance.run_id} was cleared"))

    def _look(self) -> tuple[str | None, GivenUp | None]:
        """The stream's state in words, None once the application runs it no more; and what was given up."""
        from frazil.host.launchers import open_launcher  # noqa: PLC0415 - needed by a running trigger only
        from frazil.spec.application import find_application  # noqa: PLC0415

        application = find_application(Path(self.streams), self.application)
        if application is None or all(spec.name != self.stream for spec in application.streams):
            return None, None
        seen = open_launcher(self.stream).observe()
        last = seen.exits[-1] if seen.exits and not seen.process.is_alive else None
        ended = f" with exit code {last.code}: {last.error or 'as it was asked to'}" if last else ""
        return f"{seen.process}{ended}", self._given_up()

    def _given_up(self) -> GivenUp | None:
        from frazil.host.given_up import standing_given_up  # noqa: PLC0415 - needed by a running trigger only
        from frazil.host.launchers import open_launcher  # noqa: PLC0415

        return standing_given_up(self.stream, open_launcher(self.stream).observe())

    def _ask(self, act: str, reason: str) -> None:
        """Store what a person wants; the application obeys within seconds."""
        from frazil.spec.last_sound import find_or_recall  # noqa: PLC0415 - needed by a running trigger only
        from frazil.supervise.desired import open_desired  # noqa: PLC0415 - loads PyIceberg

        spec, _ = find_or_recall(Path(self.streams), self.stream)
        desired = open_desired(spec)
        {"pause": desired.pause, "resume": desired.resume, "restart": desired.restart}[act](by=BY, reason=reason)

    @staticmethod
    async def _in_thread(blocking: Any) -> Any:
        from frazil.airflow.writers.trigger import THREADS  # noqa: PLC0415 - as above

        return await asyncio.get_running_loop().run_in_executor(THREADS, blocking)
