"""`frazil dev`: starts, shows and stops embedded servers for development."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from frazil.cli.options import json_option
from frazil.cli.output import CommandOutput, echo, echo_json
from frazil.dev import process
from frazil.dev.airflow import COMPONENTS, EmbeddedAirflow
from frazil.dev.kafka import EmbeddedKafka, EmbeddedRegistry
from frazil.dev.object_store import LAKE, EmbeddedObjectStore
from frazil.dev.postgres import CATALOGS_FILE, EmbeddedPostgres, write_catalogs
from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.home import dev_airflow_home, home

DEFAULT_KAFKA_PORT = 9092
DEFAULT_AIRFLOW_PORT = 8080

Port = click.IntRange(1, 65535)
S = TypeVar("S")


@click.group()
def dev() -> None:
    """Embedded Kafka, registry, object store, PostgreSQL, Spark cluster and Airflow for development, on localhost.

    Data, logs and state of these servers are in $FRAZIL_HOME/dev (by default, FRAZIL_HOME is .frazil in this folder).

    \b
    Example:
      frazil dev up --airflow
      frazil dev status
      frazil dev down
    """


@dev.command()
@click.option("--kafka-port", type=Port, help="Kafka's port. Default: the one last used, initially 9092.")
@click.option("--registry", is_flag=True, help="Also start Apicurio, a schema registry with Confluent's API.")
@click.option("--registry-port", type=Port, help="The registry's port. Default: the one last used, initially 8081.")
@click.option("--object-store", is_flag=True, help="Also start SeaweedFS: S3, and an Iceberg REST catalog.")
@click.option("--object-store-port", type=Port, help="The port of S3. Default: the one last used, initially 8333.")
@click.option("--catalog-port", type=Port, help="The REST catalog's port. Default: the one last used, initially 8181.")
@click.option("--postgres", is_flag=True, help="Also start PostgreSQL, for a catalog.")
@click.option("--postgres-port", type=Port, help="PostgreSQL's port. Default: the one last used, initially 5432.")
@click.option("--spark-cluster", is_flag=True, help="Also start a standalone Spark cluster: a master and two workers.")
@click.option("--spark-port", type=Port, help="The Spark master's port. Default: the one last used, initially 7077.")
@click.option("--airflow", is_flag=True, help="Also start Airflow, with the dags/ and plugins/ of this folder.")
@click.option("--airflow-port", type=Port, help="Airflow's port. Default: the one last used, initially 8080.")
@json_option
def up(  # noqa: PLR0913 - a command's options
    *,
    registry: bool,
    object_store: bool,
    postgres: bool,
    spark_cluster: bool,
    airflow: bool,
    as_json: bool,
    **ports: Any,
) -> None:
    """Start Kafka, and the servers that the options select.

    Running servers stay as they are. The first start fetches JVM jars: about 50 MB, and 160 MB more for the registry.
    With an object store or PostgreSQL, the command writes the .pyiceberg.yaml of their catalogs, with the passwords,
    readable only by you.

    \b
    Example:
      frazil dev up --kafka-port 19092 --object-store --airflow
    """
    output = CommandOutput(as_json)
    schemas = store = database = None
    kafka = _create(EmbeddedKafka, "kafka", DEFAULT_KAFKA_PORT, ports["kafka_port"]).start()
    output.say(f"Kafka    {kafka.bootstrap}   log {_shorten_path(kafka.log)}")
    if registry:
        schemas = _create(EmbeddedRegistry, "registry", 8081, ports["registry_port"]).start()
        output.say(f"Registry {schemas.url}   log {_shorten_path(schemas.log)}")
    if object_store:
        store = _create_object_store(ports["object_store_port"], ports["catalog_port"]).start()
        output.say(f"S3       {store.endpoint}   log {_shorten_path(store.log)}")
        output.say(f"REST     {store.catalog_uri}   the catalog of the bucket {LAKE}")
    if postgres:
        database = _create(EmbeddedPostgres, "postgres", 5432, ports["postgres_port"]).start()
        output.say(f"Postgres {database.address}   log {_shorten_path(database.log)}")
    if spark_cluster:
        master = _create_spark_cluster(ports["spark_port"]).start().master
        log = _shorten_path(master.log)
        output.say(f"Spark    {master.address}   for resources.master; rest-port {master.rest_port}; log {log}")
    if airflow:
        started = _create_airflow(ports["airflow_port"], kafka.bootstrap).start()
        output.say(f"Airflow  {started.url}   sign in as admin with the password {started.password}")
    _print_settings(kafka, schemas, output)
    if store or database:
        folder = home() / "dev"
        names = write_catalogs(folder, store=store, database=database, local_warehouse=home() / "warehouse")
        file = _shorten_path(folder / CATALOGS_FILE)
        output.say(f"\nThe catalogs {' and '.join(names)} are in {file}, with their passwords.")
        if os.environ.get("PYICEBERG_HOME") != str(folder):
            output.say(f"PyIceberg and frazil use them after:\n\n  export PYICEBERG_HOME={folder}")
    output.end(**_status_document(find_dev_servers()))


def _print_settings(kafka: EmbeddedKafka, schemas: EmbeddedRegistry | None, output: CommandOutput) -> None:
    if kafka.port != DEFAULT_KAFKA_PORT and os.environ.get("FRAZIL_KAFKA") != kafka.bootstrap:
        output.say(f"\nBy default, streams connect to Kafka on port {DEFAULT_KAFKA_PORT}. To change this:\n")
        output.say(f"  export FRAZIL_KAFKA={kafka.bootstrap}")
    if schemas:
        output.say("\nA stream of Avro records uses this registry with:\n\n  source:")
        output.say(f"    format: {{type: avro, registry: {{url: '{schemas.url}'}}}}")


@dev.command()
@json_option
def down(*, as_json: bool) -> None:
    """Stop all servers that `frazil dev up` started. Their data is kept. Running writers are not stopped.

    \b
    Example:
      frazil dev down
    """
    embedded = find_dev_servers()
    running = [name for name, server in embedded.servers().items() if server]
    for field in reversed(fields(embedded)):
        getattr(embedded, field.name).stop()
    output = CommandOutput(as_json)
    output.say(f"ended {', '.join(running)}" if running else "nothing was running")
    output.end(ended=running)


@dev.command()
@json_option
def status(as_json: bool) -> None:
    """Show which servers run, and their addresses. Exits with 1 if none runs.

    \b
    Example:
      frazil dev status --json
    """
    embedded = find_dev_servers()
    servers, addresses = embedded.servers(), embedded.addresses()
    if as_json:
        echo_json(_status_document(embedded))
    else:
        for name, server in servers.items():
            where = addresses.get(name, "")
            line = f"{name:<15}running   pid {server.pid:<8} {where}" if server else f"{name:<15}not running"
            echo(line.rstrip())
    if not any(servers.values()):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class DevServers:
    kafka: EmbeddedKafka
    registry: EmbeddedRegistry
    store: EmbeddedObjectStore
    database: EmbeddedPostgres
    spark: EmbeddedSparkCluster
    airflow: EmbeddedAirflow

    def servers(self) -> dict[str, process.Server | None]:
        return {
            "kafka": self.kafka.server(),
            "registry": self.registry.server(),
            "object-store": self.store.server(),
            "postgres": self.database.server(),
            **{name: server.server() for name, server in self.spark.servers.items()},
            **{component: self.airflow.server(component) for component in COMPONENTS},
        }

    def addresses(self) -> dict[str, str]:
        return {
            "kafka": self.kafka.bootstrap,
            "registry": self.registry.url,
            "object-store": self.store.endpoint,
            "postgres": self.database.address,
            "spark-master": self.spark.master.address,
            "api-server": self.airflow.url,
        }


def find_dev_servers() -> DevServers:
    return DevServers(
        _create(EmbeddedKafka, "kafka", DEFAULT_KAFKA_PORT),
        _create(EmbeddedRegistry, "registry", 8081),
        _create_object_store(),
        _create(EmbeddedPostgres, "postgres", 5432),
        _create_spark_cluster(),
        _create_airflow(),
    )


def _create(kind: Callable[..., S], name: str, default: int, port: int | None = None) -> S:
    folder = home() / "dev" / name
    return kind(folder, port=port or process.last_port(folder) or default)


def _create_airflow(port: int | None = None, bootstrap: str | None = None) -> EmbeddedAirflow:
    folder = dev_airflow_home()
    extra = {"FRAZIL_KAFKA": bootstrap} if bootstrap else {}
    port = port or process.last_port(folder) or DEFAULT_AIRFLOW_PORT
    here, installed_from = Path.cwd(), Path(__file__).resolve().parents[3]
    project = here if (here / "dags").is_dir() else installed_from
    return EmbeddedAirflow(folder, project, port=port, extra=extra)


def _create_object_store(port: int | None = None, catalog_port: int | None = None) -> EmbeddedObjectStore:
    folder = home() / "dev" / "object-store"
    last = EmbeddedObjectStore.last_ports(folder) or (8333, 8181)
    return EmbeddedObjectStore(folder, port=port or last[0], catalog_port=catalog_port or last[1])


def _create_spark_cluster(port: int | None = None) -> EmbeddedSparkCluster:
    folder = home() / "dev" / "spark"
    return EmbeddedSparkCluster(folder, port=port or process.last_port(folder / "master") or 7077)


def _status_document(embedded: DevServers) -> dict[str, Any]:
    servers, addresses = embedded.servers(), embedded.addresses()
    names = {name: name for name in ("kafka", "registry", "object-store", "postgres")}
    names |= {"spark": "spark-master", "airflow": "api-server"}
    return {
        "servers": {
            name: {"running": server is not None, "pid": server.pid if server else None, "log": server and server.log}
            for name, server in servers.items()
        },
        **{name: addresses[server] if servers[server] else None for name, server in names.items()},
    }


def _shorten_path(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
