"""An agent's next step, decided from its observations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.cluster.driver import DriverState, DriverStatus
from frazil.remote.agent_rules import (
    EXIT_TIMEOUT_S,
    REPORT_TIMEOUT_S,
    SUBMISSION_TIMEOUT_S,
    AgentAction,
    DriverObservation,
    decide,
)
from frazil.remote.driver_folder import DriverExit, DriverReport, Order, WantedDriver

WANTED = WantedDriver("f1", "1.0")
ORDER = Order("a" * 32, WANTED, {}, "spark://m:7077", submission="driver-1")
REPORT = DriverReport(7, None, None)


def status(state: DriverState, code: int | None = None) -> DriverStatus:
    return DriverStatus(state, f"it is {state}", code)


RUNNING = DriverObservation(
    wanted=WANTED,
    master="spark://m:7077",
    order=ORDER,
    report=REPORT,
    report_age_s=1.0,
    ordered_since_s=500.0,
    status=status(DriverState.RUNNING),
    found=None,
    followed=True,
    stop=None,
    force=False,
)


def decided(**changes: Any) -> tuple[AgentAction, int]:
    step = decide(dataclasses.replace(RUNNING, **changes))
    return step.action, step.code


def of_order(**changes: Any) -> Order:
    return dataclasses.replace(ORDER, **changes)


def test_a_running_driver_that_matches_its_order_is_followed() -> None:
    assert decided() == (AgentAction.WAIT, 0)
    assert decided(followed=False) == (AgentAction.WAIT, 0), "another agent's, too"
    assert decided(status=status(DriverState.UNKNOWN)) == (AgentAction.WAIT, 0), "a cluster that is silent ends nothing"
    forgot = status(DriverState.GONE)
    assert decided(status=forgot) == (AgentAction.WAIT, 0), (
        "a master without its state forgot it, and it tells that it runs"
    )
    assert decided(status=forgot, report_age_s=REPORT_TIMEOUT_S) == (AgentAction.END, 1)


def test_an_agent_submits_the_first_driver_unless_it_was_asked_to_stop() -> None:
    assert decided(order=None, report=None) == (AgentAction.SUBMIT, 0)
    assert decided(order=None, report=None, stop="SIGTERM") == (AgentAction.END, 0)


def test_an_agent_reports_the_end_of_its_own_driver_and_replaces_the_driver_of_another() -> None:
    ended: dict[str, Any] = {
        "status": status(DriverState.FAILED),
        "report": dataclasses.replace(REPORT, exit=DriverExit(11, "gap")),
    }
    assert decided(**ended) == (AgentAction.END, 11)
    assert decided(**ended, followed=False) == (AgentAction.SUBMIT, 0)
    assert decided(**ended, followed=False, stop="SIGTERM") == (AgentAction.END, 0)
    still_known = {**ended, "status": status(DriverState.RUNNING)}
    assert decided(**still_known) == (AgentAction.WAIT, 0), "it is about to leave"
    assert decided(**still_known, report_age_s=EXIT_TIMEOUT_S) == (AgentAction.END, 11)


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (status(DriverState.SUCCEEDED, 0), 0),
        (status(DriverState.FAILED, 13), 13),
        (status(DriverState.FAILED), 1),
        (status(DriverState.KILLED), 137),
    ],
)
def test_the_cluster_decides_the_outcome_of_a_driver_that_left_no_report(seen: DriverStatus, code: int) -> None:
    assert decided(status=seen, report_age_s=60.0) == (AgentAction.END, code)


@pytest.mark.parametrize(
    "wanted",
    [
        WantedDriver("f2", "1.0"),
        WantedDriver("f1", "1.1"),
        WantedDriver("f1", "1.0", True),
        WantedDriver("f1", "1.0", restart_generation=3),
    ],
)
def test_a_driver_with_a_changed_order_is_asked_to_stop_and_then_replaced(wanted: WantedDriver) -> None:
    assert decided(wanted=wanted, followed=False) == (AgentAction.ASK_TO_STOP, 0)
    requested = of_order(stop="the declaration has changed")
    assert decided(wanted=wanted, order=requested) == (AgentAction.WAIT, 0)
    ended = dataclasses.replace(REPORT, exit=DriverExit(0))
    assert decided(wanted=wanted, order=requested, report=ended, status=status(DriverState.SUCCEEDED)) == (
        AgentAction.SUBMIT,
        0,
    )


def test_a_stop_lets_a_running_driver_commit_its_batch_and_kills_a_driver_that_has_not_started() -> None:
    assert decided(stop="SIGTERM") == (AgentAction.ASK_TO_STOP, 0)
    assert decided(stop="SIGTERM", order=of_order(stop="SIGTERM")) == (AgentAction.WAIT, 0)
    waiting = status(DriverState.WAITING)
    assert decided(stop="SIGTERM", report=None, status=waiting) == (AgentAction.KILL, 0)


def test_a_kill_is_repeated_by_any_agent_until_the_cluster_reports_the_driver_as_killed() -> None:
    assert decided(force=True) == (AgentAction.KILL, 0)
    assert decided(order=of_order(kill=True), followed=False) == (AgentAction.KILL, 0)
    assert decided(force=True, order=of_order(kill=True), status=status(DriverState.KILLED), report_age_s=9.0) == (
        AgentAction.END,
        137,
    )


def test_a_submission_without_a_response_is_awaited_and_then_repeated() -> None:
    lost: dict[str, Any] = {"order": of_order(submission=None), "status": status(DriverState.UNKNOWN)}
    assert decided(**lost, report=None, ordered_since_s=1.0) == (AgentAction.WAIT, 0)
    assert decided(**lost, report=None, ordered_since_s=SUBMISSION_TIMEOUT_S) == (AgentAction.SUBMIT, 0)
    assert decided(**lost, report=None, found="application_1") == (AgentAction.ADOPT, 0)
    assert decided(**lost, report=dataclasses.replace(REPORT, submission="driver-9")) == (AgentAction.ADOPT, 0)
    assert decided(**lost) == (AgentAction.WAIT, 0), "it runs, whatever it is called"
    assert decided(**lost, stop="SIGTERM") == (AgentAction.ASK_TO_STOP, 0)


def test_a_driver_that_starts_after_its_agent_has_ended_finds_the_stop_request() -> None:
    """The driver may be in the cluster's queue, so it has not reported yet."""
    lost: dict[str, Any] = {"order": of_order(submission=None), "status": status(DriverState.UNKNOWN), "report": None}
    assert decided(**lost, stop="SIGTERM", ordered_since_s=1.0) == (AgentAction.ASK_TO_STOP, 0)
    assert decided(**lost, force=True, ordered_since_s=SUBMISSION_TIMEOUT_S) == (AgentAction.KILL, 0)
    for requested in ({"stop": "SIGTERM"}, {"force": True}):
        noted = {**lost, "order": of_order(submission=None, stop="why", kill="force" in requested)}
        assert decided(**noted, **requested, ordered_since_s=1.0) == (AgentAction.WAIT, 0)
        assert decided(**noted, **requested, ordered_since_s=SUBMISSION_TIMEOUT_S) == (
            AgentAction.END,
            137 if "force" in requested else 0,
        )
    killed = of_order(submission=None, stop="why", kill=True)
    assert decided(**{**lost, "order": killed}, found="driver-2", force=True) == (AgentAction.ADOPT, 0)
    assert decided(order=dataclasses.replace(killed, submission="driver-2")) == (AgentAction.KILL, 0), (
        "by the next agent"
    )


