"""What a writer's environment holds, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.host.environment import writer_environment
from frazil.host.lock import INHERITED_LOCK
from frazil.spec.load import find_stream
from frazil.supervise.declared import Declaration
from frazil.supervise.observed import Declared, Removed, Unreadable

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


def test_settings_pass_and_so_do_the_secrets_that_the_spec_refers_to_and_no_others(streams: Path) -> None:
    file = streams / "ticks.yaml"
    file.write_text(file.read_text().replace("127.0.0.1:1", "${airflow:kafka.host}:1") + "lateness: 5m\n")
    file.write_text(
        file.read_text().replace("source: {", 'source: {properties: {sasl.password: "${env:KAFKA_PASSWORD}"}, ')
    )
    spec = find_stream(streams, "ticks")
    found = writer_environment(spec, BASE, connections={"kafka": '{"host": "k1"}'}, python="/py", home="/home/f")
    assert found["KAFKA_PASSWORD"] == "secret-1"
    assert found["AIRFLOW_CONN_KAFKA"] == '{"host": "k1"}'
    assert (found["FRAZIL_HOME"], found["PYSPARK_PYTHON"]) == ("/home/f", "/py")
    assert {"PATH", "JAVA_HOME", "SPARK_LOCAL_IP", "FRAZIL_STREAMS", "PYICEBERG_CATALOG__LAKE__URI"} <= set(found)
    assert not {v for v in found.values() if v in {"secret-2", "secret-3", "secret-4", "secret-5"}}
    assert INHERITED_LOCK not in found


def test_a_python_for_spark_that_was_chosen_is_kept(streams: Path) -> None:
    base = {"PYSPARK_PYTHON": "/chosen"}
    found = writer_environment(find_stream(streams, "ticks"), base, connections={}, python="/py", home="/h")
    assert found["PYSPARK_PYTHON"] == "/chosen"


class Times:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def times() -> Times:
    return Times()


def test_a_stream_is_declared_broken_or_removed_and_these_are_three_things(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    file = streams / "ticks.yaml"
    sound = file.read_text()
    (streams / "others.yaml").write_text(sound.replace("ticks", "others"))
    assert declaration.read() == Declared(find_stream(streams, "ticks").fingerprint())
    for broken in (sound.replace("event-time", "event-tmie"), "name: ticks\nschema: {", "- a list\n"):
        file.write_text(broken)
        found: Any = declaration.read()
        assert isinstance(found, Unreadable), broken
        assert "ticks.yaml" in found.problem
    assert declaration.spec is not None, "the last sound one is remembered"
    file.unlink()
    assert declaration.read() == Removed(1_000)
    times.now_ms = 5_000
    assert declaration.read() == Removed(1_000)
    file.write_text(sound)
    assert isinstance(declaration.read(), Declared)
    file.unlink()
    assert declaration.read() == Removed(5_000)


def test_a_stream_whose_file_may_be_the_broken_one_is_not_removed(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    (streams / "ticks.yaml").rename(streams / "renamed.yaml")
    assert isinstance(declaration.read(), Declared), "the name in the file counts, not the file's"
    (streams / "renamed.yaml").write_text("name: [")
    assert isinstance(declaration.read(), Unreadable)


def test_a_folder_that_is_away_is_not_a_removed_stream(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    streams.rename(streams.with_name("away"))
    assert isinstance(declaration.read(), Unreadable)
