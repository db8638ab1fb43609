"""Maintenance checks each table at its declared interval, and skips tables that an earlier run still maintains."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowSkipException
from hypothesis import given
from hypothesis import strategies as st

from frazil.airflow.maintenance import due
from frazil.airflow.maintenance.dag import RewriteOperator, dag_interval
from frazil.airflow.maintenance.due import (
    CHECKS_KEY,
    ENDED_STATES,
    TASKS,
    CheckState,
    MaintenanceRun,
    due_tables,
    tables_in_progress,
    tables_to_check,
)
from frazil.errors import FrazilError
from frazil.spec.load import load_stream
from tests.dags.test_maintenance import EAGER, Store, declare
from tests.made_batches import MadeStream

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ACTIONS = ("compaction", "manifests", "expiry", "orphans")


def nobody_works(_: list[str]) -> dict[str, dict[str, Any]]:
    return {}


def run(hour: int, *, by_hand: bool = False, dry_run: bool = False, chosen: tuple[str, ...] = ()) -> MaintenanceRun:
    return MaintenanceRun(f"run-{hour}", hour * HOUR_MS, chosen, ACTIONS, dry_run, by_hand)


@pytest.fixture
def streams(frazil_home: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    """`made` has five batches and needs expiry; `well` has one, and needs only a first orphan clean-up."""
    for name, settings, batches in (("made", EAGER, 5), ("well", "{orphans: off, every: 1d}", 1)):
        declare(tmp_path, settings, name=name)
        stream = MadeStream(load_stream(tmp_path / f"{name}.yaml"), time.time_ns() // 1_000_000, partitions=1)
        for batch in range(batches):
            stream.land({0: (batch * 10, batch * 10 + 10)})
    return tmp_path


NAMES = ["demo.made", "demo.well"]


@pytest.mark.usefixtures("streams")
def test_only_tables_that_need_maintenance_get_a_task(streams: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found = due_tables(NAMES, streams, run(12), Store(), nobody_works)
    assert "demo.made" in found
    assert "demo.made: expiry is due" in caplog.text
    assert "demo.well: expiry is not due" in caplog.text


def test_each_table_is_checked_as_often_as_it_declares(
    streams: Path, monkeypatch: pytest.MonkeyPatch, frazil_home: Path
) -> None:
    assert frazil_home
    checked: list[str] = []
    measured = due.due_actions

    def seen(catalog: Any, table: Any, actions: Any) -> Any:
        checked.append(table.name)
        return measured(catalog, table, actions)

    monkeypatch.setattr(due, "due_actions", seen)
    store = Store()

    def tables(at: MaintenanceRun) -> list[str]:
        checked.clear()
        due_tables(NAMES, streams, at, store, nobody_works)
        return [name for name in checked if "dead_letters" not in name]

    assert sorted(tables(run(12))) == NAMES
    assert tables(run(13)) == ["demo.made"], "every hour"
    assert tables(run(13)) == ["demo.made"], "a task that is tried again looks at the same tables"
    assert sorted(tables(run(14, by_hand=True))) == NAMES, "a person wants it now"
    assert tables(run(15, by_hand=True, chosen=("demo.well",))) == ["demo.well"]


def test_a_table_in_use_by_an_earlier_maintenance_run_is_skipped_until_that_run_ends(streams: Path) -> None:
    store = Store()
    first = due_tables(NAMES, streams, run(12), store, nobody_works)
    index = first.index("demo.made")
    states = {"run-12": {f"table.rewrite_{index}": "running", f"table.orphans_{index}": None}}
    requested: list[list[str]] = []

    def answers(run_ids: list[str]) -> Any:
        requested.append(run_ids)
        return states

    assert due_tables(NAMES, streams, run(13), store, answers) == []
    assert due_tables(NAMES, streams, run(14, by_hand=True), store, answers) == []
    states["run-12"] = {f"table.rewrite_{index}": "failed", f"table.orphans_{index}": "upstream_failed"}
    assert "demo.made" in due_tables(NAMES, streams, run(15), store, answers)
    assert requested == [["run-12"]] * 3
    due_tables(NAMES, streams, run(16), store, answers)
    assert requested[-1] == ["run-15"], "one that ended is asked for no more"


def test_an_unmeasurable_table_still_gets_a_task_and_if_none_is_measurable_the_check_fails(
    streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, broken = due.due_actions, {"demo.well"}

    def on_fire(catalog: Any, table: Any, actions: Any) -> Any:
        if table.name in broken:
            raise OSError("the storage is on fire")
        return measured(catalog, table, actions)

    monkeypatch.setattr(due, "due_actions", on_fire)
    assert due_tables(NAMES, streams, run(12), Store(), nobody_works) == NAMES
    broken.add("demo.made")
    store = Store()
    with pytest.raises(FrazilError, match=r"none of 2 tables could be measured; demo\.made: OSError"):
        due_tables(NAMES, streams, run(12), store, nobody_works)
    assert CHECKS_KEY not in store, "the retry looks at all of them"


def test_a_table_unknown_to_this_worker_gets_a_task_that_fails(streams: Path) -> None:
    assert "demo.gone" in due_tables([*NAMES, "demo.gone"], streams, run(12), Store(), nobody_works)


def test_a_dry_run_passes_on_the_selected_tables_and_stores_nothing(streams: Path) -> None:
    store = Store()
    assert due_tables(NAMES, streams, run(12, dry_run=True), store, nobody_works) == NAMES
    assert store == {}


def test_more_tables_than_a_run_may_have_come_first_in_the_next(streams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "MAX_TABLES_PER_RUN", 1)
    store = Store()
    declare(streams, EAGER, name="also")
    also = MadeStream(load_stream(streams / "also.yaml"), time.time_ns() // 1_000_000, partitions=1)
    for batch in range(5):
        also.land({0: (batch * 10, batch * 10 + 10)})
    names = ["demo.also", "demo.made"]
    assert due_tables(names, streams, run(12), store, nobody_works) == ["demo.also"]
    assert list(store[CHECKS_KEY]) == ["demo.also"], "the other one still waits"
    assert due_tables(names, streams, run(13), store, nobody_works) == ["demo.made"]
    assert store[CHECKS_KEY]["demo.also"] == [12 * HOUR_MS]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 48).map(lambda h: timedelta(hours=h)), min_size=1),
    st.integers(1, 200),
)
def test_every_table_is_checked_within_its_interval_and_one_pause(every: dict[str, timedelta], runs: int) -> None:
    pause = dag_interval(every.values())
    turns: dict[str, CheckState] = {}
    for number in range(runs):
        moment_ms = number * (pause // timedelta(milliseconds=1))
        for name in tables_to_check(every, turns, moment_ms=moment_ms):
            turns[name] = CheckState(moment_ms)
        assert set(turns) == set(every)
        assert all(timedelta(milliseconds=moment_ms - turns[name].at_ms) < every[name] for name in every)


@given(st.dictionaries(st.sampled_from("abc"), st.builds(CheckState, st.integers(0, 10))), st.integers(0, 10))
def test_the_tables_that_waited_longest_are_checked_first(turns: dict[str, CheckState], moment_ms: int) -> None:
    found = tables_to_check(dict.fromkeys("abcd", timedelta(0)), turns, moment_ms=moment_ms)
    assert sorted(found) == list("abcd")
    waited = [turns[name].at_ms if name in turns else -1 for name in found]
    assert waited == sorted(waited)


def test_the_pause_between_runs_is_the_shortest_that_a_table_asks_for() -> None:
    assert dag_interval([]) == dag_interval([DAY]) == HOUR
    assert dag_interval([DAY, timedelta(minutes=10)]) == timedelta(minutes=10)
    assert dag_interval([timedelta(milliseconds=1)]) == timedelta(minutes=1)


@pytest.mark.parametrize("state", [*sorted(ENDED_STATES), "running", "queued", "up_for_retry", "deferred", None])
def test_a_table_is_free_when_all_its_tasks_have_ended(state: str | None) -> None:
    turns = {"t": CheckState(1, "r", 3), "other": CheckState(1, "r", 4), "idle": CheckState(1)}
    states = {"r": {"table.rewrite_3": "success", "table.orphans_3": state, "table.rewrite_4": "success"}}
    assert tables_in_progress(turns, states, tasks=TASKS) == ({} if state in ENDED_STATES else {"t": "r"})


def test_a_run_without_mapped_tasks_is_working_on_all_its_tables_and_a_deleted_run_on_none() -> None:
    turns = {"t": CheckState(1, "r", 3), "gone": CheckState(1, "deleted", 0)}
    assert tables_in_progress(turns, {"r": {"check_due": "success", "table.rewrite": None}}, tasks=TASKS) == {"t": "r"}


@given(
    st.one_of(st.builds(CheckState, st.integers(0), st.text(), st.integers(0)), st.builds(CheckState, st.integers(0)))
)
def test_the_check_state_survives_a_round_trip_through_json(turn: CheckState) -> None:
    assert CheckState.from_json(turn.to_json()) == turn


@pytest.mark.parametrize("value", [None, "", 3, [], [-1], ["1"], [1, 2, 3], [1, "r", -1], [1, "r"], {"at": 1}])
def test_a_check_state_not_written_by_frazil_is_ignored(value: Any) -> None:
    assert CheckState.from_json(value) is None


@pytest.mark.parametrize(("actions", "started"), [(ACTIONS, True), (("orphans",), False)])
def test_spark_is_started_for_a_table_that_needs_it_and_its_dead_letter_table(
    streams: Path, monkeypatch: pytest.MonkeyPatch, actions: tuple[str, ...], started: bool
) -> None:
    submitted: list[list[str]] = []
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda self, _: submitted.append(self.application_args))
    operator = RewriteOperator(task_id="rewrite", table="demo.made", streams=str(streams), application="app.py")
    context = {"params": {"actions": actions, "dry-run": False}}
    if not started:
        with pytest.raises(AirflowSkipException, match="no rewrite is due"):
            operator.execute(context)
        assert submitted == []
        return
    operator.execute(context)
    tables = ["demo.made", "demo.made_dead_letters"]
    assert submitted == [[*tables, "--streams", str(streams), "--actions", "compaction,manifests,expiry"]]
    with pytest.raises(AirflowSkipException):
        operator.execute({"params": {"actions": actions, "dry-run": True}})
    assert len(submitted) == 1


@pytest.mark.rotates(2)
def test_maintenance_runs_tasks_only_for_due_tables_and_the_next_run_checks_whether_they_ended(
    streams: Path, dag_runner: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local"}')
    runner, form = dag_runner(streams), {"actions": ["orphans"]}
    first = runner.run("frazil_maintenance", conf=form)
    assert first["state"] == "success"
    assert first["tasks"] == {
        "check_due": "success",
        "table.rewrite[demo.made]": "skipped",
        "table.orphans[demo.made]": "success",
    }
    second = runner.run("frazil_maintenance", conf=form)
    assert second["tasks"] == {"check_due": "success", "table.rewrite": "skipped", "table.orphans": "skipped"}
    dry = runner.run("frazil_maintenance", conf={"tables": ["demo.well"], "actions": ["expiry"], "dry-run": True})
    assert dry["tasks"] == {
        "check_due": "success",
        "table.rewrite[demo.well]": "skipped",
        "table.orphans[demo.well]": "skipped",
    }
