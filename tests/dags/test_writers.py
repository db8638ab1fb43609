"""The writers' DAG file: the DAGs it contains, its cost, and other streams' DAGs if a declaration is invalid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frazil.spec.last_valid import MAX_FILE_ABSENCE_MS
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess

CHECKOUT = Path(__file__).resolve().parents[2]
Parse = Callable[..., dict[str, Any]]
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{ts: timestamptz not null}}
event-time: ts
"""


def test_the_dag_folder_parses_without_errors_and_without_warnings(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["warnings"] == []


def test_parsing_loads_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert "frazil" in parsed["loaded"], "or this test would hold nothing"
    assert not {"pyspark", "pyarrow", "pyiceberg", "great_expectations", "confluent_kafka", "pandas"} & set(
        parsed["loaded"]
    )


SERIALIZE_ELSEWHERE = """
import json, sys, time
now = time.time_ns
time.time_ns = lambda: now() + 40 * 86_400 * 10**9
time.time = lambda: time.time_ns() / 1e9
from tests.dags import in_airflow
json.dump(in_airflow.serialized(sys.argv[1]), open(sys.argv[2], "w"))
"""


def test_different_dag_processors_serialize_identical_dags_so_that_no_dag_version_is_created(tmp_path: Path) -> None:
    """Parse with another hash seed, environment and FRAZIL_HOME, forty days later, and files written again."""
    (streams := tmp_path / "streams").mkdir()
    names = [f"s{number}" for number in range(6)]
    text = STREAM + "partition-by: [day(ts)]\n"
    for name in names:
        (streams / f"{name}.yaml").write_text(text.format(name=name).replace("demo.s5", "demo.s4"))
    process = AirflowProcess(tmp_path / "one", FRAZIL_HOME=str(tmp_path / "one"), FRAZIL_STREAMS=str(streams))
    first = process.call(in_airflow.serialized, str(CHECKOUT / "dags"))
    process.end()
    for name in reversed(names):
        (streams / f"{name}.yaml").unlink()
        (streams / f"{name}.yaml").write_text(text.format(name=name).replace("demo.s5", "demo.s4"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "FRAZIL", "LC_"))}
    environment |= {
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Kathmandu",
        "LANG": "C",
        "HOME": str(tmp_path / "two"),
        "AIRFLOW_HOME": str(tmp_path / "two"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "FRAZIL_HOME": str(tmp_path / "two"),
        "FRAZIL_STREAMS": str(streams),
        "PYTHONPATH": str(CHECKOUT),
        "FRAZIL_ANYTHING": "else",
    }
    answer = tmp_path / "second.json"
    command = [sys.executable, "-c", SERIALIZE_ELSEWHERE, str(CHECKOUT / "dags"), str(answer)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    second = json.loads(answer.read_text())
    assert len(first) > 2 * len(names)
    assert second == first


def test_every_declared_stream_has_a_dag_that_runs_for_ever_and_once_at_a_time(parsed: dict[str, Any]) -> None:
    flights = parsed["dags"]["frazil_writer_flights"]
    assert flights["tasks"] == {"write": "WriterOperator"}
    assert flights["tags"] == ["frazil", "stream:flights", "table:demo.flights", "writer"]
    assert (flights["max_active_runs"], flights["timetable"]) == (1, "ContinuousTimetable")
    assert (flights["timeout"], flights["catchup"]) == ("None", False)
    assert "demo.flights" in flights["doc"]
    assert "frazil resume flights" in flights["doc"]


def test_a_broken_declaration_breaks_no_other_dag(tmp_path: Path, parse: Parse) -> None:
    (tmp_path / "good.yaml").write_text(STREAM.format(name="good"))
    (tmp_path / "typo.yaml").write_text(STREAM.format(name="typo").replace("event-time", "event-tmie"))
    (tmp_path / "not-yaml.yaml").write_text("name: torn\nschema: {")
    (tmp_path / "Odd Name.yaml").write_text("- no\n- mapping\n")
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    (said,) = found["errors"].items()
    assert said[0].endswith("dags/declarations.py"), "which has no DAG"
    assert "event-tmie" in said[1]
    dags = _writers(found)
    assert sorted(dags) == [f"frazil_writer_{name}" for name in ("good", "odd-name", "torn", "typo")]
    assert dags["frazil_writer_good"]["tags"] == ["frazil", "stream:good", "table:demo.good", "writer"]
    assert dags["frazil_writer_typo"]["tags"] == ["broken", "frazil", "stream:typo", "writer"]
    assert "event-tmie" in dags["frazil_writer_typo"]["doc"]
    assert str(tmp_path / "typo.yaml") in dags["frazil_writer_typo"]["doc"]
    assert "not-yaml.yaml: line" in dags["frazil_writer_torn"]["doc"]


def about(stream: str) -> list[str]:
    """The tags of a stream's DAG that say what it is about."""
    return [f"stream:{stream}", f"table:demo.{stream}"]


def test_the_dag_of_a_removed_stream_stays_without_a_schedule_until_its_run_ends(tmp_path: Path, parse: Parse) -> None:
    for name in ("kept", "gone"):
        (tmp_path / f"{name}.yaml").write_text(STREAM.format(name=name) + "complete: hour\n")
    parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    (tmp_path / "gone.yaml").unlink()
    (record,) = (tmp_path / "airflow" / "frazil" / "declared").glob("*/gone.yaml.json")
    minutes_ago = time.time_ns() // 1_000_000 - 2 * MAX_FILE_ABSENCE_MS
    record.write_text(json.dumps({**json.loads(record.read_text()), "missing-since-ms": minutes_ago}))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert found["errors"] == {}, "it was meant"
    gone, kept = (found["dags"][f"frazil_writer_{name}"] for name in ("gone", "kept"))
    assert (gone["timetable"], gone["tags"]) == ("NullTimetable", ["frazil", "removed", *about("gone"), "writer"])
    assert (kept["timetable"], kept["tags"]) == ("ContinuousTimetable", ["frazil", *about("kept"), "writer"])
    assert "stream:gone" not in found["dags"]["frazil_audits"]["tags"]
    checks = found["dags"]["frazil_partitions_demo.gone"]
    assert (checks["timetable"], checks["tags"]) == (
        "NullTimetable",
        ["frazil", "partitions", "removed", *about("gone")],
    )


def test_streams_of_one_application_share_a_dag_with_a_task_for_each(tmp_path: Path, parse: Parse) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(STREAM.format(name=name) + "application: small\n")
    (tmp_path / "alone.yaml").write_text(STREAM.format(name="alone"))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert found["errors"] == {}
    dags = _writers(found)
    assert sorted(dags) == ["frazil_writer_alone", "frazil_writer_small"]
    assert dags["frazil_writer_small"]["tasks"] == {
        "write": "WriterOperator",
        "stream.a": "HostedStreamOperator",
        "stream.b": "HostedStreamOperator",
    }
    assert "Kafka b into Iceberg demo.b" in dags["frazil_writer_small"]["doc"]


def test_two_streams_with_one_name_share_a_dag_that_reports_it(tmp_path: Path, parse: Parse) -> None:
    (tmp_path / "a.yaml").write_text(STREAM.format(name="same"))
    (tmp_path / "b.yaml").write_text(STREAM.format(name="same"))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert list(_writers(found)) == ["frazil_writer_same"]
    assert "rename one" in found["dags"]["frazil_writer_same"]["doc"]


def _writers(found: dict[str, Any]) -> dict[str, Any]:
    return {dag_id: dag for dag_id, dag in found["dags"].items() if "writer" in dag["tags"]}
