"""The operations page on Airflow's own API server: permissions, and services that hang without delaying the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frazil import clock
from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.errors import SpecError
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window
from frazil.spec.load import load_stream
from frazil.supervise.desired_state import DesiredStore
from tests.dags import in_airflow
from tests.dags.in_airflow import CHECKOUT, AirflowProcess
from tests.polling import eventually
from tests.silent_server import Silent, silent_server

YAML = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: {table}
schema: {{id: long not null, at: timestamptz not null}}
event-time: at
"""
Ask = Callable[..., dict[str, Any]]
STATIC = CHECKOUT / "include" / "frazil" / "airflow" / "page" / "static"


@pytest.fixture(scope="module")
def silent() -> Iterator[Silent]:
    with silent_server() as server:
        yield server


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow-page")


@pytest.fixture(scope="module")
def kept(home: Path) -> Path:
    """The overview's last saved state."""
    return home / "frazil" / "page" / "overview.json"


@pytest.fixture(scope="module")
def airflow_process(home: Path, airflow_database: Path, streams: Path, silent: Silent) -> Iterator[AirflowProcess]:
    process = AirflowProcess(
        home,
        database=airflow_database,
        FRAZIL_HOME=str(home / "frazil"),
        FRAZIL_STREAMS=str(streams),
        FRAZIL_RUNBOOK="https://runbook.example/",
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
        PYICEBERG_CATALOG__SILENT__TYPE="rest",
        PYICEBERG_CATALOG__SILENT__URI=f"http://127.0.0.1:{silent.port}",
    )
    yield process
    process.end()


@pytest.fixture(scope="module")
def ask(airflow_process: AirflowProcess) -> Ask:
    def requested(role: str | None, path: str, *, method: str = "GET", **more: Any) -> dict[str, Any]:
        headers = more.pop("headers", {})
        call = (in_airflow.ask, role, method, f"/frazil/ops/{path}")
        return dict(airflow_process.call(*call, headers=headers, **more))

    return requested


def test_an_anonymous_user_sees_nothing(ask: Ask):
    data = ("api/overview", "api/stream/ticks", "api/table/demo.ticks", "api/run/backfill/ticks?run=any")
    for path in ("", "index.html", "main.js", "runbook.html", *data):
        assert ask(None, path)["status"] == 401


