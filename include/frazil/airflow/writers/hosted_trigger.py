"""The trigger of one stream's task in the DAG of a shared application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from frazil import clock
from frazil.airflow.shown_state import MIN_DEFERRAL_S, ShownState
from frazil.airflow.writers.trigger import CHANGED_BY, TaskAction, UserActionTrigger, run_in_thread
from frazil.errors import DesiredMoved
from frazil.host.supervising_run import read_announcement, write_supervising_run
from frazil.spec.units import mask_numbers
from frazil.supervise.decision import describe_progress

if TYPE_CHECKING:
    from frazil.host.records import ExitRecord, GivenUp
    from frazil.status.state import StreamState
    from frazil.supervise.desired_state import DesiredStore

POLL_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class HostedObservation:
    state: str
    known: StreamState | None = None
    """The state shown on the task; None if the application does not run on this host."""
    belongs_to_application: bool = True
    is_alive: bool = False
    given_up: GivenUp | None = None


class HostedStreamTrigger(UserActionTrigger):
    """Observes the stream's run folder. Fires when the application gives up on the stream or no longer runs it."""

    argument_names = ("stream", "application", "streams", "resume")

    def __init__(self, *, stream: str, application: str, streams: str, resume: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream, self.application, self.streams, self.resume = stream, application, streams, resume

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from frazil.status.state import State  # loads PyIceberg

        settled_at_s = time.monotonic() + MIN_DEFERRAL_S
        self._preloading = asyncio.create_task(self._preload())
        paused, logged, begun, task = "", None, False, ShownState(self.log.info)
        while True:
            try:
                if not begun:
                    await run_in_thread(self._begin)
                    begun = True
                observation = await run_in_thread(self._observe)
                if observation.state != logged:
                    logged, paused = observation.state, await run_in_thread(partial(self._describe_pause, observation))
                    self.log.info("%s: %s%s", self.stream, logged, paused)
                state = State.PAUSED if paused else observation.known.state if observation.known else State.STOPPED
                sentence = f"{observation.state}{paused}"
                if observation.known and observation.is_alive:
                    sentence = observation.known.sentence
                task.show(self.task_instance, state, sentence)
                if time.monotonic() > settled_at_s:
                    if not observation.belongs_to_application:
                        yield TaskSuccessEvent()
                        return
                    if observation.given_up is not None:
                        await run_in_thread(partial(self._announce, observation.given_up))
                        await task.write_final_state(self.task_instance, state, sentence)
                        yield TriggerEvent({"reason": observation.given_up.reason})  # type: ignore[no-untyped-call]
                        return
            except Exception as error:  # an unresponsive catalog or a full disk must not end the task
                problem = f"cannot read the stream's state: {type(error).__name__}: {error}"
                if logged != (logged := mask_numbers(problem)):
                    self.log.warning("%s: %s", self.stream, problem)
                task.show(self.task_instance, State.UNKNOWN, problem)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _apply_user_action(self) -> None:
        action = await self._task_action()
        self.log.info("The task was %s in Airflow.", action)
        if action is TaskAction.MARKED:
            await run_in_thread(self._pause)
        elif action is TaskAction.CLEARED:
            await run_in_thread(self._restart)

    def _begin(self) -> None:
        """Record the run. Resume the stream if a user cleared the task after marking it or after a failure."""
        if (instance := self.task_instance) is None:
            return
        write_supervising_run(self.stream, instance.run_id, instance.try_number)
        if not self.resume:
            return
        given_up, announced = self._observe().given_up, read_announcement(self.stream, run_id=instance.run_id)
        failed_for_it = given_up is not None and announced is not None and announced.subject == given_up.subject
        desired = self._open_desired()
        current = desired.read()
        if (
            (current.by == CHANGED_BY and current.reason == self._mark_reason())
            if current.mode == "paused"
            else failed_for_it
        ):
            with suppress(DesiredMoved):  # a later action of a user takes precedence
                reason = f"the task of run {instance.run_id} was cleared"
                desired.resume(by=CHANGED_BY, reason=reason, after=current.generation)

    def _observe(self) -> HostedObservation:
        from frazil.home import run_folder
        from frazil.host.local import LocalLauncher
        from frazil.host.records import read_notes
        from frazil.host.supervising_run import read_active_given_up  # needed by a running trigger only
        from frazil.spec.application import find_application
        from frazil.status.derive import derive_from_decision, describe_state
        from frazil.status.state import StreamState
        from frazil.supervise.decision import DecisionInput, DesiredState, SupervisionPolicy, ValidDeclaration
        from frazil.supervise.decision_rules import decide

        application = find_application(Path(self.streams), self.application)
        spec = next((spec for spec in application.streams if spec.name == self.stream), None) if application else None
        if spec is None:
            end_text = f"the application {self.application} no longer runs the stream"
            return HostedObservation(end_text, belongs_to_application=False)
        if not LocalLauncher(self.application).observe().process.is_alive:
            # Another host may have an old state of the stream, which is no longer valid.
            return HostedObservation(f"the application {self.application} does not run on this host")
        observation = LocalLauncher(self.stream).observe()
        last = observation.exits[-1] if observation.exits and not observation.process.is_alive else None
        end_text = _describe_end(last) if last else ""
        given_up = read_active_given_up(self.stream, observation)
        remedy = "; the application gave up: fix the cause, then clear this task" if given_up else ""
        sentence = f"{observation.process}{end_text}{remedy}"
        # Only `_describe_pause` reads the pause.
        desired = DesiredState(generation=observation.launch.generation if observation.launch else 0)
        declared, policy = ValidDeclaration(spec.fingerprint()), SupervisionPolicy.for_stream(spec)
        observed = DecisionInput(observation, declared, desired, policy, read_notes(run_folder(self.stream)))
        now_ms = clock.now_ms()
        decision = decide(observed, now_ms=now_ms)
        state = derive_from_decision(StreamState(self.stream), observed, decision, now_ms=now_ms)
        if not observation.process.is_alive:
            return HostedObservation(sentence, known=state, given_up=given_up)
        launch, progress = observation.launch, str(observation.process)
        if launch is not None:
            progress = describe_progress(observation.heartbeat, launch, now_ms=clock.now_ms())
        progress = describe_state(state.state, observation.heartbeat, otherwise=progress)
        return HostedObservation(sentence, known=replace(state, sentence=progress), is_alive=True)

    def _describe_pause(self, observation: HostedObservation) -> str:
        if (
            observation.is_alive
            or not observation.belongs_to_application
            or (desired := self._open_desired().read()).mode != "paused"
        ):
            return ""
        return f"; paused by {desired.by}: {desired.reason}; start it with `frazil resume {self.stream}`"

    def _announce(self, given_up: GivenUp) -> None:
        """Record that this try fails because the application gave up. The next try, after a *Clear*, reads this."""
        from frazil.host.supervising_run import announce_given_up  # needed by a running trigger only

        if (instance := self.task_instance) is not None:
            run, reason, table = instance.run_id, given_up.reason, given_up.table_fingerprint
            announce_given_up(self.stream, given_up.subject, run_id=run, reason=reason, table_fingerprint=table)

    def _pause(self) -> None:
        desired = self._open_desired()
        if desired.read().mode != "paused":
            desired.pause(by=CHANGED_BY, reason=self._mark_reason())

    def _restart(self) -> None:
        """Restart the stream, unless it was paused outside of Airflow."""
        desired = self._open_desired()
        current = desired.read()
        if current.mode == "paused" and current.by != CHANGED_BY:
            self.log.info("%s stays paused, by %s: %s", self.stream, current.by, current.reason)
            return
        with suppress(DesiredMoved):  # a later action of a user takes precedence
            desired.restart(
                by=CHANGED_BY, reason=f"the task of run {self._run_id()} was cleared", after=current.generation
            )

    def _mark_reason(self) -> str:
        return f"the task of run {self._run_id()} was marked"

    def _run_id(self) -> str:
        return self.task_instance.run_id if self.task_instance else "unknown"

    def _open_desired(self) -> DesiredStore:
        from frazil.spec.last_valid import find_or_recall  # needed by a running trigger only
        from frazil.supervise.desired_state import open_desired_store  # loads PyIceberg

        spec, _ = find_or_recall(Path(self.streams), self.stream)
        return open_desired_store(spec)


def _describe_end(last: ExitRecord) -> str:
    if last.code is None:
        return f": {last.cause or 'killed with its application, or its host went down'}"
    return f" with exit code {last.code}: {last.cause or 'on request'}"
