"""`frazil dev`: the embedded Kafka and Airflow of this machine, started, shown and ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from frazil.cli.options import json_option
from frazil.dev import process
from frazil.dev.airflow import COMPONENTS, EmbeddedAirflow
from frazil.dev.kafka import EmbeddedKafka
from frazil.home import home

DEFAULT_KAFKA_PORT = 9092
DEFAULT_AIRFLOW_PORT = 8080


@click.group()
def dev() -> None:
    """Embedded Kafka and Airflow for development, on the loopback.

    Their data, logs and records are in $FRAZIL_HOME/dev (FRAZIL_HOME is .frazil of this folder by default).

    \b
    Example:
      frazil dev up --airflow
      frazil dev status
      frazil dev down
    """


@dev.command()
@click.option("--kafka-port", type=click.IntRange(1, 65535), help="Kafka's port: 9092 at first, then the last one.")
@click.option("--airflow", is_flag=True, help="Start Airflow too, with the dags/ and plugins/ of this folder.")
@click.option("--airflow-port", type=click.IntRange(1, 65535), help="Airflow's port: 8080 at first, then the last one.")
def up(kafka_port: int | None, airflow: bool, airflow_port: int | None) -> None:
    """Start Kafka, and Airflow if asked.

    What runs already is left alone. The first time, the JVM jars are fetched: about 50 MB.

    \b
    Example:
      frazil dev up --kafka-port 19092 --airflow
    """
    kafka = _kafka(kafka_port).start()
    click.echo(f"Kafka    {kafka.bootstrap}   log {_short(kafka.log)}")
    if airflow:
        started = _airflow(airflow_port, kafka.bootstrap).start()
        click.echo(f"Airflow  {started.url}   sign in as admin with the password {started.password}")
    if kafka.port != DEFAULT_KAFKA_PORT and os.environ.get("FRAZIL_KAFKA") != kafka.bootstrap:
        click.echo(f"\nStreams look for Kafka on port {DEFAULT_KAFKA_PORT} unless told:\n")
        click.echo(f"  export FRAZIL_KAFKA={kafka.bootstrap}")


@dev.command()
def down() -> None:
    """End what `frazil dev up` started. Data stay; writers that run are left alone.

    \b
    Example:
      frazil dev down
    """
    airflow, kafka = _airflow(None, None), _kafka(None)
    running = [name for name, server in _servers(airflow, kafka).items() if server]
    airflow.stop()
    kafka.stop()
    click.echo(f"ended {', '.join(running)}" if running else "nothing was running")


@dev.command()
@json_option
def status(as_json: bool) -> None:
    """Show what runs, and where. Exits with 1 where nothing does.

    \b
    Example:
      frazil dev status --json
    """
    airflow, kafka = _airflow(None, None), _kafka(None)
    servers = _servers(airflow, kafka)
    if as_json:
        click.echo(json.dumps(_document(servers, airflow, kafka), indent=2))
    else:
        for name, server in servers.items():
            where = kafka.bootstrap if name == "kafka" else airflow.url if name == "api-server" else ""
            line = f"{name:<14}running   pid {server.pid:<8} {where}" if server else f"{name:<14}not running"
            click.echo(line.rstrip())
    if not any(servers.values()):
        raise SystemExit(1)


def _kafka(port: int | None) -> EmbeddedKafka:
    folder = home() / "dev" / "kafka"
    return EmbeddedKafka(folder, port=port or EmbeddedKafka.last_port(folder) or DEFAULT_KAFKA_PORT)


def _airflow(port: int | None, bootstrap: str | None) -> EmbeddedAirflow:
    folder = home() / "dev" / "airflow"
    extra = {"FRAZIL_KAFKA": bootstrap} if bootstrap else {}
    port = port or EmbeddedAirflow.last_port(folder) or DEFAULT_AIRFLOW_PORT
    return EmbeddedAirflow(folder, _checkout(), port=port, extra=extra)


def _checkout() -> Path:
    """The project of this folder; where it has no dags/, the one that frazil was installed from."""
    here = Path.cwd()
    return here if (here / "dags").is_dir() else Path(__file__).resolve().parents[3]


def _servers(airflow: EmbeddedAirflow, kafka: EmbeddedKafka) -> dict[str, process.Server | None]:
    return {"kafka": kafka.server(), **{component: airflow.server(component) for component in COMPONENTS}}


def _document(
    servers: dict[str, process.Server | None], airflow: EmbeddedAirflow, kafka: EmbeddedKafka
) -> dict[str, Any]:
    return {
        "servers": {
            name: {"running": server is not None, "pid": server.pid if server else None, "log": server and server.log}
            for name, server in servers.items()
        },
        "kafka": kafka.bootstrap if servers["kafka"] else None,
        "airflow": airflow.url if servers["api-server"] else None,
    }


def _short(path: Path) -> str:
    """Relative to this folder where it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