def test_the_page_runs_no_script_but_its_own(ask: Ask):
    page = ask("VIEWER", "index.html")
    assert page["status"] == 200
    policy = page["headers"]["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert re.findall(r"\son\w+=|<style|style=|<script(?! type=\"module\" src)", page["body"]) == []


def test_every_module_that_the_page_imports_is_served_and_nothing_else_is(ask: Ask):
    imported = {name for file in STATIC.glob("*.js") for name in re.findall(r'from "\./(.+?)"', file.read_text())}
    loaded = {name for file in STATIC.glob("*.html") for name in re.findall(r'src="(.+?\.js)"', file.read_text())}
    assert loaded == {"main.js", "runbook.js"}
    assert imported | loaded == {file.name for file in STATIC.glob("*.js")}
    assert {ask("VIEWER", name)["headers"]["content-type"] for name in imported | loaded} == {
        "text/javascript; charset=utf-8"
    }
    for path in ("nothing.js", "..%2Fapp.py", "app.py", f"{'n' * 5000}.js", "a%00.js"):
        answer = ask("VIEWER", path)
        assert answer["status"] == 404
        assert str(CHECKOUT) not in str(answer["body"])


def test_without_streams_the_overview_names_the_folder_that_was_searched(ask: Ask, streams: Path):
    empty = ask("VIEWER", "api/overview")["body"]
    assert empty["lines"] == []
    assert empty["notes"] == [
        f"No stream is declared in {streams}: declare one, or set FRAZIL_STREAMS for the API server"
    ]


@pytest.fixture(scope="module")
def declared(ask: Ask, streams: Path) -> None:
    (streams / "ticks.yaml").write_text(YAML.format(name="ticks", table="demo.ticks"))
    ghosts = YAML.format(name="ghosts", table="{identifier: far.ghosts, catalog: silent}")
    (streams / "ghosts.yaml").write_text(ghosts)
    route = "route: {by: field, name: id, tables: {'1': demo.orders_one}, template: 'demo.orders_of_{value}'}\n"
    route += "coordinates: false\n"
    (streams / "orders.yaml").write_text(YAML.format(name="orders", table="demo.orders") + route)
    hourly = "partition-by: [hour(at)]\ncomplete: hour\n"
    (streams / "visits.yaml").write_text(YAML.format(name="visits", table="web.visits") + hourly)
    (streams / "wrong.yaml").write_text("name: wrong\nschema: {id: lung}\n")
    eventually(lambda: ask("VIEWER", "api/overview")["body"]["lines"], within_s=60)


@pytest.mark.usefixtures("declared")
def test_a_hanging_catalog_is_reported_and_hides_no_other_stream(ask: Ask):
    def lines() -> dict[str, Any]:
        answer = ask("VIEWER", "api/overview")
        found = {line["stream"]: line for line in answer["body"]["lines"]}
        return found if found["ghosts"]["word"] == "no answer" and found["ticks"]["word"] != "loading" else {}

    found = eventually(lines, within_s=60)
    assert next(iter(found)) == "wrong"
    (said,) = (*(need["sentence"] for need in found["ghosts"]["needs"]), *found["ghosts"]["notes"])
    assert said.startswith("The catalog silent, its storage, or Kafka has not responded since 20")
    assert (found["ticks"]["word"], found["wrong"]["word"]) == ("not begun", "declaration broken")
    assert any("lung" in need["sentence"] for need in found["wrong"]["needs"])
    assert {need["runbook"] for need in found["wrong"]["needs"]} == {"https://runbook.example/#declaration"}


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("path", ["api/overview", "api/stream/ghosts", "api/table/far.ghosts"])
def test_an_answer_does_not_wait_for_a_catalog_that_hangs(ask: Ask, silent: Silent, path: str):
    def answered_while_it_hangs() -> bool:
        return ask("VIEWER", path)["status"] == 200 and silent.waiting() > 0

    assert eventually(answered_while_it_hangs, within_s=60)


@pytest.mark.usefixtures("declared")
def test_a_starting_api_server_shows_the_last_known_state_while_it_refreshes(
    ask: Ask, airflow_process: AirflowProcess, kept: Path, streams: Path
):
    def saved() -> Any:
        ask("VIEWER", "api/overview")
        found = json.loads(kept.read_text()) if kept.exists() else []
        return next((one for one in found if one["stream"] == "ticks"), None)

    of_ticks = eventually(saved, within_s=60)
    fingerprint = load_stream(streams / "ghosts.yaml").fingerprint()
    before = {**of_ticks, "stream": "ghosts", "fingerprint": fingerprint, "at_ms": of_ticks["at_ms"] - 3_600_000}
    kept.write_text(json.dumps([before]))
    airflow_process.call(in_airflow.forget_answers)

    def ghosts() -> dict[str, Any]:  # their catalog does not answer
        lines = ask("VIEWER", "api/overview")["body"]["lines"]
        return next(line for line in lines if line["stream"] == "ghosts")

    def is_forgotten() -> bool:
        """Forget the state. A check that is under way may write it once more."""
        kept.unlink(missing_ok=True)
        airflow_process.call(in_airflow.forget_answers)
        return bool(ghosts()["word"] != "not begun")

    assert (ghosts()["at_ms"], ghosts()["word"]) == (before["at_ms"], "not begun")
    eventually(is_forgotten, within_s=60)


@pytest.mark.usefixtures("declared")
def test_a_stream_has_its_own_view_even_without_kafka_and_a_table(ask: Ask):
    found = ask("VIEWER", "api/stream/ticks")["body"]
    assert found["line"]["word"] == "not begun"
    assert found["facts"]["Topics"] == "ticks"
    assert (found["has_commits"], found["runs"], found["may_act"]) == (False, [], False)
    assert ask("OP", "api/stream/ticks")["body"]["may_act"]
    assert ask("OP", "api/stream/nothing")["status"] == 404
    assert "id.type" in " ".join(
        need["sentence"] for need in ask("VIEWER", "api/stream/wrong")["body"]["line"]["needs"]
    )


@pytest.mark.usefixtures("declared")
def test_a_stream_with_a_hanging_catalog_reports_what_does_not_respond(ask: Ask):
    found = eventually(
        lambda: next(
            (body for body in [ask("VIEWER", "api/stream/ghosts")["body"]] if body["line"]["word"] == "no answer"), None
        ),
        within_s=60,
    )
    assert found["facts"]["Table"] == "far.ghosts"


@pytest.mark.usefixtures("declared")
def test_a_table_has_a_view_before_it_exists_unless_no_stream_feeds_it(ask: Ask):
    found = eventually(
        lambda: next((b for b in [ask("VIEWER", "api/table/demo.ticks")["body"]] if not b["pending"]), None),
        within_s=60,
    )
    assert (found["shape"], found["streams"], found["problems"]) == (None, ["ticks"], [])
    assert ask("VIEWER", "api/table/demo.nothing")["status"] == 404


@pytest.mark.usefixtures("declared")
def test_a_window_shows_the_runs_that_it_started(ask: Ask, airflow_process: AirflowProcess):
    hour = "2013-12-30T09"
    runs = [(hour, "frazil_daily_sales", "success"), (hour, "of_a_team", "failed"), ("2013-12-30T10", "late", "queued")]
    airflow_process.call(in_airflow.put_window_runs, "web.visits", runs)
    found = eventually(lambda: ask("VIEWER", "api/table/web.visits")["body"]["runs"], within_s=60)
    first = {"dag": "frazil_daily_sales", "run": "asset__0", "state": "success"}
    assert found[hour] == [first, {"dag": "of_a_team", "run": "asset__1", "state": "failed"}]
    assert [run["dag"] for run in found["2013-12-30T10"]] == ["late"]


@pytest.mark.usefixtures("declared")
def test_the_tables_of_a_route_and_of_dead_letters_have_views_and_are_found_from_the_stream(ask: Ask):
    def routed(search: str) -> Any:
        return ask("VIEWER", f"api/stream/orders?tables={search}&hours=168")["body"]

    found = eventually(lambda: next((body for body in [routed("one")] if body["routed"]), None), within_s=60)
    assert found["routed"] == {
        "tables": [{"name": "demo.orders_one", "problem": "", "level": 4}],
        "found": 1,
        "total": 1,
    }
    assert (routed("two")["routed"]["tables"], found["period"]["hours"], found["routes"]) == ([], 168, True)
    begin = (datetime.now(UTC) - timedelta(hours=2)).replace(tzinfo=None)
    span = f"begin={begin.isoformat()}Z&end={(begin + timedelta(hours=1)).isoformat()}"
    period = ask("VIEWER", f"api/stream/orders?{span}")["body"]["period"]
    assert (period["end_ms"] - period["begin_ms"], period["hours"]) == (3_600_000, 0)
    assert ask("VIEWER", "api/stream/orders?begin=yesterday")["status"] == 422
    for name, kind in KINDS_OF_TABLES.items():
        answer = ask("VIEWER", f"api/table/{name}")["body"]
        assert (answer["kind"], answer["streams"], answer["calendar"]) == (kind, ["orders"], None)
    assert ask("VIEWER", "api/table/frazil.signals")["status"] == 404
    plan = ask("OP", "api/plan/maintain/demo.orders_of_2", method="POST", headers=OURS, body={})["body"]
    assert plan["effects"][0].startswith("Each table of the route of orders that needs it is compacted")
    for action, name in (("maintain", "demo.orders_dead_letters"), ("release", "demo.orders_of_2")):
        assert ask("OP", f"api/plan/{action}/{name}", method="POST", headers=OURS, body={})["status"] == 404


KINDS_OF_TABLES = {
    "demo.orders": "main",
    "demo.orders_one": "routed",
    "demo.orders_of_2": "routed",
    "demo.orders_dead_letters": "dead letters",
}
TABLE_RULES = ("maintain", "release", "send-again")
OURS = {"X-Frazil": "page", "Origin": "http://airflow.example", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "X-Frazil"),
        ({**OURS, "X-Frazil": "no"}, "X-Frazil"),
        ({**OURS, "Sec-Fetch-Site": "cross-site"}, "another site"),
        ({**OURS, "Sec-Fetch-Site": "same-site"}, "another site"),
        ({**OURS, "Origin": "http://evil.example"}, "evil.example"),
        ({**OURS, "Origin": "null"}, "null"),
        ({**OURS, "Origin": "http://["}, "http://["),
    ],
)
def test_requests_from_another_site_with_the_users_cookie_are_refused(ask: Ask, headers: dict[str, str], said: str):
    for path in ("api/plan/pause/ticks", "api/action/pause/ticks"):
        answer = ask("ADMIN", path, method="POST", headers=headers, body={})
        assert answer["status"] == 403
        assert said in answer["body"]["detail"]
    assert ask("ADMIN", "api/stream/ticks")["body"]["line"]["word"] == "not begun"


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    "action", ["pause", "resume", "restart", "reset", "backfill", "abandon", "replay", *TABLE_RULES]
)
def test_a_viewer_and_an_anonymous_user_may_not_act(ask: Ask, action: str):
    for what in ("plan", "action"):
        path = f"api/{what}/{action}/{'demo.ticks' if action in TABLE_RULES else 'ticks'}"
        assert ask("VIEWER", path, method="POST", headers=OURS, body={})["status"] == 403
        assert ask(None, path, method="POST", headers=OURS, body={})["status"] == 401


