"""The page shows an action's effects before it is applied, and refuses an impossible action with an alternative."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from frazil.operations.page_actions import (
    CONFIRMED_BY_NAME,
    DAG_ACTIONS,
    DEPENDENCIES,
    DRY_RUN_ACTIONS,
    ActionContext,
    MissingComponent,
    PageAction,
    build_plan,
    describe_changes,
)


def test_each_action_describes_its_effects_and_names_its_stream_in_every_situation():
    choices = product(PageAction, [None, "running", "paused"], [True, False], [True, False], [None, True, False])
    for action, desired, runs, table, paused in choices:
        now = ActionContext("ticks", desired, 1, runs, table, "frazil_dag", paused)
        plan = build_plan(action, now)
        assert plan.effects
        assert any("ticks" in said or "riter" in said for said in plan.effects)
        assert all(said.endswith(".") for said in plan.effects)
        assert plan.retype == (action in CONFIRMED_BY_NAME)
        assert build_plan(action, now, is_dry_run=True).retype == (action in CONFIRMED_BY_NAME - DRY_RUN_ACTIONS)
        if action in DAG_ACTIONS and table:
            assert (plan.refused is None) == (paused is not None)
            assert any("is paused: the run starts when" in said for said in plan.effects) == bool(paused)


CHANGED: dict[str, Any] = {"generation": 4, "dag_paused": True, "backfill": "b-1 staged"}
SEEN = ActionContext("ticks", "running", 3, dag="frazil_dag", dag_paused=False)


@pytest.mark.parametrize("action", PageAction)
def test_a_version_token_changes_with_the_actions_dependencies_but_not_with_the_process(action: PageAction):
    version_token = build_plan(action, SEEN).version_token
    for name, value in CHANGED.items():
        assert (build_plan(action, replace(SEEN, **{name: value})).version_token != version_token) == (
            name in DEPENDENCIES[action]
        )
    assert build_plan(action, replace(SEEN, writer_runs=True)).version_token == version_token


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"generation": 4}, "another user paused, resumed or restarted it"),
        ({"dag_paused": True}, "its DAG was paused in Airflow"),
        ({"dag_paused": None}, "its DAG was removed from Airflow"),
        (
            {"generation": 4, "dag_paused": True},
            "another user paused, resumed or restarted it, and its DAG was paused in Airflow",
        ),
    ],
)
def test_a_late_confirmation_reports_the_change(change: dict[str, Any], said: str):
    assert (
        describe_changes(
            PageAction.RESTART,
            SEEN.version_token(PageAction.RESTART),
            replace(SEEN, **change).version_token(PageAction.RESTART),
        )
        == said
    )


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("", "b-1 staging", "the backfill or replay b-1 staging started"),
        ("b-1 staging", "b-1 staged", "the backfill or replay changed from b-1 staging to b-1 staged"),
        ("b-1 staged", "", "the backfill or replay b-1 staged ended"),
    ],
)
def test_a_late_backfill_confirmation_reports_how_another_backfill_continued(was: str, now: str, said: str):
    before, after = (replace(SEEN, backfill=backfill).version_token(PageAction.BACKFILL) for backfill in (was, now))
    assert describe_changes(PageAction.BACKFILL, before, after) == said


def test_a_late_confirmation_of_a_reset_or_an_abandon_reports_the_change():
    before = SEEN.version_token(PageAction.RESET)
    assert describe_changes(PageAction.RESET, f"{before}/a", f"{before}/b").startswith("its position moved")
    assert describe_changes(PageAction.ABANDON, "/b-1", "/b-2") == "another backfill or replay is in progress"


def test_a_backfill_under_way_is_reported_before_a_second_one_is_queued():
    says = build_plan(
        PageAction.BACKFILL, replace(SEEN, backfill="b-1 staged", staged="Backfill b-1 has staged nothing yet.")
    ).effects
    assert "Backfill b-1 has staged nothing yet." in says
    assert any("A run with another form starts after" in said for said in says)
    assert not any("with another form" in said for said in build_plan(PageAction.BACKFILL, SEEN).effects)


def test_an_action_names_the_airflow_process_that_must_run_before_it_takes_effect():
    gone = tuple(
        MissingComponent(name, f"Airflow's {name} has never run", f"airflow {name}")
        for name in ("scheduler", "triggerer")
    )
    waits = {
        action: {
            gone[i].component
            for i in (0, 1)
            if f"{gone[i].words}: the action takes effect when the {gone[i].component} runs again." in says
        }
        for action in PageAction
        for says in [build_plan(action, replace(SEEN, silent=gone)).effects]
    }
    assert {action for action, names in waits.items() if "scheduler" in names} == {*DAG_ACTIONS, PageAction.SEND_AGAIN}
    assert {action for action, names in waits.items() if not names} == {PageAction.RESET, PageAction.ABANDON}


def test_a_running_stream_is_not_reset():
    assert "Pause the stream first" in (
        build_plan(PageAction.RESET, ActionContext("ticks", writer_runs=True)).refused or ""
    )
    assert build_plan(PageAction.RESET, ActionContext("ticks")).refused is None


def test_a_paused_stream_is_not_paused_again_and_is_resumed_by_a_restart():
    assert build_plan(PageAction.PAUSE, ActionContext("ticks", "paused")).refused == "ticks is already paused"
    assert (
        "ticks is paused; this action resumes it."
        in build_plan(PageAction.RESTART, ActionContext("ticks", "paused")).effects
    )


@pytest.mark.parametrize("action", [PageAction.RESUME, PageAction.RESTART])
def test_where_nothing_supervises_a_stream_its_start_is_not_promised(action: PageAction):
    none = build_plan(action, ActionContext("ticks", dag="frazil_writer_ticks", dag_paused=None))
    assert any("ticks is not supervised" in said for said in none.effects)
    paused = build_plan(action, ActionContext("ticks", dag="frazil_writer_ticks", dag_paused=True))
    assert any("no writer starts until you unpause it" in said for said in paused.effects)
