"""`frazil dev` starts, shows and ends the embedded broker, and says how to reach it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.process import free_port
from frazil.errors import EnvironmentUnusable


def run(*arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["dev", *arguments])


def test_up_is_idempotent_and_down_ends_what_it_started(frazil_home: Path) -> None:
    port = free_port()
    try:
        first = run("up", "--kafka-port", str(port))
        assert first.exit_code == 0, first.output
        assert f"Kafka    127.0.0.1:{port}" in first.output
        assert f"export FRAZIL_KAFKA=127.0.0.1:{port}" in first.output
        running = json.loads(run("status", "--json").output)
        assert running["kafka"] == f"127.0.0.1:{port}"
        assert running["airflow"] is None
        assert run("up").output == first.output
        assert json.loads(run("status", "--json").output) == running
    finally:
        assert run("down").output == "ended kafka\n"
    assert run("status").exit_code == 1
    assert EmbeddedKafka.last_port(frazil_home / "dev" / "kafka") == port


def test_another_port_for_a_broker_that_runs_is_refused(frazil_home: Path, kafka: EmbeddedKafka) -> None:
    assert not frazil_home.exists()
    refused = run("up", "--kafka-port", str(kafka.port))
    assert isinstance(refused.exception, EnvironmentUnusable)
    assert f"port {kafka.port}, wanted for Kafka, is taken" in str(refused.exception)