@pytest.mark.usefixtures("declared")
def test_a_scheduler_that_died_is_reported_on_each_view_and_by_each_action_that_waits_for_it(
    ask: Ask, airflow_process: AirflowProcess
):
    def views() -> list[list[str]]:
        airflow_process.call(in_airflow.forget_answers)
        return [ask("VIEWER", f"api/{path}")["body"]["airflow"] for path in VIEWS]

    def says(action: str) -> str:
        return " ".join(ask("OP", f"api/plan/{action}", method="POST", headers=OURS, body={})["body"]["effects"])

    airflow_process.call(in_airflow.put_heartbeats, **in_airflow.ALIVE)
    assert views() == [[], [], []]
    airflow_process.call(in_airflow.put_heartbeats, **{**in_airflow.ALIVE, "SchedulerJob": 425.0})
    for reported in views():
        (said,) = reported
        assert said.startswith("Airflow's scheduler has sent no heartbeat for 7 min")
        assert said.endswith("Start it: `airflow scheduler`")
    assert "scheduler has sent no heartbeat for 7 min" in says("maintain/demo.ticks")
    assert "no heartbeat" not in says("pause/ticks")
    airflow_process.call(in_airflow.put_heartbeats, **in_airflow.ALIVE)
    airflow_process.call(in_airflow.forget_answers)


