"""Backfills and replays that a user starts on the page: one DAG run at a time for each stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.spec.load import find_stream
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess
from tests.made_batches import MadeStream
from tests.polling import eventually

OURS = {"X-Frazil": "page", "Origin": "http://airflow.example", "Sec-Fetch-Site": "same-origin"}
FORMS: dict[str, dict[str, Any]] = {"backfill": {"from-time": "2020-01-01T00:00:00Z"}, "replay": {}}
DAGS = {"backfill": "frazil_backfill", "replay": "frazil_dead_letters"}
Post = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, airflow_database: Path) -> Iterator[AirflowProcess]:
    """An Airflow with two streams that have begun, and nothing that runs what is queued."""
    home = tmp_path_factory.mktemp("airflow-page-runs")
    streams = home / "streams"
    streams.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(home / "frazil"))
        for name in ("ticks", "quotes"):
            declared = {
                "name": name,
                "source": {"topics": [name], "bootstrap-servers": "127.0.0.1:1"},
                "table": f"demo.{name}",
                "schema": {"id": "long"},
                "event-time": "kafka_timestamp",
            }
            (streams / f"{name}.yaml").write_text(json.dumps(declared))
            MadeStream(find_stream(streams, name), 1_700_000_000_000, partitions=1).begin()
    process = AirflowProcess(
        home / "airflow",
        database=airflow_database,
        FRAZIL_HOME=str(home / "frazil"),
        FRAZIL_STREAMS=str(streams),
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
    )
    process.call(in_airflow.store_dags)
    yield process
    process.end()


@pytest.fixture
def post(airflow: AirflowProcess) -> Iterator[Post]:
    def posted(what: str, action: str, stream: str = "ticks", **form: Any) -> dict[str, Any]:
        at, body = f"/frazil/ops/api/{what}/{action}/{stream}", {**FORMS.get(action, {}), "dry-run": False, **form}
        return dict(airflow.call(in_airflow.ask, "OP", "POST", at, headers=OURS, body=body))

    yield posted
    for dag_id in DAGS.values():
        airflow.call(in_airflow.delete_runs, dag_id)


def requested(post: Post, action: str, stream: str = "ticks", **form: Any) -> dict[str, Any]:
    """An action that is confirmed as its dialog shows it."""
    version_token = post("plan", action, stream, **form)["body"]["version_token"]
    return post("action", action, stream, version_token=version_token, **form)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("action", FORMS)
def test_a_repeated_request_names_the_queued_or_running_run_and_how_to_end_it(
    post: Post, airflow: AirflowProcess, action: str
) -> None:
    said = requested(post, action)["body"]["message"]
    run = said.split()[2]
    for state, does, end in (
        ("queued", "is queued", "mark that run as failed in Airflow"),
        ("running", "is running", "abandon its backfill or replay, or mark that run as failed in Airflow"),
    ):
        airflow.call(in_airflow.set_run, DAGS[action], run, state)
        refused = post("plan", action)["body"]["refused"]
        assert refused.startswith(f"The run {run} of the DAG {DAGS[action]} {does} for ticks, and a second run ")
        assert refused.endswith(f"To replace it, {end}, and try again")
        again = requested(post, action)
        assert (again["status"], again["body"]["detail"]) == (422, refused)
    assert len(airflow.call(in_airflow.runs_of, DAGS[action])) == 1
    assert requested(post, action, "quotes")["status"] == 200, "another stream"
    assert requested(post, action, **{"dry-run": True})["status"] == 200, "a dry run changes nothing"
    airflow.call(in_airflow.set_run, DAGS[action], run, "failed")
    assert requested(post, action)["status"] == 200, "that run has ended, and a dry run is in nobody's way"


WITHOUT_CATALOG = {
    "_set_desired": (504, "not known: It is unknown whether the action was carried out: no answer. Check the state"),
    "_add_desired_state": (422, "refused: Nothing was changed: no answer"),
}


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("where", WITHOUT_CATALOG)
def test_the_audit_log_marks_a_commit_that_may_have_landed_as_unknown_and_a_check_as_not_done(
    post: Post, airflow: AirflowProcess, where: str, hangs: bool
) -> None:
    status, outcome = WITHOUT_CATALOG[where]
    version_token = post("plan", "pause")["body"]["version_token"]
    body = {"version_token": version_token}
    path = "/frazil/ops/api/action/pause/ticks"
    answer = airflow.call(in_airflow.ask_without_catalog, "OP", path, headers=OURS, body=body, where=where, hangs=hangs)
    assert answer["status"] == status
    *_, extra = airflow.call(in_airflow.audit_log, "frazil_pause")[-1]
    assert json.loads(extra)["outcome"].startswith(outcome)


def test_one_of_two_simultaneous_requests_gets_a_run(post: Post, airflow: AirflowProcess) -> None:
    version_token = post("plan", "backfill")["body"]["version_token"]
    body = {**FORMS["backfill"], "dry-run": False, "version_token": version_token}
    answers = airflow.call(
        in_airflow.ask_between, "OP", "/frazil/ops/api/action/backfill/ticks", headers=OURS, body=body
    )
    assert sorted(answer["status"] for answer in answers) == [200, 422]
    (refused,) = (answer["body"]["detail"] for answer in answers if answer["status"] == 422)
    assert refused.startswith("The same run was just requested: see the run manual__ticks.")
    assert len(airflow.call(in_airflow.runs_of, "frazil_backfill")) == 1


def stream_read_at(airflow: AirflowProcess) -> int | None:
    path = "/frazil/ops/api/stream/ticks"
    at_ms: int | None = airflow.call(in_airflow.ask, "OP", "GET", path, headers=OURS)["body"]["line"]["at_ms"]
    return at_ms


def test_a_run_started_by_an_action_is_followed_to_its_result_by_users_who_see_the_stream(
    post: Post, airflow: AirflowProcess
) -> None:
    done = requested(post, "replay")["body"]

    def follow(name: str = "ticks", role: str = "OP", action: str = "replay") -> dict[str, Any]:
        path = f"/frazil/ops/api/run/{action}/{name}?run={done['run']}"
        return dict(airflow.call(in_airflow.ask, role, "GET", path, headers=OURS))

    run = f"/dags/frazil_dead_letters/runs/{done['run']}"
    waits = {"state": "queued", "finished": False, "log": run}
    paused = "The run waits, because the DAG frazil_dead_letters is paused in Airflow: unpause it."
    assert follow()["body"] == {**waits, "message": paused}
    airflow.call(in_airflow.unpause)
    assert follow()["body"] == {**waits, "message": "The run is queued."}
    before = eventually(lambda: stream_read_at(airflow))
    assert (follow()["body"]["finished"], stream_read_at(airflow)) == (False, before)
    airflow.call(in_airflow.end_task, "frazil_dead_letters", done["run"], "settle", "success", "landed: 3, failed: 0")
    ended = {"state": "success", "finished": True, "message": "landed: 3, failed: 0.", "log": f"{run}/tasks/settle"}
    assert follow()["body"] == ended
    assert stream_read_at(airflow) != before, "the run may have changed the stream, so it is read again at once"
    assert follow(role="VIEWER")["body"] == ended
    assert [follow("quotes")["status"], follow("none")["status"], follow(action="pause")["status"]] == [404] * 3


def test_a_paused_dag_is_unpaused_only_with_a_confirmed_action(post: Post, airflow: AirflowProcess) -> None:
    airflow.call(in_airflow.pause, "frazil_dead_letters", True)
    plan = post("plan", "replay")["body"]
    assert plan["unpause"] == "frazil_dead_letters"
    assert "which is paused: the run starts when you unpause it" in " ".join(plan["effects"])
    chosen = post("plan", "replay", unpause=True)["body"]
    assert "This starts a run of the DAG frazil_dead_letters, and unpauses it." in chosen["effects"]
    requested(post, "replay")
    assert airflow.call(in_airflow.dag_is_paused, "frazil_dead_letters"), "without the mark it stays paused"
    airflow.call(in_airflow.delete_runs, "frazil_dead_letters")
    assert requested(post, "replay", unpause=True)["status"] == 200
    assert not airflow.call(in_airflow.dag_is_paused, "frazil_dead_letters")
    assert post("plan", "replay", **{"dry-run": True})["body"]["unpause"] is None


def test_the_overview_asks_to_unpause_the_health_dag_only_while_it_is_paused(airflow: AirflowProcess) -> None:
    def needs() -> list[str]:
        overview = airflow.call(in_airflow.ask, "VIEWER", "GET", "/frazil/ops/api/overview", headers={})
        said = [one["sentence"] for one in overview["body"]["needs"]]
        return [one.split(". ")[1] for one in said if one.startswith("No alert can fire: ")]

    def shows(*fixes: str) -> None:
        airflow.call(in_airflow.forget_answers)
        eventually(lambda: needs() == [*fixes], within_s=20)

    airflow.call(in_airflow.pause, "frazil_health", True)
    shows("Unpause the DAG frazil_health")
    airflow.call(in_airflow.pause, "frazil_health", False)
    shows("Check why the DAG frazil_health does not run")
    run = airflow.call(in_airflow.begin_run, "frazil_health", {})
    shows()
    airflow.call(in_airflow.set_run, "frazil_health", run, "failed")
    shows("Check why the DAG frazil_health does not run")
    run = airflow.call(in_airflow.begin_run, "frazil_health", {})
    shows("Check why the DAG frazil_health does not run")
    airflow.call(in_airflow.set_run, "frazil_health", run, "failed")
    run = airflow.call(in_airflow.begin_run, "frazil_health", {"measure": {"active": []}})
    airflow.call(in_airflow.set_run, "frazil_health", run, "success")
    shows()
    airflow.call(in_airflow.pause, "frazil_health", True)
    shows("Unpause the DAG frazil_health")
