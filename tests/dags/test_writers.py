"""The DAG file of the writers: what it parses to, what it costs, and what a broken declaration does to the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{ts: timestamptz not null}}
event-time: ts
"""
PARSE = """
import json, sys, time, warnings
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag

before, cpu = set(sys.modules), time.process_time()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    bag = DagBag(sys.argv[1])
print("PARSED", json.dumps({
    "cpu_s": time.process_time() - cpu,
    "errors": bag.import_errors,
    "warnings": [str(w.message) for w in caught] + [str(w) for found in bag.captured_warnings.values() for w in found],
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "dags": {
        dag.dag_id: {
            "tasks": {t.task_id: type(t).__name__ for t in dag.tasks}, "tags": sorted(dag.tags), "doc": dag.doc_md,
            "max_active_runs": dag.max_active_runs, "timetable": type(dag.timetable).__name__,
            "timeout": str(dag.dagrun_timeout), "catchup": dag.catchup,
        }
        for dag in bag.dags.values()
    },
}))
"""


def parse(dags: Path, *, home: Path, streams: Path | None = None) -> dict[str, Any]:
    """Parse a folder as Airflow's DAG processor does, in a process of its own."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(CHECKOUT),
    }
    environment.pop("FRAZIL_STREAMS", None)
    if streams is not None:
        environment["FRAZIL_STREAMS"] = str(streams)
    command = [sys.executable, "-W", "error::DeprecationWarning:frazil", "-c", PARSE, str(dags)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("PARSED "))
    parsed: dict[str, Any] = json.loads(line.removeprefix("PARSED "))
    print(f"parsed {len(parsed['dags'])} Dags in {parsed['cpu_s']:.2f} s of CPU")
    return parsed


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkout's own DAG folder."""
    return parse(CHECKOUT / "dags", home=tmp_path_factory.mktemp("airflow"))


def test_the_dag_folder_parses_without_errors_and_without_warnings(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["warnings"] == []


def test_parsing_loads_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert "frazil" in parsed["loaded"], "or this test would hold nothing"
    assert not {"pyspark", "pyarrow", "pyiceberg", "great_expectations", "confluent_kafka", "pandas"} & set(
        parsed["loaded"]
    )


def test_every_declared_stream_has_a_dag_that_runs_for_ever_and_once_at_a_time(parsed: dict[str, Any]) -> None:
    flights = parsed["dags"]["frazil_writer_flights"]
    assert flights["tasks"] == {"write": "WriterOperator"}
    assert flights["tags"] == ["frazil", "writer"]
    assert (flights["max_active_runs"], flights["timetable"]) == (1, "ContinuousTimetable")
    assert (flights["timeout"], flights["catchup"]) == ("None", False)
    assert "demo.flights" in flights["doc"]
    assert "frazil resume flights" in flights["doc"]


def test_a_broken_declaration_takes_no_other_dag_with_it(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(STREAM.format(name="good"))
    (tmp_path / "typo.yaml").write_text(STREAM.format(name="typo").replace("event-time", "event-tmie"))
    (tmp_path / "not-yaml.yaml").write_text("name: torn\nschema: {")
    (tmp_path / "Odd Name.yaml").write_text("- no\n- mapping\n")
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert found["errors"] == {}
    dags = found["dags"]
    assert sorted(dags) == [f"frazil_writer_{name}" for name in ("good", "odd-name", "torn", "typo")]
    assert dags["frazil_writer_good"]["tags"] == ["frazil", "writer"]
    assert dags["frazil_writer_typo"]["tags"] == ["broken", "frazil", "writer"]
    assert "event-tmie" in dags["frazil_writer_typo"]["doc"]
    assert str(tmp_path / "typo.yaml") in dags["frazil_writer_typo"]["doc"]
    assert "not-yaml.yaml: line" in dags["frazil_writer_torn"]["doc"]


def test_two_streams_of_one_name_share_a_dag_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(STREAM.format(name="same"))
    (tmp_path / "b.yaml").write_text(STREAM.format(name="same"))
    found = parse(CHECKOUT / "dags", home=tmp_path / "airflow", streams=tmp_path)
    assert list(found["dags"]) == ["frazil_writer_same"]
    assert "rename one" in found["dags"]["frazil_writer_same"]["doc"]
