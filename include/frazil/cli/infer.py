"""`frazil infer`: proposes a declaration from a topic's records."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from frazil.cli.options import json_option, streams_option
from frazil.cli.output import echo, echo_json
from frazil.errors import SpecError
from frazil.spec.addresses import find_servers_problem
from frazil.spec.formats import Registry
from frazil.spec.load import DEFAULTS_FILE, read_defaults
from frazil.spec.problems import describe_error
from frazil.spec.references import resolve_properties
from frazil.spec.source import find_topic_name_problem

NOTHING_INFERRED = "Nothing was inferred: fix this error, or give another registry with --registry"
SERVERS_VARIABLE = "FRAZIL_KAFKA"


def _check_topic(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if problem := find_topic_name_problem(value):
        raise click.BadParameter(problem, ctx, param)
    return value


@click.command()
@click.argument("topic", callback=_check_topic)
@streams_option
@click.option(
    "--bootstrap-servers", help="The brokers. Default: as in _defaults.yaml of the folder of streams, or FRAZIL_KAFKA."
)
@click.option("--registry", "registry_url", help="A schema registry. Default: the registry in _defaults.yaml, if any.")
@click.option("--name", help="The stream's name. Default: the topic's.")
@click.option("--table", help="namespace.table. Default: default.<name>.")
@click.option("--records", default=2_000, show_default=True, type=click.IntRange(1, 100_000), help="Records to read.")
@json_option
def infer(  # noqa: PLR0913 - one for each option
    topic: str,
    streams_folder: Path,
    *,
    bootstrap_servers: str | None,
    registry_url: str | None,
    name: str | None,
    table: str | None,
    records: int,
    as_json: bool,
) -> None:
    """Read a sample of TOPIC, and print a declaration to edit.

    The sample is from the beginning and the end of each partition. Columns get types; a column that every record has is
    required, if 100 records or more were read. With a schema registry, the columns come from TOPIC-value's
    newest version, and from Avro or JSON schemas with ids in the sample. Comments give the evidence: how many records
    do not fit, which other columns may be the event time, and how much data arrives per day. Security settings come
    from source.properties and source.format.registry of _defaults.yaml.

    \b
    Example:
      frazil infer orders --table shop.orders > include/streams/orders.yaml
    """
    from frazil.infer.proposal import StreamNames, propose_declaration  # as below
    from frazil.infer.registered_schemas import fetch_registered_schemas  # as below
    from frazil.infer.sample import read_sample  # loads Arrow and librdkafka
    from frazil.registry.client import SchemaRegistry

    stream, file = name or _to_stream_name(topic), streams_folder / DEFAULTS_FILE
    source = _get_mapping(read_defaults(streams_folder), "source", file, "source")
    if not source.get("bootstrap-servers") and os.environ.get(SERVERS_VARIABLE):
        bootstrap_servers = bootstrap_servers or f"${{env:{SERVERS_VARIABLE}}}"
    names = StreamNames(stream, table or f"default.{stream.replace('-', '_')}", bootstrap_servers)
    properties, where = _find_kafka_properties(source, file, bootstrap_servers)
    declared = _find_registry(source, file, registry_url)
    sample = read_sample(properties, topic, records=records, servers_setting=where)
    written = None
    if declared is not None:
        written = fetch_registered_schemas(
            sample, declared, SchemaRegistry(declared, os.environ, effect=NOTHING_INFERRED)
        )
    text = propose_declaration(sample, names, written)
    echo_json({"stream": stream, "declaration": text}) if as_json else echo(text, nl=False)


def _find_registry(source: Mapping[str, Any], file: Path, url: str | None) -> Registry | None:
    declared = source.get("format")
    registry = (
        _get_mapping(declared, "registry", file, "source.format.registry") if isinstance(declared, Mapping) else {}
    )
    if url is None and not registry:
        return None
    values = {**registry, **({"url": url} if url else {})}
    try:
        return Registry.model_validate(values, by_alias=True, by_name=False, context={"folder": file.parent})
    except ValidationError as error:
        lines = (
            f"{file}: {'.'.join(map(str, ('source', 'format', 'registry', *details['loc'])))}: "
            f"{describe_error(details)}"
            for details in error.errors()
        )
        raise SpecError("\n".join(lines)) from None


def _find_kafka_properties(source: Mapping[str, Any], file: Path, servers: str | None) -> tuple[dict[str, str], str]:
    """Return the properties of Kafka clients, and where the brokers are set."""
    properties = _get_mapping(source, "properties", file, "source.properties")
    declared = {str(key): str(value) for key, value in properties.items()}
    where = f"--bootstrap-servers or {SERVERS_VARIABLE}" if servers else f"{file}: source.bootstrap-servers"
    servers = servers or source.get("bootstrap-servers")
    if not servers:
        raise SpecError(
            f"no brokers: give them with --bootstrap-servers, in the variable {SERVERS_VARIABLE}, or in {file} as "
            "source.bootstrap-servers"
        )
    resolved = resolve_properties({**declared, "bootstrap.servers": str(servers)}, os.environ)
    if problem := find_servers_problem(resolved["bootstrap.servers"]):
        raise SpecError(f"{where}: {problem}")
    return resolved, where


def _get_mapping(above: Mapping[str, Any], key: str, file: Path, path: str) -> Mapping[str, Any]:
    value = above.get(key) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{file}: {path}: is not a mapping")
    return value


def _to_stream_name(topic: str) -> str:
    name = re.sub(r"[^a-z0-9_-]+", "_", topic.lower()).strip("_-")[:60]
    return name if name[:1].isalpha() else f"t_{name}"