@pytest.mark.parametrize("dag_id", ["frazil_maintenance", "frazil_audits"])
@pytest.mark.usefixtures("declared")
def test_the_overview_shows_that_a_dag_of_all_streams_is_paused(ask: Ask, airflow_process: AirflowProcess, dag_id: str):
    def said() -> list[str]:
        return [note for note in ask("VIEWER", "api/overview")["body"]["notes"] if dag_id in note]

    for paused in (True, False, None):
        airflow_process.call(in_airflow.pause, dag_id, paused)
        airflow_process.call(in_airflow.forget_answers)
        eventually(lambda paused=paused: bool(said()) == bool(paused), within_s=60)


VIEWS = ("overview", "stream/ticks", "table/demo.ticks")
MOVED = "ticks has changed since the plan was shown"


@pytest.mark.usefixtures("declared")
def test_pausing_and_resuming_a_stream_is_recorded_with_the_user_in_the_audit_log_of_airflow(
    ask: Ask, airflow_process: AirflowProcess
):
    def post(what: str, action: str, **form: Any) -> Any:
        return ask("OP", f"api/{what}/{action}/ticks", method="POST", headers=OURS, body=form)

    def entries(event: str) -> list[Any]:
        return [rest for owner, *rest in airflow_process.call(in_airflow.audit_log, event) if owner == "op"]

    plan, stale = post("plan", "pause")["body"], post("plan", "restart")["body"]["version_token"]
    assert "No writer starts until ticks is resumed." in plan["effects"]
    paused = post("action", "pause", reason="an upgrade", version_token=plan["version_token"])
    assert paused["body"]["message"].startswith("ticks is paused.")
    for action in ("restart", "resume"):  # their dialogs were open in another tab before
        refused = post("action", action, version_token=stale)
        assert refused["status"] == 422
        assert refused["body"]["detail"].startswith(
            f"{MOVED}: another user paused, resumed or restarted it. Check the new plan, then confirm it"
        )
    assert post("action", "resume")["body"]["detail"].startswith("Nothing was changed in ticks")
    line = eventually(
        lambda: next((x for x in [ask("OP", "api/stream/ticks")["body"]["line"]] if x["word"] == "paused"), None),
        within_s=60,
    )
    (note,) = line["notes"]
    assert re.fullmatch(r"paused by op, Airflow .+ ago: an upgrade", note)
    assert post("plan", "pause")["body"]["refused"] == "ticks is already paused"
    resumed = post("action", "resume", version_token=post("plan", "resume")["body"]["version_token"])
    assert resumed["body"]["message"].startswith("ticks is resumed.")
    ((dag_id, extra),) = entries("frazil_pause")
    assert dag_id == "frazil_writer_ticks"
    reported = json.loads(extra)
    assert (reported["reason"], reported["outcome"]) == ("an upgrade", f"done: {paused['body']['message']}")
    resumes = [json.loads(extra)["outcome"] for _, extra in entries("frazil_resume")]
    assert [outcome.partition(":")[0] for outcome in resumes] == ["refused", "refused", "done"]
    assert MOVED in resumes[0]


