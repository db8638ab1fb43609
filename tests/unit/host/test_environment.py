"""The variables in a writer's environment, and those kept out of it."""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import build_writer_environment
from frazil.host.lock import INHERITED_LOCK
from frazil.spec.load import find_stream
from frazil.spec.references import find_environment_names

BASE = {
    "PATH": "/bin",
    "JAVA_HOME": "/java",
    "SPARK_LOCAL_IP": "127.0.0.1",
    "FRAZIL_STREAMS": "/streams",
    "FRAZIL_HOME": "relative",
    "PYICEBERG_CATALOG__LAKE__URI": "http://catalog",
    "KAFKA_PASSWORD": "secret-1",
    "OTHER_PASSWORD": "secret-2",
    "AIRFLOW__CORE__FERNET_KEY": "secret-3",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "secret-4",
    "AIRFLOW_CONN_OTHERS": "secret-5",
    INHERITED_LOCK: "7",
}


def test_the_writer_environment_has_the_settings_and_only_the_secrets_that_the_spec_references(streams: Path) -> None:
    file = streams / "ticks.yaml"
    file.write_text(file.read_text().replace("127.0.0.1:1", "${airflow:kafka.host}:1") + "lateness: 5m\n")
    file.write_text(
        file.read_text().replace("source: {", 'source: {properties: {sasl.password: "${env:KAFKA_PASSWORD}"}, ')
    )
    spec = find_stream(streams, "ticks")
    found = build_writer_environment(
        find_environment_names(spec), BASE, connections={"kafka": '{"host": "k1"}'}, python="/py", home="/home/f"
    )
    assert found["KAFKA_PASSWORD"] == "secret-1"
    assert found["AIRFLOW_CONN_KAFKA"] == '{"host": "k1"}'
    assert (found["FRAZIL_HOME"], found["PYSPARK_PYTHON"]) == ("/home/f", "/py")
    assert {"PATH", "JAVA_HOME", "SPARK_LOCAL_IP", "FRAZIL_STREAMS", "PYICEBERG_CATALOG__LAKE__URI"} <= set(found)
    assert not {v for v in found.values() if v in {"secret-2", "secret-3", "secret-4", "secret-5"}}
    assert INHERITED_LOCK not in found


def test_a_python_for_spark_that_was_chosen_is_kept(streams: Path) -> None:
    base = {"PYSPARK_PYTHON": "/chosen"}
    found = build_writer_environment(
        find_environment_names(find_stream(streams, "ticks")), base, connections={}, python="/py", home="/h"
    )
    assert found["PYSPARK_PYTHON"] == "/chosen"


def test_an_empty_variable_counts_as_unset() -> None:
    base = {"PYSPARK_PYTHON": "", "OPENLINEAGE_PARENT_ID": ""}
    found = build_writer_environment((), base, connections={}, python="/py", home="/h")
    assert found == {"PYSPARK_PYTHON": "/py", "FRAZIL_HOME": "/h", "PYTHONUNBUFFERED": "1"}