STATES = st.sampled_from([status(state) for state in DriverState])
ORDERS = st.one_of(
    st.none(),
    st.builds(
        of_order,
        submission=st.sampled_from([None, "driver-1"]),
        stop=st.sampled_from([None, "why"]),
        kill=st.booleans(),
    ),
)
REPORTS = st.one_of(
    st.none(),
    st.builds(
        DriverReport,
        st.integers(1, 9),
        st.none(),
        st.none(),
        exit=st.sampled_from([None, DriverExit(0), DriverExit(13)]),
    ),
)
SEEN = st.builds(
    DriverObservation,
    wanted=st.sampled_from([WANTED, WantedDriver("f2", "1.0")]),
    master=st.just("spark://m:7077"),
    order=ORDERS,
    report=REPORTS,
    report_age_s=st.floats(0, 200),
    ordered_since_s=st.floats(0, 200),
    status=STATES,
    found=st.sampled_from([None, "driver-2"]),
    followed=st.booleans(),
    stop=st.sampled_from([None, "SIGTERM"]),
    force=st.booleans(),
)


@given(SEEN)
def test_no_driver_is_submitted_while_one_runs_or_after_the_agent_is_asked_to_stop(
    observation: DriverObservation,
) -> None:
    step = decide(observation)
    heard = observation.status.state.has_ended or (
        observation.report is not None and observation.report.exit is not None
    )
    if (
        step.action is AgentAction.END
        and observation.order is not None
        and observation.order.submission is None
        and not heard
    ):
        assert observation.order.stop is not None or observation.order.kill
    if step.action is not AgentAction.SUBMIT:
        return
    assert observation.stop is None
    assert not observation.force
    if observation.order is None:
        return
    reports_end = observation.report is not None and observation.report.exit is not None
    unheard = observation.order.submission is None and observation.ordered_since_s >= SUBMISSION_TIMEOUT_S
    assert observation.status.state.has_ended or reports_end or unheard


EVICTED, DELETED = "Evicted: low on memory", "the pod p was deleted"
NORMALLY = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
GONE = DriverStatus(DriverState.GONE, DELETED)


@pytest.mark.parametrize(
    ("seen", "ended", "reason"),
    [
        (NORMALLY, DriverExit(0), "the driver ended normally"),
        (dataclasses.replace(NORMALLY, cause=EVICTED), None, f"the driver ended normally; {EVICTED}"),
        (DriverStatus(DriverState.FAILED, EVICTED, 143, EVICTED), DriverExit(143, "SIGTERM"), f"SIGTERM; {EVICTED}"),
        (DriverStatus(DriverState.FAILED, EVICTED, 137, EVICTED), None, f"the driver reported no error; {EVICTED}"),
        (DriverStatus(DriverState.FAILED, "it exited with code 11", 11), DriverExit(11, "OffsetGap"), "OffsetGap"),
        (GONE, DriverExit(0), f"the driver ended normally; {DELETED}"),
        (dataclasses.replace(GONE, cause=EVICTED), DriverExit(0), f"the driver ended normally; {DELETED}; {EVICTED}"),
        (dataclasses.replace(GONE, cause=EVICTED), None, f"the driver reported no error; {DELETED}; {EVICTED}"),
    ],
)
def test_a_driver_exit_is_explained_by_the_driver_and_the_cause_from_the_cluster(
    seen: DriverStatus, ended: DriverExit | None, reason: str
) -> None:
    report = dataclasses.replace(REPORT, exit=ended)
    step = decide(dataclasses.replace(RUNNING, report=report, status=seen, report_age_s=60.0))
    assert step.action is AgentAction.END
    assert step.reason == reason


def test_a_driver_that_never_started_ends_a_requested_stop_without_an_error() -> None:
    gone = status(DriverState.GONE)
    assert decided(report=None, status=gone, stop="SIGTERM") == (AgentAction.END, 0)
    assert decided(report=None, status=status(DriverState.FAILED, 1), stop="SIGTERM") == (AgentAction.END, 1)
