"""Blocks of the guides and of the reference that need rows, dead letters and a broker: run in this process.

Two streams feed the tables of a city. What a page says that a command prints is compared, numbers and times apart.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from frazil.cli import output
from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.spec.load import load_stream
from frazil.stream.writer import Writer
from tests.in_process_engine import InProcessEngine
from tests.pages import Block, alike, blocks

CLI = "docs/reference/cli.md"
DEAD_LETTERS = "docs/how-to/handle-dead-letters.md"
EVOLVE = "docs/how-to/evolve-a-schema.md"
IN_TURN = [
    (CLI, "frazil pause rides"),
    (CLI, "frazil cut rides payments"),
    (DEAD_LETTERS, "frazil dlq list rides"),
    (DEAD_LETTERS, "frazil dlq replay rides"),
    (CLI, "frazil dlq list rides"),
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
def test_the_block_does_as_its_page_says(page: str, beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    (block,) = [block for block in blocks(page) if block.program.startswith(beginning)]
    for command, answer in given(block):
        words = shlex.split(command, comments=True)
        done = CliRunner().invoke(frazil, words[1:], input="y\n")
        assert done.exit_code == 0, done.exception
        assert answer is None or alike(done.output, answer), done.output


def given(block: Block) -> list[tuple[str, str | None]]:
    """Each command, and what the page says that it prints, if it does."""
    if block.kind == "console":
        return list(block.answers())
    return [(line, None) for line in block.program.splitlines()]
