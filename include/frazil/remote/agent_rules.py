"""Decides an agent's next step from the order, the driver's report and the cluster's status. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frazil.cluster.driver import DriverState, DriverStatus
from frazil.remote.driver_folder import DriverReport, Order, WantedDriver

SUBMISSION_TIMEOUT_S = 60.0
"""Seconds to wait for a driver whose submission had no response, before another is submitted."""
REPORT_TIMEOUT_S = 15.0
"""Seconds since its last report until a driver that the cluster does not list counts as ended."""
EXIT_TIMEOUT_S = 30.0
"""Seconds for which the cluster may list a driver as running after it has reported its end."""
KILLED_CODE = 137
CRASHED_CODE = 1


class AgentAction(StrEnum):
    SUBMIT = "submit"
    ADOPT = "adopt"
    """Record the driver's name in the cluster, which was unknown."""
    ASK_TO_STOP = "ask to stop"
    KILL = "kill"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True)
class AgentStep:
    action: AgentAction
    reason: str
    """A sentence for operators. For ADOPT, the driver's name in the cluster."""
    code: int = 0


@dataclass(frozen=True, slots=True)
class DriverObservation:
    """What an agent knows about its driver. Times are seconds of the agent's own clock."""

    wanted: WantedDriver
    master: str
    order: Order | None
    report: DriverReport | None
    report_age_s: float
    """Time since this agent last received a new report."""
    ordered_since_s: float
    """Time since this agent ordered the driver or, if another agent did, since this agent started."""
    status: DriverStatus
    """The ordered driver's status; UNKNOWN while its name is unknown."""
    found: str | None
    """The driver's name in the cluster, if the submission did not return it but a search did."""
    followed: bool
    """Whether this agent submitted the driver, or has seen it running."""
    stop: str | None
    force: bool


def decide(observation: DriverObservation) -> AgentStep:  # noqa: PLR0911 - a return for each rule
    """Return the step of the first rule that applies. An agent never submits a driver while another may run."""
    order = observation.order
    if order is None:
        return _submit_or_end(observation, "no driver was submitted before")
    if end := _find_end(observation):
        return _after_end(observation, order, end)
    if order.submission is None:
        return _await_submission(observation, order)
    if observation.force or order.kill:
        return AgentStep(
            AgentAction.KILL,
            "the driver did not end after a stop request" if order.kill else "the supervisor kills the driver",
        )
    reason = observation.stop or _describe_difference(observation, order)
    if reason is not None and order.stop is None:
        if observation.report is None and observation.status.state is DriverState.WAITING:
            return AgentStep(AgentAction.KILL, f"{reason}, and the driver has not started yet")
        return AgentStep(AgentAction.ASK_TO_STOP, reason)
    return AgentStep(AgentAction.WAIT, observation.status.reason)


def _submit_or_end(observation: DriverObservation, reason: str) -> AgentStep:
    if observation.force:
        return AgentStep(AgentAction.END, "the supervisor asked to kill the driver, but no driver runs", KILLED_CODE)
    if observation.stop is not None:
        return AgentStep(AgentAction.END, f"{observation.stop}, and no driver runs")
    return AgentStep(AgentAction.SUBMIT, reason)


def _find_end(observation: DriverObservation) -> AgentStep | None:
    ended = observation.report.exit if observation.report else None
    state = observation.status.state
    if ended is not None and (
        state.has_ended or observation.report_age_s >= EXIT_TIMEOUT_S or state is DriverState.UNKNOWN
    ):
        ending = f"it ended with exit code {ended.code}" if ended.code else "the driver ended normally"
        return AgentStep(AgentAction.END, _describe_end(ended.error or ending, observation.status), ended.code)
    if not state.has_ended or (
        state is DriverState.GONE and observation.report and observation.report_age_s < REPORT_TIMEOUT_S
    ):
        return None
    if state is DriverState.SUCCEEDED:
        return AgentStep(AgentAction.END, _describe_end(observation.status.reason, observation.status))
    code = observation.status.exit_code or (KILLED_CODE if state is DriverState.KILLED else CRASHED_CODE)
    ending = f"the driver reported no error; {observation.status.reason}"
    return AgentStep(AgentAction.END, _describe_end(ending, observation.status), code)


def _describe_end(ending: str, status: DriverStatus) -> str:
    """Return how the driver ended, and why the cluster ended it."""
    reasons = (status.reason if status.state is DriverState.GONE else None, status.cause)
    return "; ".join([ending, *(reason for reason in reasons if reason and reason not in ending)])


def _after_end(observation: DriverObservation, order: Order, end: AgentStep) -> AgentStep:
    """Return the step after the ordered driver has ended: submit another driver, or end with the driver's exit code."""
    if observation.stop is not None or observation.force:
        started = observation.report is not None or observation.status.exit_code is not None
        return end if observation.followed and started else _submit_or_end(observation, end.reason)
    if not observation.followed:
        return AgentStep(AgentAction.SUBMIT, f"the last driver has ended: {end.reason}")
    if order.stop is not None and (reason := _describe_difference(observation, order)) is not None:
        return AgentStep(AgentAction.SUBMIT, f"{reason}, and the last driver has ended")
    return end


def _await_submission(observation: DriverObservation, order: Order) -> AgentStep:
    """Return the next step while the driver's name is unknown: the driver may run, start later, or not exist."""
    if name := (observation.report.submission if observation.report else None) or observation.found:
        return AgentStep(AgentAction.ADOPT, name)
    if observation.force and not order.kill:
        return AgentStep(AgentAction.KILL, "the supervisor kills the driver")
    reason = observation.stop or _describe_difference(observation, order)
    if reason is not None and order.stop is None:  # the cluster may start it after this agent has ended
        return AgentStep(AgentAction.ASK_TO_STOP, reason)
    if observation.report is not None and observation.report_age_s < REPORT_TIMEOUT_S:
        return AgentStep(AgentAction.WAIT, "the driver runs; its name in the cluster is not known yet")
    if observation.ordered_since_s < SUBMISSION_TIMEOUT_S:
        reason = "the cluster did not respond to the submission, so the driver may still start"
        return AgentStep(AgentAction.WAIT, reason)
    return _submit_or_end(observation, f"the last driver did not report within {SUBMISSION_TIMEOUT_S:.0f} s")


def _describe_difference(observation: DriverObservation, order: Order) -> str | None:
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
