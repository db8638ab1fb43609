from __future__ import annotations

import pytest

from frazil.operations.page_actions import TaskResult, describe_run

WAITS = [TaskResult("plan", "success", "Stream ticks: 12 of 40 offsets are missing."), TaskResult("stage", "deferred")]


@pytest.mark.parametrize(
    ("state", "tasks", "said", "log"),
    [
        ("queued", [], "The run is queued.", ""),
        ("running", WAITS, "The task stage is running.", "/tasks/stage"),
        (
            "running",
            [TaskResult("settle", "up_for_retry", "exit code 1: no answer")],
            "The task settle failed and will be retried: exit code 1: no answer",
            "/tasks/settle",
        ),
        (
            "failed",
            [TaskResult("table.rewrite", "failed", map_index=3), TaskResult("table.orphans", "upstream_failed")],
            "The task table.rewrite failed: its log has the error",
            "/tasks/table.rewrite/mapped/3",
        ),
        ("failed", [], "The run failed before any of its tasks did: see the run in Airflow.", ""),
        ("success", [TaskResult("a", "success")], "The run succeeded.", ""),
        (
            "success",
            [TaskResult("plan", "success", "12 are missing."), TaskResult("publish", "success", "it is published")],
            "12 are missing; it is published.",
            "/tasks/publish",
        ),
    ],
)
def test_a_run_result_is_one_sentence_with_the_link_to_its_log(
    state: str, tasks: list[TaskResult], said: str, log: str
):
    found = describe_run("frazil_backfill", "manual__ticks.0", state, tasks, is_paused=False)
    assert (found.message, found.log) == (said, f"/dags/frazil_backfill/runs/manual__ticks.0{log}")
    assert found.finished == (state in {"success", "failed"})


def test_a_queued_run_of_a_paused_dag_reports_that_it_waits_for_the_unpause():
    found = describe_run("frazil_backfill", "r", "queued", [], is_paused=True)
    assert found.message == "The run waits, because the DAG frazil_backfill is paused in Airflow: unpause it."