UNSHOWN = "\ud800 \x1b[2J\u202egnp"
SHOWN = r"\ud800 \x1b[2J\u202egnp"


@pytest.mark.usefixtures("declared")
def test_an_undisplayable_reason_is_refused_and_a_stored_one_hides_no_stream(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
):
    def post(body: Any) -> dict[str, Any]:
        return ask("OP", "api/action/pause/ticks", method="POST", headers=OURS, body=body)

    for reason, said in (
        ("a\u202eb", "the character \\u202e"),
        ("\x1b[2J", "the character \\x1b"),
        ("a" * 1001, "1,001"),
        ("a\ud800b", "reason: has the character \\ud800, which cannot be shown; remove it"),
    ):
        answer = post(json.dumps({"reason": reason}).encode())
        assert answer["status"] == 422
        assert said in answer["body"]["detail"]
    form = json.dumps({"reason": UNSHOWN}).encode()
    assert post(form)["status"] == 422
    plan = ask("OP", "api/plan/pause/ticks", method="POST", headers=OURS, body=form)
    assert (plan["status"], plan["body"]["refused"]) == (200, None), "the dialog goes on"
    monkeypatch.setenv("FRAZIL_HOME", str(home / "frazil"))
    kept = DesiredStore("ticks", None)
    kept.pause(by="ana", reason=UNSHOWN)  # as an earlier version kept it

    def notes() -> list[str] | None:
        answers = [ask("VIEWER", path) for path in ("api/overview", "api/stream/ticks")]
        assert [answer["status"] for answer in answers] == [200, 200]
        (line,) = [line for line in answers[0]["body"]["lines"] if line["stream"] == "ticks"]
        return line["notes"] if line["word"] == answers[1]["body"]["line"]["word"] == "paused" else None

    (note,) = eventually(notes, within_s=60)
    assert note.startswith("paused by ana")
    assert note.endswith(f" ago: {SHOWN}")
    kept.resume(by="ana", reason="")
    eventually(lambda: notes() is None, within_s=60)


@pytest.mark.usefixtures("declared")
def test_one_of_two_simultaneous_confirmations_is_refused(ask: Ask, airflow_process: AirflowProcess):
    """Both have seen the same; one of them acts between the other's look and the other's write."""

    def version_token(action: str) -> str:
        return str(ask("OP", f"api/plan/{action}/ticks", method="POST", headers=OURS, body={})["body"]["version_token"])

    both = {action: {"version_token": version_token(action)} for action in ("restart", "pause")}
    first, second = airflow_process.call(in_airflow.request_between, "OP", "/frazil/ops/api/action", both, headers=OURS)
    assert (first["status"], second["status"]) == (200, 422)
    assert "Nothing was changed: ticks was paused, resumed or restarted by another user" in second["body"]["detail"]
    assert ask("OP", "api/plan/pause/ticks", method="POST", headers=OURS, body={})["body"]["refused"] == (
        "ticks is already paused"
    )
    assert (
        ask(
            "OP",
            "api/action/resume/ticks",
            method="POST",
            headers=OURS,
            body={"version_token": version_token("resume")},
        )["status"]
        == 200
    )


