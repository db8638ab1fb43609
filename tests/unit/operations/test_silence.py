"""Airflow components that do not run are reported: since when, what that means, and how to start them."""

from __future__ import annotations

from frazil.operations.page_actions import EFFECTS, MAX_HEARTBEAT_AGE_MS, ComponentHeartbeat, find_missing

NOW_MS = 1_700_000_000_000
ALIVE = dict.fromkeys(EFFECTS, ComponentHeartbeat(NOW_MS - MAX_HEARTBEAT_AGE_MS))


def test_no_component_is_reported_missing_while_all_send_heartbeats():
    assert find_missing(ALIVE, now_ms=NOW_MS) == ()


def test_a_dead_scheduler_is_reported_with_start_time_meaning_and_remedy():
    (found,) = find_missing({**ALIVE, "scheduler": ComponentHeartbeat(NOW_MS - 423_000)}, now_ms=NOW_MS)
    assert found.sentence(NOW_MS - 423_000) == (
        "Airflow's scheduler has sent no heartbeat for 7 min 3 s: no run or task starts, so nothing is "
        "measured, maintained or signalled, and your actions wait. Alerts are as of 2023-11-14 22:06:17Z. "
        "Start it: `airflow scheduler`"
    )


def test_a_missing_component_of_frazil_dev_up_is_restarted_with_frazil_dev_up():
    found = find_missing({}, now_ms=NOW_MS, in_dev=True)
    assert {one.start for one in found} == {"frazil dev up --airflow"}
    assert found[0].sentence().endswith("Start it: `frazil dev up --airflow`")


def test_stopped_airflow_components_and_those_that_never_ran_are_reported():
    heartbeats = {
        "scheduler": ComponentHeartbeat(NOW_MS - 20_000, should_run=False),
        "dag-processor": ComponentHeartbeat(NOW_MS),
    }
    assert [one.words for one in find_missing(heartbeats, now_ms=NOW_MS)] == [
        "Airflow's scheduler was stopped 20 s ago",
        "Airflow's triggerer has never run",
    ]
