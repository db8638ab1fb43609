"""The local agent of a driver in a cluster: submits the driver, follows it, and ends when it ends. For its supervisor,
the agent is the writer: it has the lock, the heartbeat, the log and the exit code. It observes the driver through the
table's storage and the cluster's API, so a new agent finds the driver of an earlier one.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from frazil import __version__
from frazil.cluster.driver import ApiUnavailable, DriverState, DriverStatus
from frazil.errors import Failure, Fenced, FrazilError, explain
from frazil.home import make_folder, run_folder
from frazil.host.process_log import log_to_stderr
from frazil.host.processes import KILL_SIGNAL, record_agent
from frazil.remote.agent_rules import KILLED_CODE, AgentAction, AgentStep, DriverObservation, decide
from frazil.remote.driver_folder import DriverFolder, DriverReport, LogEnd, Order, WantedDriver
from frazil.remote.driver_inputs import DriverInputs, prepare_driver
from frazil.remote.heartbeat_mirror import HeartbeatMirror
from frazil.remote.submitter import Submitter, create_submitter
from frazil.safe_text import escape_unsafe
from frazil.spec.model import StreamSpec

log = logging.getLogger("frazil")

POLL_INTERVAL_S = 1.5
QUERY_INTERVAL_S = 5.0
"""Seconds between two requests to the cluster while the driver reports regularly."""
KILL_INTERVAL_S = 5.0
REPORT_TIMEOUT_S = 10.0
"""Seconds without a new report after which each poll also queries the cluster."""
MAX_LOG_BYTES = 64 * 1024
MAX_LINE_CHARACTERS = 300
_UNKNOWN_STATUS = DriverStatus(DriverState.UNKNOWN, "the cluster has not been queried yet")


def run_agent(spec: StreamSpec, streams: Path, *, program: Path, until_caught_up: bool = False) -> int:
    """Write the stream with a driver in the cluster. SIGTERM ends the driver after its batch; SIGUSR1 kills it."""
    log_to_stderr()
    folder = run_folder(spec.name)
    make_folder(folder)
    signals = StopSignals()
    signals.listen()
    with HeartbeatMirror(spec, folder) as mirror:
        record_agent(folder)
        try:
            inputs = prepare_driver(spec, streams, program=program)
            agent = Agent(inputs, create_submitter(inputs.resources), mirror, signals, until_caught_up=until_caught_up)
            code, cause = agent.run()
        except FrazilError as problem:
            log.error("%s: %s", type(problem).__name__, problem)  # noqa: TRY400
            code, cause = problem.exit_code, explain(problem)
        mirror.end(cause if code else None)
    return code


@dataclass(slots=True)
class StopSignals:
    stop: str | None = None
    force: bool = False
    wake: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        def stop(signum: int, _: FrameType | None) -> None:
            self.stop = self.stop or f"the agent was asked to end ({signal.Signals(signum).name})"
            self.wake.set()

        def force(_: int, __: FrameType | None) -> None:
            self.force = True
            self.wake.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(KILL_SIGNAL, force)


class Agent:
    """Follows one driver until it has ended: polls, decides (`frazil.remote.agent_rules`) and acts."""

    def __init__(  # noqa: PLR0913 - what an agent works with
        self,
        inputs: DriverInputs,
        cluster: Submitter,
        mirror: HeartbeatMirror,
        signals: StopSignals,
        *,
        until_caught_up: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inputs, self._cluster, self._mirror, self._signals = inputs, cluster, mirror, signals
        self._folder: DriverFolder = inputs.folder
        self._until_caught_up, self._monotonic = until_caught_up, monotonic
        self._order: Order | None = None
        self._report: DriverReport | None = None
        self._reported_at_s = self._ordered_at_s = monotonic()
        self._status, self._polled_at_s = _UNKNOWN_STATUS, float("-inf")
        self._followed = False
        self._reports_read = self._log_shown = 0
        self._submit_problem: str | None = None
        """Why the last submission had no response; None if it had one."""
        self._killed_at_s = float("-inf")

    def run(self) -> tuple[int, Failure]:
        """Follow the driver until it ends. Return the exit code and the reason. Raises submission errors and Fenced."""
        while True:
            try:
                observation = self._observe()
            except Exception as error:  # a storage outage must not make this agent abandon its driver
                self._mirror.set_outage(f"cannot read the driver's report: {type(error).__name__}: {error}")
                log.warning("cannot read the driver's report: %s", error)
            else:
                self._mirror.set_outage(None)
                step = decide(observation)
                if step.action is AgentAction.END:
                    return self._end(step)
                self._carry_out(step)
            self._signals.wake.wait(POLL_INTERVAL_S)
            self._signals.wake.clear()

    def _observe(self) -> DriverObservation:
        if self._order is None:
            self._order = self._folder.order()
        if self._order is not None:
            self._read_report(self._order)
            self._query_cluster(self._order)
            if self._status.state.has_ended:  # perhaps since the report was read
                self._read_report(self._order)
        now_s = self._monotonic()
        followed = self._status.state in {DriverState.WAITING, DriverState.RUNNING}
        self._followed = self._followed or followed or (self._report is not None and self._reports_read > 1)
        # The cluster's name of the driver, if its submission returned none.
        is_unnamed = self._order is not None and self._order.submission is None
        driver = self._cluster.find(self._inputs.driver(self._order.id)) if self._order and is_unnamed else None
        return DriverObservation(
            wanted=self._wanted_driver(),
            master=self._inputs.resources.master,
            order=self._order,
            report=self._report,
            report_age_s=now_s - self._reported_at_s,
            ordered_since_s=now_s - self._ordered_at_s,
            status=self._status,
            found=driver,
            followed=self._followed,
            stop=self._signals.stop,
            force=self._signals.force,
        )

    def _read_report(self, order: Order) -> None:
        report = self._folder.report(order.id)
        if report is None or (self._report is not None and report.number == self._report.number):
            return
        self._report, self._reported_at_s = report, self._monotonic()
        self._reports_read += 1
        if report.heartbeat is not None:
            self._mirror.copy_heartbeat(report.heartbeat)
        if report.log_bytes > self._log_shown:
            self._append_log(self._folder.log_end(order.id))

    def _append_log(self, end: LogEnd | None) -> None:
        if end is None or end.bytes <= self._log_shown:
            return
        new, text = end.bytes - self._log_shown, end.text.encode()
        if new > len(text):
            log.info("%d bytes of the driver's log are omitted", new - len(text))
        sys.stderr.write(text[-new:].decode(errors="replace"))
        sys.stderr.flush()
        self._log_shown = end.bytes

    def _query_cluster(self, order: Order) -> None:
        if order.submission is None:
            self._status = DriverStatus(DriverState.UNKNOWN, "the cluster has not returned the driver's name yet")
            self._mirror.show_missing_name(self._submit_problem)
            return
        now_s = self._monotonic()
        well = self._report is not None and self._report.exit is None and now_s - self._reported_at_s < REPORT_TIMEOUT_S
        urgent = not well or self._signals.force or self._status is _UNKNOWN_STATUS
        if not urgent and now_s - self._polled_at_s < QUERY_INTERVAL_S:
            return
        self._polled_at_s = now_s
        status = self._cluster.open(order.submission).status()
        if status.state is DriverState.GONE:
            status = dataclasses.replace(status, cause=self._status.cause)  # which only the pod named
        self._status = status
        self._mirror.show_status(order.submission, self._status)

    def _carry_out(self, step: AgentStep) -> None:
        if step.action is not AgentAction.WAIT:
            log.info("driver of stream %r: %s: %s", self._inputs.spec.name, step.action, step.reason)
        match step.action:
            case AgentAction.SUBMIT:
                self._submit()
            case AgentAction.ADOPT:
                self._change_order(submission=step.reason)
            case AgentAction.ASK_TO_STOP:
                self._change_order(stop=step.reason)
            case AgentAction.KILL:
                self._kill()

    def _submit(self) -> None:
        order = Order(
            id=uuid.uuid4().hex,
            wanted=self._wanted_driver(),
            declared=self._inputs.declared,
            master=self._inputs.resources.master,
        )
        if self._order is None and (other := self._folder.order()) is not None:
            self._order = other  # from a concurrent agent: the next poll decides about its driver
            return
        former = self._current_order()
        # The order precedes the submission. Otherwise, nothing would refer to the driver.
        self._folder.put_order(order)
        self._order, self._report, self._status = order, None, _UNKNOWN_STATUS
        self._ordered_at_s, self._followed, self._log_shown, self._reports_read = self._monotonic(), True, 0, 0
        try:
            submission = self._cluster.submit(self._inputs.driver(order.id))
        except ApiUnavailable as error:
            self._ordered_at_s = self._monotonic()
            self._submit_problem = str(error)
            log.warning("the cluster did not respond to the submission of a driver: %s", error)
            return
        log.info("the driver of stream %r is %s", self._inputs.spec.name, submission)
        self._change_order(submission=submission)
        self._folder.delete_all_but(order.id)
        if former is not None and former.submission is not None and former.master == order.master:
            # Kubernetes keeps the pod of a driver that has ended, with its log, until it is deleted.
            with suppress(FrazilError):
                self._cluster.open(former.submission).kill()

    def _kill(self) -> None:
        """Kill the driver. The order records the kill, so that a later agent continues it."""
        if self._order is None:
            return
        if not self._order.kill:
            # The next agent continues the kill. A driver that starts late reads the stop.
            order = self._current_order() or self._order
            self._change_order(kill=True, stop=order.stop or "the supervisor killed the driver")
        if self._order.submission is None:
            return
        if self._monotonic() - self._killed_at_s < KILL_INTERVAL_S:
            return
        self._killed_at_s = self._monotonic()
        try:
            self._cluster.open(self._order.submission).kill()
        except FrazilError as error:
            log.warning("cannot kill the driver; will retry: %s", error)

    def _change_order(self, **changes: Any) -> None:
        if (order := self._current_order()) is not None:
            self._order = dataclasses.replace(order, **changes)
            self._folder.put_order(self._order)

    def _current_order(self) -> Order | None:
        """Return the current order. Raises Fenced if another agent has ordered a newer driver."""
        order = self._folder.order()
        if order is None or self._order is None or order.id == self._order.id:
            return order or self._order
        stream = self._inputs.spec.name
        raise Fenced(
            f"another agent of stream {stream!r}, perhaps on another host, submitted a newer driver. This agent ends, "
            "and the newer driver continues",
            remedy=f"See `frazil status {stream}`",
        )

    def _end(self, step: AgentStep) -> tuple[int, Failure]:
        if self._order is not None and self._followed:
            self._append_log(self._folder.log_end(self._order.id))
            if self._order.submission and not self._has_reported_exit():
                text = self._cluster.open(self._order.submission).log(limit_bytes=MAX_LOG_BYTES)
                if text:
                    sys.stderr.write(f"{text}\n")
                    step = dataclasses.replace(step, reason=f"{step.reason}; {_quote_last_line(text)}")
            if self._order.submission and not self._status.state.has_ended:
                # Its Python has ended, but its JVM may hold executors forever.
                with suppress(FrazilError):
                    self._cluster.open(self._order.submission).kill()
        if step.code == 0 and self._signals.stop is None and not self._signals.force:
            order = self._current_order()
            if self._until_caught_up and order is not None and order.stop is not None:
                raise Fenced(f"another agent stopped the driver before it had caught up ({order.stop})")
        code = KILLED_CODE if self._signals.force and step.code == 0 and not self._has_reported_exit() else step.code
        log.log(logging.ERROR if code else logging.INFO, "the driver has ended: %s", step.reason)
        return code, Failure(step.reason)

    def _has_reported_exit(self) -> bool:
        return self._report is not None and self._report.exit is not None

    def _wanted_driver(self) -> WantedDriver:
        inputs = self._inputs
        return WantedDriver(inputs.spec.fingerprint(), __version__, self._until_caught_up, inputs.restart_generation)


def _quote_last_line(log_text: str) -> str:
    last = next((line.strip() for line in reversed(log_text.splitlines()) if line.strip()), "")
    return f"its log ends with: {escape_unsafe(last[-MAX_LINE_CHARACTERS:], lines=False)}"