@pytest.mark.usefixtures("declared")
def test_the_audit_log_records_refused_actions_and_only_the_fields_of_a_form(ask: Ask, airflow_process: AirflowProcess):
    def last(event: str) -> tuple[str, dict[str, Any]]:
        owner, _, extra = airflow_process.call(in_airflow.audit_log, event)[-1]
        assert len(extra) < 4000
        return owner, json.loads(extra)

    def post(role: str, body: Any, headers: dict[str, str] = OURS) -> int:
        return int(ask(role, "api/action/reset/ticks", method="POST", headers=headers, body=body)["status"])

    assert post("VIEWER", {"reason": "mine"}) == 403
    owner, entry = last("frazil_reset")
    assert (owner, entry["subject"], entry["outcome"][:49]) == (
        "viewer",
        "ticks",
        "refused: Airflow does not permit this action: you",
    )
    assert post("ADMIN", {}, {**OURS, "Sec-Fetch-Site": "cross-site"}) == 403
    assert last("frazil_reset") == (
        "admin",
        {"outcome": "refused: refused: another site sent the request", "subject": "ticks"},
    )
    assert post("OP", {"padding": "a" * 3_000_000}) == 413
    assert last("frazil_reset")[1]["outcome"].startswith("refused: the form has more than 65,536 bytes")
    assert post("OP", [{}]) == 422
    assert post("OP", {"to": ["a" * 5000], "padding": "a" * 50_000, "reason": "why", "version_token": "x"}) == 422
    entry = last("frazil_reset")[1]
    assert entry.pop("outcome").startswith("refused: ")
    assert entry == {"to": "(list)", "reason": "why", "subject": "ticks"}
    assert ask("OP", f"api/action/reset/{'n' * 5000}", method="POST", headers=OURS, body={})["status"] == 404
    assert len(last("frazil_reset")[1]["subject"]) == 1000


@pytest.mark.usefixtures("declared")
def test_actions_that_airflow_or_the_table_cannot_perform_are_refused_with_the_reason(ask: Ask):
    def post(what: str, action: str, name: str = "ticks", **form: Any) -> Any:
        return ask("OP", f"api/{what}/{action}/{name}", method="POST", headers=OURS, body=form)

    assert "Airflow has no DAG frazil_backfill" in post("plan", "backfill")["body"]["refused"]
    assert post("action", "backfill")["status"] == 422  # says neither from when nor until when
    assert post("action", "backfill", **{"from-time": "2020-01-01"})["status"] == 422  # a time without a zone
    assert "Airflow has no DAG" in post("action", "maintain", "demo.ticks")["body"]["detail"]
    assert "does not exist yet" in post("plan", "reset", to="marker")["body"]["refused"]
    assert post("action", "reset", to="latest")["status"] == 422
    assert post("plan", "explode")["status"] == 404
    assert post("plan", "pause", "nothing")["status"] == 404


@pytest.mark.usefixtures("declared")
def test_a_stream_offers_only_the_actions_of_its_kind_and_refuses_others_like_the_command_line(ask: Ask, streams: Path):
    route = load_stream(streams / "orders.yaml")
    with pytest.raises(SpecError) as raised, open_backfill(route, parse_request({"stream": "orders"})):
        pass
    times = {"from-time": "2020-01-01T00:00:00Z"}
    for what, said in (("plan", "refused"), ("action", "detail")):
        answer = ask("OP", f"api/{what}/backfill/orders", method="POST", headers=OURS, body=times)
        assert (answer["status"], answer["body"][said]) == (200 if what == "plan" else 422, str(raised.value))
    actions = {name: ask("OP", f"api/stream/{name}")["body"]["actions"] for name in ("ghosts", "orders", "wrong")}
    assert actions["ghosts"] == ["pause", "restart", "reset", "backfill", "replay"], "nobody knows what its table says"
    assert "backfill" not in actions["orders"]
    assert actions["wrong"] == []


