"""The descriptions of all DAGs, and the one setting that selects their notifiers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
STREAM = """
name: {name}
description: {description}
owner: {owner}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{table}
schema: {{ts: timestamptz not null}}
event-time: ts
complete: hour
"""
NOTIFIERS = """
from airflow.sdk import BaseNotifier

class ToSlack(BaseNotifier):
    def notify(self, context): ...

def by_mail(context): ...

async def late(**_): ...

nobody = 3
"""
Parse = Callable[..., dict[str, Any]]


def declare(folder: Path, name: str, *, owner: str, table: str, description: str = "Rides of the city") -> None:
    text = STREAM.format(name=name, owner=owner, table=table, description=description)
    (folder / f"{name}.yaml").write_text(text)


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    (folder := tmp_path / "streams").mkdir()
    return folder


def test_dags_are_found_by_stream_by_table_and_by_owner(tmp_path: Path, streams: Path, parse: Parse) -> None:
    declare(streams, "rides", owner="mobility", table="rides")
    declare(streams, "taxis", owner="airport", table="rides")
    dags = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=streams)["dags"]
    writer, audit = dags["frazil_writer_rides"], dags["frazil_audits"]
    assert {writer["display_name"], audit["display_name"]} == {"Writer: rides", "Audits of all streams"}
    assert (writer["description"], writer["owner"]) == ("Rides of the city", "mobility")
    assert audit["owner"] == "airport, mobility"
    both = {"stream:rides", "stream:taxis", "table:demo.rides"}
    for dag_id in ("frazil_partitions_demo.rides", "frazil_maintenance"):
        assert both <= set(dags[dag_id]["tags"])
        assert dags[dag_id]["owner"] == "airport, mobility"
    assert "table:demo.rides_dead_letters" in dags["frazil_maintenance"]["tags"]
    names = [dag["display_name"] for dag in dags.values()]
    assert len(set(names)) == len(names), "two DAGs look the same in Airflow's list"


def test_a_dag_of_many_streams_has_no_tag_for_each(tmp_path: Path, streams: Path, parse: Parse) -> None:
    for number in range(11):
        declare(streams, f"s{number}", owner=f"team-{number}", table="t")
    dags = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=streams)["dags"]
    assert [tag for tag in dags["frazil_partitions_demo.t"]["tags"] if ":" in tag] == ["table:demo.t"]
    assert dags["frazil_audits"]["owner"] == "airflow", "a DAG that eleven teams own is the platform's"
    assert "stream:s7" in dags["frazil_writer_s7"]["tags"]


def test_one_setting_gives_every_task_its_notifiers_and_defaults(
    tmp_path: Path, streams: Path, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(streams, "rides", owner="mobility", table="rides")
    (tmp_path / "alerts_of_tests.py").write_text(NOTIFIERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FRAZIL_ON_FAILURE", "alerts_of_tests:ToSlack, alerts_of_tests:by_mail")
    monkeypatch.setenv("FRAZIL_ON_RESOLVED", "alerts_of_tests:by_mail")
    monkeypatch.setenv("FRAZIL_ON_LATE", "alerts_of_tests:late")
    monkeypatch.setenv("FRAZIL_DEFAULT_ARGS", '{"owner": "platform", "retries": 7}')
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=streams)
    assert found["errors"] == {}
    for dag_id, dag in found["dags"].items():
        for task_id, reported in dag["reported"].items():
            assert reported == ["ToSlack", "by_mail"], (dag_id, task_id)
    assert found["dags"]["frazil_health"]["owner"] == "platform"
    assert found["dags"]["frazil_writer_rides"]["owner"] == "mobility", "what a stream declares goes before"
    assert found["dags"]["frazil_health"]["retries"]["measure"] == 7
    assert found["dags"]["frazil_writer_rides"]["retries"]["write"] > 1000, "a writer is retried for ever"


def test_schedules_and_arguments_for_a_group_of_dags_are_settings(
    tmp_path: Path, streams: Path, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(streams, "rides", owner="mobility", table="rides")
    (aggregations := tmp_path / "aggregations").mkdir()
    daily = "source: demo.rides\nevent-time: ts\ntarget: demo.days\nsql: SELECT count(*) AS n FROM source_day\n"
    (aggregations / "days.yaml").write_text(daily)
    monkeypatch.setenv("FRAZIL_AUDIT_EVERY", "6h")
    monkeypatch.setenv("FRAZIL_RECONCILE_EVERY", "1h")
    monkeypatch.setenv("FRAZIL_HEALTH_EVERY", "10m")
    monkeypatch.setenv("FRAZIL_DEFAULT_ARGS", '{"retries": 7, "audit": {"retries": 9}, "daily": {"queue": "large"}}')
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=streams)
    dags = found["dags"]
    assert found["errors"] == {}
    assert (dags["frazil_audits"]["schedule"], dags["frazil_audits"]["params"]["hours"]) == ("15 */6 * * *", 6)
    assert (dags["frazil_reconcile_days"]["every"], dags["frazil_health"]["every"]) == ("1:00:00", "0:10:00")
    assert (dags["frazil_audits"]["retries"]["audit"], dags["frazil_health"]["retries"]["measure"]) == (9, 7)
    assert dags["frazil_audits"]["retries"]["stream.report"] == 0, "a finding is no accident"
    assert set(dags["frazil_daily_days"]["queues"].values()) == {"large"}
    assert set(dags["frazil_audits"]["queues"].values()) == {"default"}


@pytest.mark.parametrize(
    ("variable", "value", "file", "said"),
    [
        ("FRAZIL_AUDIT_EVERY", "5h", "audits.py", "audits cannot run every 5h: the interval must be"),
        ("FRAZIL_AUDIT_EVERY", "90m", "audits.py", "audits cannot run every 1h30m: the interval must be"),
        ("FRAZIL_HEALTH_EVERY", "5", "maintenance.py", "FRAZIL_HEALTH_EVERY is '5'"),
        ("FRAZIL_HEALTH_EVERY", "10s", "maintenance.py", "the minimum is 1m"),
        ("FRAZIL_DEFAULT_ARGS", '{"audit": 5}', "audits.py", "'audit' is 5; write an object such as"),
    ],
)
def test_an_invalid_setting_is_reported_with_the_valid_values(  # noqa: PLR0913, PLR0917 - a table's columns
    variable: str, value: str, file: str, said: str, streams: Path, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(streams, "rides", owner="mobility", table="rides")
    monkeypatch.setenv(variable, value)
    errors = parse(CHECKOUT / "dags", home=streams.parent / "airflow", streams=streams)["errors"]
    assert [said in error for path, error in errors.items() if path.endswith(file)] == [True]


@pytest.mark.parametrize(
    "setting",
    [
        ("FRAZIL_ON_FAILURE", "no.such.module:call", "FRAZIL_ON_FAILURE: 'no.such.module:call' cannot be imported"),
        ("FRAZIL_ON_FAILURE", "alerts_of_tests", "does not name a function; write module:name"),
        ("FRAZIL_ON_FAILURE", "alerts_of_tests:nobody", "is not a function or notifier"),
        ("FRAZIL_DEFAULT_ARGS", "retries=3", "FRAZIL_DEFAULT_ARGS is not JSON"),
        ("FRAZIL_DEFAULT_ARGS", "[3]", 'write a JSON object such as {"owner"'),
    ],
)
def test_an_invalid_setting_is_an_import_error_of_the_affected_dags(
    setting: tuple[str, str, str], streams: Path, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, value, said = setting
    declare(streams, "rides", owner="mobility", table="rides")
    (streams.parent / "alerts_of_tests.py").write_text(NOTIFIERS)
    monkeypatch.syspath_prepend(streams.parent)
    monkeypatch.setenv(variable, value)
    errors = parse(CHECKOUT / "dags", home=streams.parent / "airflow", streams=streams)["errors"]
    assert any(said in error for file, error in errors.items() if file.endswith("writers.py"))
