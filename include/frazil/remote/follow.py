"""Decides an agent's next step from the order, the driver's report and the cluster's status. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frazil.cluster.driver import DriverState, DriverStatus
from frazil.remote.driver_folder import DriverReport, Order, Wanted

SUBMISSION_TIMEOUT_S = 60.0
"""Seconds to wait for a driver whose submission had no response, before another driver is submitted."""
REPORT_VALID_S = 15.0
"""Seconds for which a driver counts as running after its report, even if the cluster no longer lists it."""
EXIT_TIMEOUT_S = 30.0
"""Seconds for which a driver that reported its end may still be listed as running."""
KILLED = 137
CRASHED = 1


class AgentAction(StrEnum):
    SUBMIT = "submit"
    ADOPT = "adopt"
    """Record the name that the cluster gave the driver."""
    ASK_TO_STOP = "ask to stop"
    KILL = "kill"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True)
class Step:
    """An agent's next step."""

    action: AgentAction
    reason: str
    """A sentence for operators."""
    code: int = 0
    """The exit code of the agent, for END."""


@dataclass(frozen=True, slots=True)
class DriverObservation:
    """An agent's observation at one time. Times are seconds of the agent's own clock."""

    wanted: Wanted
    master: str
    order: Order | None
    report: DriverReport | None
    """The last report of the order's driver."""
    report_age_s: float
    """Seconds since this agent last saw a change in the report."""
    ordered_since_s: float
    """Seconds since this agent ordered the driver; if another agent ordered it, since this agent started."""
    status: DriverStatus
    """The cluster's status of the order's driver; UNKNOWN while its name is unknown."""
    found: str | None
    """The cluster's name of a driver whose submission had no response."""
    followed: bool
    """Whether this agent submitted the driver, or has seen it alive."""
    stop: str | None
    """Why this agent was asked to end; None if it was not asked."""
    force: bool
    """Whether this agent was asked to kill the driver."""


def decide(observation: DriverObservation) -> Step:  # noqa: PLR0911 - a return for each rule
    """Return the step of the first rule that applies.

    An agent never submits a driver next to one that may still run.
    """
    order = observation.order
    if order is None:
        return _submit_or_end(observation, "no driver has been submitted before")
    if end := _find_end(observation):
        return _after_end(observation, order, end)
    if order.submission is None:
        return _await_submission(observation, order)
    if observation.force or order.kill:
        return Step(
            AgentAction.KILL,
            "the driver did not end after a stop request" if order.kill else "the supervisor kills the driver",
        )
    reason = observation.stop or _difference(observation, order)
    if reason is not None and order.stop is None:
        if observation.report is None and observation.status.state is DriverState.WAITING:
            return Step(AgentAction.KILL, f"{reason}, and the driver has not started yet")
        return Step(AgentAction.ASK_TO_STOP, reason)
    return Step(AgentAction.WAIT, observation.status.reason)


def _submit_or_end(observation: DriverObservation, reason: str) -> Step:
    if observation.force:
        return Step(AgentAction.END, "the supervisor kills the driver, but no driver runs", KILLED)
    if observation.stop is not None:
        return Step(AgentAction.END, f"{observation.stop}, and no driver runs")
    return Step(AgentAction.SUBMIT, reason)


def _find_end(observation: DriverObservation) -> Step | None:
    """Return how the order's driver ended; None if it may still run."""
    ended = observation.report.exit if observation.report else None
    state = observation.status.state
    if ended is not None and (
        state.has_ended or observation.report_age_s >= EXIT_TIMEOUT_S or state is DriverState.UNKNOWN
    ):
        how = f"it ended with exit code {ended.code}" if ended.code else "the driver ended normally"
        if state is DriverState.GONE:
            how = f"{how}; {observation.status.reason}"
        elif state is DriverState.SUCCEEDED:
            how = observation.status.reason  # names an eviction, for example
        return Step(AgentAction.END, ended.error or how, ended.code)
    if not state.has_ended or (
        state is DriverState.GONE and observation.report and observation.report_age_s < REPORT_VALID_S
    ):
        return None
    if state is DriverState.SUCCEEDED:
        return Step(AgentAction.END, observation.status.reason)
    code = observation.status.exit_code or (KILLED if state is DriverState.KILLED else CRASHED)
    return Step(AgentAction.END, f"the driver reported no error; {observation.status.reason}", code)


def _after_end(observation: DriverObservation, order: Order, end: Step) -> Step:
    """Return the step after the end of the order's driver: submit another driver, or report this end."""
    if observation.stop is not None or observation.force:
        started = observation.report is not None or observation.status.exit_code is not None
        return end if observation.followed and started else _submit_or_end(observation, end.reason)
    if not observation.followed:
        return Step(AgentAction.SUBMIT, f"the last driver has ended: {end.reason}")
    if order.stop is not None and (reason := _difference(observation, order)) is not None:
        return Step(AgentAction.SUBMIT, f"{reason}, and the last driver has ended")
    return end


def _await_submission(observation: DriverObservation, order: Order) -> Step:
    """Return the step while the driver's name in the cluster is unknown: it may run, start later, or not exist."""
    if name := (observation.report.submission if observation.report else None) or observation.found:
        return Step(AgentAction.ADOPT, name)
    if observation.force and not order.kill:
        return Step(AgentAction.KILL, "the supervisor kills the driver")
    reason = observation.stop or _difference(observation, order)
    if reason is not None and order.stop is None:  # the cluster may start it after this agent has ended
        return Step(AgentAction.ASK_TO_STOP, reason)
    if observation.report is not None and observation.report_age_s < REPORT_VALID_S:
        return Step(AgentAction.WAIT, "the driver runs; its name in the cluster is not known yet")
    if observation.ordered_since_s < SUBMISSION_TIMEOUT_S:
        return Step(AgentAction.WAIT, "the cluster did not respond to the submission, so the driver may still start")
    return _submit_or_end(observation, f"the last driver did not report within {SUBMISSION_TIMEOUT_S:.0f} s")


def _difference(observation: DriverObservation, order: Order) -> str | None:
    """Return how the order's driver differs from the wanted one; None if it does not."""
    if order.master != observation.master:
        return f"resources.master has changed from {order.master}"
    if order.wanted.fingerprint != observation.wanted.fingerprint:
        return "the declaration has changed"
    if order.wanted.version != observation.wanted.version:
        return f"the driver was submitted by frazil {order.wanted.version}"
    if order.wanted.restart_generation < observation.wanted.restart_generation:
        return "a restart was requested"
    if order.wanted.until_caught_up != observation.wanted.until_caught_up:
        return "the option --until-caught-up has changed"
    return None