EMPTY = {"from-time": "", "to-time": "", "dry-run": True}
FORMS: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("backfill", EMPTY, "Enter a start or an end"),
    ("backfill", {"from-time": "2026-11-24T16"}, "From: add the time zone"),
    ("backfill", {"from-time": "0001-01-01T00:00:00+23:59"}, "From: '0001-01-01T00:00:00+23:59' is not a time"),
    ("backfill", {"to-time": "yesterday"}, "To (exclusive): 'yesterday' is not a time. Enter it as 2013-12-30 00:00Z"),
    (
        "backfill",
        {"from-time": "2020-01-02T00:00:00Z", "to-time": "2020-01-01T00:00:00Z"},
        "To (exclusive) (2020-01-01 00:00:00Z) is not after From (2020-01-02 00:00:00Z)",
    ),
    (
        "backfill",
        {"from-time": "2020-01-02T00:00:01Z"},
        "From (2020-01-02 00:00:01Z) is in the future",
    ),
    ("backfill", {"from-time": "2020-01-01T00:00:00Z", "to-time": "2031-01-01T00:00:00Z"}, None),
    ("reset", {"to": "timestamp", "at": ""}, "Timestamp: enter a time, such as"),
    ("reset", {"to": "timestamp", "at": "2031-01-01 00:00Z"}, None),
    ("reset", {"to": "elsewhere"}, "Choose where to continue"),
    ("release", {"partition": "", "reason": "checked"}, "Window: enter a value"),
    ("release", {"partition": "2020-01-01T05", "reason": "x"}, "Enter a reason: it is stored with the window"),
    ("send-again", {"day": "2020-01-01T05"}, "Enter a day"),
    ("maintain", {}, None),
    ("pause", {}, None),
)


@pytest.mark.parametrize("typed", ["2020-01-01T05", "2020-01-01 05:00"])
def test_a_window_may_be_entered_in_the_format_of_the_page_or_of_airflow(typed: str) -> None:
    from frazil.airflow.page.forms import build_run_conf  # needs AIRFLOW_HOME
    from frazil.operations.page_actions import PageAction  # next to it

    form = {"partition": typed, "reason": "checked"}
    assert build_run_conf(PageAction.RELEASE, "demo.ticks", form)["partition"] == "2020-01-01T05"


@pytest.mark.parametrize(("action", "form", "said"), FORMS)
def test_a_form_error_names_its_field_before_the_action_is_confirmed(
    action: str, form: dict[str, Any], said: str | None
) -> None:
    from frazil.airflow.page.forms import find_form_problem  # needs AIRFLOW_HOME
    from frazil.operations.page_actions import PageAction  # next to it

    found = find_form_problem(PageAction(action), "ticks", form, now_ms=1_577_923_200_000)
    assert (found is None) if said is None else said in (found or "")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("2020-01-01 05:00", None),
        ("2020-01-01 04:00", "no gate holds 2020-01-01T04: it is already signalled. Held windows: 2020-01-01T05"),
        ("2020-01-01 09:00", "no gate holds 2020-01-01T09: it is not complete yet; its gate runs when it completes"),
        ("2019-12-31 23:00", "it is never signalled, because signals begin with 2020-01-01T00"),
        ("2020-01-01", "this table's windows are hours"),
    ],
)
def test_releasing_a_window_that_no_gate_holds_is_refused_with_the_reason(typed: str, said: str | None) -> None:
    from frazil.airflow.page.forms import find_release_problem  # needs AIRFLOW_HOME

    start, fifth, end = (Window.parse(f"2020-01-01T{hour}").start_us for hour in ("00", "05", "09"))
    found = find_release_problem({"partition": typed}, Cursor(Grain.HOUR, start, end, 1, frozenset({fifth}), "table"))
    assert (found is None) if said is None else said in (found or "")


def test_before_the_first_window_of_a_table_is_signalled_no_window_is_held() -> None:
    from frazil.airflow.page.forms import find_release_problem  # needs AIRFLOW_HOME

    assert "no window is held" in (find_release_problem({"partition": "2020-01-01T05"}, None) or "")


def test_one_table_can_be_maintained_from_its_page() -> None:
    from frazil.airflow.page.forms import build_run_conf  # needs AIRFLOW_HOME
    from frazil.operations.page_actions import PageAction  # next to it

    assert build_run_conf(PageAction.MAINTAIN, "demo.ticks", {"dry-run": False}) == {
        "tables": ["demo.ticks"],
        "dry-run": False,
    }


def test_the_page_shows_the_start_command_that_fits_the_airflow_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil.airflow.page.airflow_database import silent_components  # needs AIRFLOW_HOME

    monkeypatch.setenv("FRAZIL_HOME", "/srv/frazil")
    for home, start in (("/srv/frazil/dev/airflow", "frazil dev up --airflow"), ("/srv/airflow", "airflow scheduler")):
        monkeypatch.setenv("AIRFLOW_HOME", home)
        assert silent_components({}, at_ms=0)[0].start == start


