"""Blocks of the guides and of the reference that need rows, dead letters and a broker: run in this process.

Two streams feed the tables of a city; a topic is inferred from, and another one has records before its stream's start.
What a page says that a command prints is compared, numbers and times apart.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from frazil.cli import output
from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.spec.load import load_stream
from frazil.stream import spark_engine
from frazil.stream.writer import Writer
from frazil.table.catalogs import load_catalog
from tests.conftest import TopicFactory
from tests.in_process_engine import InProcessEngine
from tests.pages import Block, alike, blocks

CLI = "docs/reference/cli.md"
DEAD_LETTERS = "docs/how-to/handle-dead-letters.md"
EVOLVE = "docs/how-to/evolve-a-schema.md"
BACKFILL = "docs/how-to/backfill.md"
IN_TURN = [
    (CLI, "frazil pause rides"),
    (CLI, "frazil cut rides payments"),
    (DEAD_LETTERS, "frazil dlq list rides"),
    (DEAD_LETTERS, "frazil dlq replay rides"),
    (EVOLVE, "frazil evolve rides"),
]
STREAM = """
name: {name}
source: {{topics: [{topic}], format: json, bootstrap-servers: "{bootstrap}"}}
table: {{identifier: city.{name}, catalog: lake}}
schema: {{id: long not null, at: timestamptz not null, note: string, gate: string}}
event-time: at
watermark: {{idle-timeout: 1s}}
"""
FLIGHTS = """
name: flights
source: {SOURCE}
table: demo.flights
schema: {flight: long not null, departure: timestamptz not null}
event-time: departure
"""


@pytest.fixture(scope="module")
def city(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("city")
    streams = folder / "streams"
    streams.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FRAZIL_HOME", str(folder / ".frazil"))
        patch.setenv("FRAZIL_STREAMS", str(streams))
        lake = {"TYPE": "sql", "URI": f"sqlite:///{folder}/lake.db", "WAREHOUSE": f"file://{folder}/lake"}
        for key, value in lake.items():
            patch.setenv(f"PYICEBERG_CATALOG__LAKE__{key}", value)
        for name, rejected in (("rides", [*["{"] * 6, *['{"id": 1}'] * 21]), ("payments", [])):
            topic, file = f"{name}-of-{folder.name}", streams / f"{name}.yaml"
            kafka.create_topic(topic)
            file.write_text(STREAM.format(name=name, topic=topic, bootstrap=kafka.bootstrap))
            for batch in range(2):
                send(kafka, topic, [*(row(batch * 5 + n) for n in range(5)), *rejected])
                Writer(load_stream(file), until_caught_up=True, engine=InProcessEngine()).run()
        yield folder


def row(number: int) -> str:
    return json.dumps({"id": number, "at": f"2026-01-01T00:00:0{number}Z", "note": "x"})


def send(kafka: EmbeddedKafka, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


@pytest.mark.usefixtures("city")
@pytest.mark.parametrize(("page", "beginning"), IN_TURN)
def test_commands_in_the_docs_print_the_output_shown_on_their_page(
    page: str, beginning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    (block,) = [block for block in blocks(page) if block.program.startswith(beginning)]
    for command, answer in given(block):
        words = shlex.split(command, comments=True)
        done = CliRunner().invoke(frazil, words[1:], input="y\n")
        assert done.exit_code == 0, done.exception
        assert answer is None or alike(done.output, answer), done.output


def given(block: Block) -> list[tuple[str, str | None]]:
    """Return each command, and its output as the page shows it, if any."""
    if block.kind == "console":
        return list(block.answers())
    return [(line, None) for line in block.program.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with an empty one for streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / ".frazil"))
    monkeypatch.setenv("FRAZIL_STREAMS", "streams")
    (tmp_path / "streams").mkdir()
    return tmp_path


def test_infer_proposes_the_declaration_shown_in_the_reference(
    folder: Path, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """About as many records a day, of about as many bytes, as there."""
    name = topic()
    (folder / "streams" / "_defaults.yaml").write_text(f"source: {{bootstrap-servers: '{kafka.bootstrap}'}}\n")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    begin_ms = 1_790_000_000_000
    for ride in range(3_000):
        at_ms = begin_ms + ride * 215
        tip = {} if ride % 10 < 3 else {"tip": ride / 4}
        value = json.dumps({"ride": 2**40 + ride, "started_at": at_ms, **tip})
        producer.produce(name, value + " " * (160 - len(value)), timestamp=at_ms)
    assert producer.flush(30) == 0
    (block,) = [block for block in blocks(CLI) if block.program == "frazil infer rides --table city.rides\n"]
    ((command, answer),) = block.answers()
    done = CliRunner().invoke(frazil, [*shlex.split(command.replace(" rides ", f" {name} "))[1:], "--name", "rides"])
    assert done.exit_code == 0, done.exception
    assert alike(done.output.replace(name, "rides"), answer), done.output


def test_the_backfill_requests_in_the_guide_work(
    folder: Path, kafka: EmbeddedKafka, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = topic(), folder / "streams" / "flights.yaml"
    monkeypatch.setattr(spark_engine, "SparkEngine", lambda *_, **__: InProcessEngine())
    monkeypatch.setattr(output, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    send_flights(kafka, name, range(1_300))
    source = f"topics: [{name}], format: json, bootstrap-servers: '{kafka.bootstrap}', start: latest"
    file.write_text(FLIGHTS.replace("SOURCE", source))
    Writer(load_stream(file), until_caught_up=True, engine=InProcessEngine()).run()
    (archive := folder / "archive").mkdir()
    row = {"flight": 1, "departure": "2013-12-30T00:01:00Z"}
    row |= {"kafka_topic": name, "kafka_partition": 0, "kafka_offset": 1}
    (archive / "flights.jsonl").write_text(f"{json.dumps(row)}\n")

    (block,) = [block for block in blocks(BACKFILL) if block.kind == "sh"]
    by_time, to_branch, by_event_time, of_files, status, abandon = block.program.splitlines()

    def printed(command: str) -> str:
        words = shlex.split(
            command.replace('{"flights":', f'{{"{name}":').replace("s3://archive/flights/2013/", str(archive))
        )
        done = CliRunner().invoke(frazil, words[1:], input="y\n")
        assert done.exit_code == 0, (command, done.exception, done.output)
        return done.output

    assert "1,300" in printed(by_time)
    assert "100 in" in printed(to_branch)
    assert "on branch" in printed(status)
    assert "is abandoned" in printed(abandon)
    assert "published" in printed(by_event_time)
    assert printed(of_files)
    rows = load_catalog(None).load_table("demo.flights").scan(selected_fields=("flight",)).to_arrow()
    assert sorted(rows["flight"].to_pylist()) == list(range(1_300))


def send_flights(kafka: EmbeddedKafka, topic: str, flights: range) -> None:
    """They departed on 30 December 2013, a minute after another, and Kafka got them then."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for flight in flights:
        at = datetime(2013, 12, 30, tzinfo=UTC) + timedelta(minutes=flight)
        value = json.dumps({"flight": flight, "departure": at.isoformat()})
        producer.produce(topic, value, timestamp=int(at.timestamp() * 1_000))
    assert producer.flush(30) == 0
