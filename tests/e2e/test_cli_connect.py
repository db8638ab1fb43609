"""`frazil validate --connect` checks Kafka, the catalog and the storage, and leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition

from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.process import choose_free_port
from frazil.table.catalogs import load_catalog
from tests.conftest import TopicFactory


def declare(folder: Path, *, topic: str, bootstrap: str, catalog: str = "lake", name: str = "rides") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"name: {name}\nsource: {{topics: [{topic}], format: json, bootstrap-servers: '{bootstrap}'}}\n"
        f"table: {{identifier: city.{name}, catalog: {catalog}}}\n"
        "schema: {at: timestamptz not null}\nevent-time: at\n"
    )
    return file


def configure(monkeypatch: pytest.MonkeyPatch, name: str = "lake", **properties: str) -> None:
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}", value)


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["validate", "--connect", *arguments])


@pytest.fixture(autouse=True)
def _home(frazil_home: Path) -> None:
    """Nothing outside this test is configured."""


def test_validate_reports_the_topics_and_the_catalog_that_it_reached_and_leaves_nothing(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    file = declare(tmp_path, topic=topic(3), bootstrap=kafka.bootstrap)
    result = validate(str(file))
    assert result.exit_code == 0, result.output
    assert re.search(r"^rides: topic \S+: 3 partitions$", result.stdout, re.MULTILINE)
    assert "rides: the catalog and its storage can hold city.rides" in result.stdout
    assert load_catalog("lake").list_namespaces() == []
    assert len(json.loads(validate("--json", str(file)).stdout)["connections"]) == 2


def test_a_missing_topic_and_an_unreachable_catalog_are_one_error_each(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, type="rest", uri=f"http://127.0.0.1:{choose_free_port()}")
    files = [declare(tmp_path, topic="nowhere", bootstrap=kafka.bootstrap, name=name) for name in ("rides", "trips")]
    result = validate(*map(str, files))
    assert result.exit_code == 10
    no_topic, no_catalog = (line for line in result.stderr.splitlines() if not line.startswith("  → "))
    both = "rides, trips"
    assert no_topic.startswith(f"{both}: source: TopicMissing: ")
    assert no_catalog.startswith(f"{both}: table: CommitUnavailable: the catalog 'lake' cannot be reached at http://12")


def test_a_recreated_topic_is_an_error_of_validate_and_doctor(stream: Any, events: Any, kafka: EmbeddedKafka) -> None:
    stream.produce(events(range(8)), partitions=4)
    stream.catch_up()
    file = stream.streams / f"{stream.name}.yaml"
    assert validate(str(file)).exit_code == 0
    admin = kafka.admin()
    admin.delete_topics([stream.topic], operation_timeout=30)[stream.topic].result(30)
    kafka.create_topic(stream.topic, 4)
    result = validate(str(file))
    assert result.exit_code == 10
    assert f"source: TopicRecreated: topic '{stream.topic}' of stream '{stream.name}' was deleted" in result.stderr
    said = CliRunner().invoke(frazil, ["doctor", "--streams", str(file.parent)]).stdout
    assert said.count("TopicRecreated") == 1


def test_a_gap_and_a_rollback_are_errors_of_validate_and_doctor(stream: Any, events: Any, kafka: EmbeddedKafka) -> None:
    def reported(error: str) -> None:
        result = validate(str(stream.streams / f"{stream.name}.yaml"))
        assert result.exit_code == 10
        assert f": {error}: " in result.stderr
        said = CliRunner().invoke(frazil, ["doctor", "--streams", str(stream.streams)]).stdout
        assert said.count(error) == 1

    stream.produce(events(range(8)), partitions=1)
    stream.catch_up()
    first = stream.table().current_snapshot().snapshot_id
    stream.produce(events(range(8, 16)), partitions=1)
    stream.catch_up()
    stream.produce(events(range(16, 24)), partitions=1)
    admin = kafka.admin()  # held, for its answers die with it
    (deleted,) = admin.delete_records([TopicPartition(stream.topic, 0, 20)]).values()
    deleted.result(30)
    reported("OffsetGap")
    stream.table().manage_snapshots().rollback_to_snapshot(first).commit()
    reported("RolledBack")
