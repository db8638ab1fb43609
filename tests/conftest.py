"""What tests of every room share: a real broker, fresh topics, a home of their own, the right Python and Java."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.dev.kafka import EmbeddedKafka

# Spark starts its workers with PYSPARK_PYTHON, and binds to whatever the host's name resolves to, unless told.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# The commands of this venv (spark-submit, airflow) come before any of the system's.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

TopicFactory = Callable[..., str]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """One broker for the whole run, started by the first test that asks for it."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> TopicFactory:
    """`topic(partitions=1, **config)` makes a topic that no other test has and returns its name.

    Dots of a setting's name are written as underscores: `topic(4, cleanup_policy="compact")`.
    """
    serial = itertools.count(1)
    base = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]

    def make(partitions: int = 1, **config: str) -> str:
        name = f"{base}-{next(serial)}-{os.urandom(3).hex()}"
        kafka.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    return make


@pytest.fixture
def frazil_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FRAZIL_HOME of this test alone, in the environment."""
    home = tmp_path / "frazil-home"
    monkeypatch.setenv("FRAZIL_HOME", str(home))
    return home
