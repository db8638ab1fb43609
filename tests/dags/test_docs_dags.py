"""A real Airflow parses the DAG files of `frazil init` and of the docs without errors or warnings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from frazil.airflow.partitions.tasks import window_facts
from frazil.cli import init
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess
from tests.dags.test_sensors import Flow
from tests.pages import CHECKOUT, all_blocks

TEAM = "docs/how-to/start-when-complete.md"
NOTIFIERS = "docs/how-to/send-alerts.md"
"""It needs providers that are not installed here: tests/dags/test_notifications.py."""


def test_the_dag_files_of_the_pages_parse(
    tmp_path: Path, parse: Callable[..., dict[str, Any]], parsed: dict[str, Any]
) -> None:
    (tmp_path / "include").symlink_to(CHECKOUT / "include")
    python = [block for block in all_blocks() if block.kind == "python" and block.page != NOTIFIERS]
    shown = [block for block in python if "airflow" in block.text]
    project, others = tmp_path / "dags", tmp_path / "others"
    project.mkdir()
    others.mkdir()
    (project / "streams.py").write_text(init.STREAMS_DAGS)
    (project / "declarations.py").write_text(init.DECLARATIONS_DAGS)
    for number, block in enumerate(shown):
        (others / f"file_{number}.py").write_text(
            block.text.replace("/opt/project/include/streams", str(CHECKOUT / "include" / "streams"))
        )
    whole = parse(project, home=tmp_path / "airflow")
    assert (whole["errors"], whole["warnings"]) == ({}, [])
    assert sorted(whole["dags"]) == sorted(parsed["dags"])
    rest = parse(others, home=tmp_path / "airflow-of-others")
    assert (rest["errors"], rest["warnings"]) == ({}, [])
    assert sorted(rest["dags"]) == [
        "flights_of_a_day",
        "flights_of_an_hour",
        "flights_report",
        "report",
    ]


STREAM = """
name: flights
source: {topics: [flights], bootstrap-servers: "127.0.0.1:1"}
table: demo.flights
schema: {scheduled_departure: timestamptz}
event-time: scheduled_departure
complete: hour
complete-from: 2013-12-30T00:00:00Z
"""


def test_dag_files_in_the_team_guide_read_an_hour_a_reopened_hour_and_a_day(
    frazil_home: Path,
    tmp_path: Path,
    airflow_database: Path,
    settled: None,  # noqa: ARG001
) -> None:
    files = tmp_path / "dags"
    files.mkdir()
    for block in (one for one in all_blocks() if one.page == TEAM and one.kind == "python"):
        (files / Path(block.text.splitlines()[0].removeprefix("# ")).name).write_text(block.text)
    (tmp_path / "flights.yaml").write_text(STREAM)
    flow = Flow(tmp_path, "flights.yaml")
    flow.land(26)
    flow.signal()
    known = {name: window_facts(found) for name, found in flow.newest().items()}
    flow.land_late(5)
    flow.signal()
    again = {name: window_facts(found) for name, found in flow.newest().items() if found.revision > 1}
    assert (len(known), list(again)) == (25, ["2013-12-30T05"])

    variables = {"FRAZIL_HOME": frazil_home, "FRAZIL_STREAMS": tmp_path, "AIRFLOW__CORE__DAGS_FOLDER": files}
    process = AirflowProcess(
        tmp_path / "airflow", database=airflow_database, **{name: str(value) for name, value in variables.items()}
    )
    hour, complete, reopened = "2013-12-30T05", "demo.flights", "demo.flights.reopened"

    def run(dag_id: str, key: str, events: dict[str, Any]) -> Any:
        return process.call(in_airflow.run_for_events, str(files), dag_id, key, events)

    first = run("flights_of_an_hour", hour, {complete: [{hour: known[hour]}]})
    assert first == {"hour": hour, "rows": 1, "revision": 1}, "the snapshot that the signal counted"
    late = run("flights_of_an_hour", hour, {complete: [{hour: known[hour]}], reopened: [again]})
    assert late == {"hour": hour, "rows": 2, "revision": 2}
    day = {name: of for name, of in known.items() if name.startswith("2013-12-30")}
    assert run("flights_of_a_day", "2013-12-30", {complete: [day]}) == {"day": "2013-12-30", "rows": 24}
    assert run("flights_of_a_day", "2013-12-30", {reopened: [again]}) == {"day": "2013-12-30", "rows": 25}
    requested = [("flights_of_a_day", complete, hour), ("flights_of_a_day", reopened, hour)]
    answered = process.call(in_airflow.schedules, str(files), requested)
    process.end()
    day_of_hour, needed = answered[f"flights_of_a_day {complete}"]
    assert (day_of_hour[:10], len(needed)) == ("2013-12-30", 24)
    assert answered[f"flights_of_a_day {reopened}"] == [day_of_hour, None], "one hour is enough"
