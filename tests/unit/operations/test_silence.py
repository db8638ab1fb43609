"""Airflow components that do not run are reported: since when, what that means, and how to start them."""

from __future__ import annotations

from frazil.operations.page_actions import EFFECTS, MAX_HEARTBEAT_AGE_MS, ComponentHeartbeat, find_missing

NOW_MS = 1_700_000_000_000
ALIVE = dict.fromkeys(EFFECTS, ComponentHeartbeat(NOW_MS - MAX_HEARTBEAT_AGE_MS))


def test_nothing_is_said_while_each_gives_signs_of_life():
    assert find_missing(ALIVE, now_ms=NOW_MS) == ()


def test_a_dead_scheduler_is_reported_with_since_when_what_it_means_and_what_to_do():
    (found,) = find_missing({**ALIVE, "scheduler": ComponentHeartbeat(NOW_MS - 423_000)}, now_ms=NOW_MS)
    assert found.sentence(NOW_MS - 423_000) == (
        "Airflow's scheduler has sent no heartbeat for 7 min 3 s: no run or task starts, so nothing is "
        "measured, maintained or signalled, and your actions wait. Alerts are as of 2023-11-14 22:06:17Z. "
        "Start it: `airflow scheduler`"
    )


def test_what_frazil_dev_up_started_is_started_again_by_it():
    found = find_missing({}, now_ms=NOW_MS, dev=True)
    assert {one.start for one in found} == {"frazil dev up --airflow"}
    assert found[0].sentence().endswith("Start it: `frazil dev up --airflow`")


def test_what_was_stopped_or_never_ran_is_reported_too():
    heartbeats = {
        "scheduler": ComponentHeartbeat(NOW_MS - 20_000, should_run=False),
        "dag-processor": ComponentHeartbeat(NOW_MS),
    }
    assert [one.words for one in find_missing(heartbeats, now_ms=NOW_MS)] == [
        "Airflow's scheduler was stopped 20 s ago",
        "Airflow's triggerer has never run",
    ]