def test_cached_airflow_heartbeats_are_evaluated_at_the_time_when_they_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from frazil.airflow.page import views
    from frazil.airflow.page.airflow_database import COMPONENTS  # needs AIRFLOW_HOME
    from frazil.operations.page_actions import ComponentHeartbeat  # next to it
    from frazil.operations.read_cache import Answer  # next to it

    hours_ago_ms = clock.now_ms() - 7_200_000
    for age_ms, silent in ((5_000, 0), (61_000, len(COMPONENTS))):
        seen = Answer(dict.fromkeys(COMPONENTS.values(), ComponentHeartbeat(hours_ago_ms - age_ms)), hours_ago_ms)
        monkeypatch.setattr(views, "answer_cache", lambda seen=seen: SimpleNamespace(fetch_one=lambda *_, **__: seen))
        assert len(views.find_missing_components()) == silent


@pytest.mark.usefixtures("frazil_home")
def test_an_error_keeps_the_last_valid_declaration_and_a_conflict_keeps_the_current_one(
    tmp_path: Path,
) -> None:
    from frazil.airflow.declared_streams import declared_streams  # needs AIRFLOW_HOME
    from frazil.airflow.page.views import build_reading

    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(YAML.format(name="ticks", table="demo.ticks"))
    second.write_text(YAML.format(name="quotes", table="{identifier: demo.ticks, catalog: far}"))
    (quotes, ticks) = (build_reading(one, None) for one in declared_streams(tmp_path))
    assert "is in a different catalog" in quotes.conflict + ticks.conflict
    assert quotes.broken == ticks.broken == ""
    second.write_text("name: quotes\n")
    (quotes, ticks) = (build_reading(one, None) for one in declared_streams(tmp_path))
    assert (quotes.conflict, ticks.conflict, ticks.broken) == ("", "", "")
    assert "b.yaml" in quotes.broken


@pytest.mark.usefixtures("declared")
def test_actions_that_need_airflows_state_are_refused_while_its_database_is_unresponsive(
    ask: Ask, airflow_process: AirflowProcess
):
    def plan(action: str) -> dict[str, Any]:
        return ask("OP", f"api/plan/{action}/ticks", method="POST", headers=OURS, body={})

    airflow_process.call(in_airflow.silence_database, silent=True)
    try:
        for action in ("resume", "backfill"):
            assert plan(action)["status"] == 422
            assert "its database does not respond" in plan(action)["body"]["detail"]
        assert plan("pause")["status"] == 200, "it stops the writer, whatever Airflow knows"
    finally:
        airflow_process.call(in_airflow.silence_database, silent=False)


@pytest.mark.usefixtures("declared")
def test_a_stream_of_another_team_is_neither_shown_nor_mentioned(ask: Ask, airflow_process: AirflowProcess) -> None:
    """The last of this file: from here on, Airflow has teams."""
    airflow_process.call(in_airflow.give_to_team, "blue", "frazil_writer_ticks")

    def seen(*teams: str) -> tuple[set[str], int, int]:
        lines = ask("VIEWER", "api/overview", teams=teams)["body"]["lines"]
        stream, table = (ask("VIEWER", path, teams=teams)["status"] for path in PATHS)
        return {line["stream"] for line in lines}, stream, table

    assert seen("blue") == ({"ghosts", "orders", "ticks", "visits", "wrong"}, 200, 200)
    assert seen() == ({"ghosts", "orders", "visits", "wrong"}, 404, 404)
    assert seen("red") == seen()
    for action in ("pause/ticks", "abandon/ticks", "maintain/demo.ticks"):
        assert ask("OP", f"api/plan/{action}", method="POST", headers=OURS, body={})["status"] == 404


@pytest.mark.usefixtures("declared")
def test_an_action_after_an_upgrade_asks_for_a_restart_of_the_api_server(ask: Ask, airflow_process: AirflowProcess):
    airflow_process.call(in_airflow.meet_other_files, change=True)
    try:
        for what in ("plan", "action"):
            answer = ask("OP", f"api/{what}/pause/ticks", method="POST", headers=OURS, body={})
            assert answer["status"] == 500
            assert answer["body"]["detail"].startswith("frazil's files were replaced after this API server started")
    finally:
        airflow_process.call(in_airflow.meet_other_files, change=False)


PATHS = ("api/stream/ticks", "api/table/demo.ticks")
