"""`frazil dev` starts, shows and ends the embedded servers, and prints how to reach them."""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import make_url

from frazil.cli.main import frazil
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.process import choose_free_port, last_port
from frazil.errors import EnvironmentUnusable
from frazil.table.catalogs import load_catalog


def run(*arguments: str) -> Result:
    return CliRunner().invoke(frazil, ["dev", *arguments])


def test_up_is_idempotent_and_down_ends_what_it_started(frazil_home: Path) -> None:
    port = choose_free_port()
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
    assert last_port(frazil_home / "dev" / "kafka") == port


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A FRAZIL_HOME that every user may enter: where root runs the tests, PostgreSQL runs as another user."""
    with tempfile.TemporaryDirectory(prefix="frazil-home-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("FRAZIL_HOME", folder)
        yield Path(folder)


def test_the_printed_catalog_configuration_works_and_contains_no_password(
    open_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("kafka", "object-store", "catalog", "postgres")
    ports = [part for name in names for part in (f"--{name}-port", str(choose_free_port()))]
    try:
        first = run("up", "--object-store", "--postgres", *ports)
        assert first.exit_code == 0, first.output
        assert run("up", "--object-store", "--postgres").output == first.output
        running = json.loads(run("status", "--json").output)
        assert running["object-store"] == f"http://127.0.0.1:{ports[3]}"
        assert running["postgres"] == f"127.0.0.1:{ports[7]}"
        configuration = open_home / "dev" / ".pyiceberg.yaml"
        assert f"The catalogs rest and postgres are in {configuration}, with their passwords." in first.output
        assert f"export PYICEBERG_HOME={configuration.parent}" in first.output
        found = yaml.safe_load(configuration.read_text())["catalog"]
        password = make_url(found["postgres"]["uri"]).password
        assert password
        assert password not in first.output
        assert found["rest"]["s3.secret-access-key"] not in first.output
        assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
        monkeypatch.setenv("PYICEBERG_HOME", str(configuration.parent))
        for name in ("rest", "postgres"):
            catalog = load_catalog(name)
            catalog.create_namespace("city")
            table = catalog.create_table("city.rides", Schema(NestedField(1, "id", LongType())))
            assert table.location().startswith("s3://")
        assert load_catalog(None).name == "rest"
    finally:
        assert run("down").output == "ended kafka, object-store, postgres\n"
    assert run("status").exit_code == 1


def test_dev_up_refuses_a_kafka_port_that_is_taken(frazil_home: Path, kafka: EmbeddedKafka) -> None:
    assert not frazil_home.exists()
    refused = run("up", "--kafka-port", str(kafka.port))
    assert isinstance(refused.exception, EnvironmentUnusable)
    assert f"port {kafka.port}, wanted for Kafka, is taken" in str(refused.exception)
