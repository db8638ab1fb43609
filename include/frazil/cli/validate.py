"""`frazil validate`: checks declared streams before anything is started."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frazil.cli.options import json_option, streams_option
from frazil.cli.output import echo
from frazil.errors import SpecError
from frazil.spec.conflicts import conflicts
from frazil.spec.json_schema import render
from frazil.spec.load import load_stream, stream_files
from frazil.spec.model import StreamSpec
from frazil.spec.rules import warnings

if TYPE_CHECKING:
    from frazil.doctor.connections import Connections

MAX_PROBLEMS = 200


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@streams_option
@json_option
@click.option(
    "--connect", is_flag=True, help="Also check Kafka, registry, catalog and storage, and what a writer needs there."
)
@click.option("--json-schema", is_flag=True, help="Print the JSON Schema of a stream's file, for editors, and exit.")
def validate(files: tuple[Path, ...], streams_folder: Path, *, as_json: bool, connect: bool, json_schema: bool) -> None:
    """Check declared streams: FILES, or all files of the folder.

    A file is also checked against the other streams of its folder. Prints a line for each valid stream, and every error
    with its file, key, value and the allowed values. A warning marks a setting that only an existing table may have.
    Reads files only: no broker, no catalog. Exits with 10 if there is an error.

    With --connect, the command also lists the topics, tries to read each topic, calls the schema registry, and opens
    the catalog. To check whether catalog and storage can hold the stream and allow a writer's operations, it creates a
    table and an object and removes them again.

    \b
    Example:
      frazil validate include/streams/flights.yaml
    """
    if json_schema:
        echo(render(), nl=False)
        return
    streams, errors = _load(files or _all_of(streams_folder))
    invalid = tuple(errors)
    connections = _connections(streams) if connect else None
    errors += [fault.problem for fault in connections.faults] if connections else []
    errors, more = errors[:MAX_PROBLEMS], len(errors) - MAX_PROBLEMS
    if more > 0:
        errors.append(f"and {more:,} more; fix these first")
    warned = [f"{path}: {w.key}: {w.value!r}: {w.message}" for path, spec in streams.items() for w in warnings(spec)]
    if as_json:
        result = {"streams": [_summary(spec) for spec in streams.values()], "errors": errors, "warnings": warned}
        result |= {"connections": connections.good} if connections else {}
        echo(json.dumps(result, indent=2))
    else:
        for path, spec in streams.items():
            if not any(error.startswith(f"{path}:") for error in invalid):
                echo(_line(spec))
        for good in connections.good if connections else ():
            echo(good)
        for warning in warned:
            echo(f"warning: {warning}", err=True)
        for error in errors:
            echo(error, err=True)
    if errors:
        raise SystemExit(SpecError.exit_code)


def _connections(streams: dict[Path, StreamSpec]) -> Connections:
    from frazil.doctor.connections import Connections  # noqa: PLC0415 - PyIceberg, only if needed

    return Connections.check(streams)


def _all_of(folder: Path) -> tuple[Path, ...]:
    files = tuple(stream_files(folder)) if folder.is_dir() else ()
    if not files:
        raise SpecError(f"{folder} declares no stream; give files, or the folder by --streams or FRAZIL_STREAMS")
    return files


def _load(files: tuple[Path, ...]) -> tuple[dict[Path, StreamSpec], list[str]]:
    """Return the valid streams by file, and all errors as one line each.

    Valid streams may have errors too, for example a conflict with another stream.
    """
    streams: dict[Path, StreamSpec] = {}
    errors: list[str] = []
    for path in files:
        try:
            streams[path] = load_stream(path)
        except SpecError as error:
            errors.extend(str(error).splitlines())
    for path, spec in streams.items():
        errors.extend(f"{path}: source.properties.{key}: {said}" for key, said in _kafka_problems(spec).items())
        errors.extend(f"{path}: {said}" for said in _format_problems(spec))
        errors.extend(f"{path}: {said}" for said in _transform_problems(spec))
        errors.extend(f"{path}: commit.atomic: {said}" for said in _atomic_problems(spec))
    clashes = conflicts({**_beside(files), **streams})
    return streams, errors + [said for said in clashes if any(said.startswith(f"{path}:") for path in streams)]


def _beside(files: tuple[Path, ...]) -> dict[Path, StreamSpec]:
    """Return the other valid streams in the folders of the given files, by file."""
    named = {path.resolve() for path in files}
    found = {}
    for path in {sibling for file in files for sibling in stream_files(file.parent)}:
        if path.resolve() not in named:
            with suppress(SpecError):
                found[path] = load_stream(path)
    return found


def _kafka_problems(spec: StreamSpec) -> dict[str, str]:
    if not spec.source.properties:
        return {}
    from frazil.kafka.properties import property_problems  # noqa: PLC0415 - librdkafka, only if needed

    return property_problems(spec.source.properties)


def _format_problems(spec: StreamSpec) -> list[str]:
    """Return errors for columns that no record of this format can fill.

    The writer's start would report the same errors.
    """
    if spec.source.format.type == "json" and not any("<" in column.type for column in spec.record_columns):
        return []  # every type without nested types can be filled
    from frazil.ingest.formats import check_supported  # noqa: PLC0415 - Arrow and PyIceberg, only if needed
    from frazil.spec.iceberg import records_schema  # noqa: PLC0415 - as above

    try:
        check_supported(records_schema(spec), spec.source.format)
    except SpecError as error:
        return [str(error)]
    return []


def _made_columns(spec: StreamSpec) -> dict[str, str]:
    """Map each column that the stream's transform makes to its type. Raises SpecError and MissingExtra."""
    if spec.transform is None:
        return {}
    from frazil.ingest.transform_sql import checked  # noqa: PLC0415 - DuckDB, only if needed

    return dict(checked(spec).types)


def _transform_problems(spec: StreamSpec) -> list[str]:
    try:
        _made_columns(spec)
    except SpecError as error:
        return str(error).splitlines()
    return []


def _atomic_problems(spec: StreamSpec) -> list[str]:
    """Return why the catalog cannot commit atomically.

    Returns no reason if it can, or if it is not configured on this machine.
    """
    if not spec.commit.atomic:
        return []
    from frazil.table.atomic_catalogs import why_not_atomic  # noqa: PLC0415 - PyIceberg, only if needed
    from frazil.table.catalogs import catalog_config  # noqa: PLC0415 - as above

    with suppress(SpecError):
        config = catalog_config(spec.table.catalog)
        reason = why_not_atomic(config.name, config.properties)
        return [reason] if reason else []
    return []


def _line(spec: StreamSpec) -> str:
    layout = f"partitioned by {', '.join(spec.partition_by)}" if spec.partition_by else "not partitioned"
    line = f"{spec.name}: {spec.source.topics_in_words} -> {spec.table.identifier}, {layout}"
    with suppress(SpecError):
        if made := _made_columns(spec):
            return f"{line}, transform makes {', '.join(f'{name}: {kind}' for name, kind in made.items())}"
    return line


def _summary(spec: StreamSpec) -> dict[str, Any]:
    made: dict[str, Any] = {}
    with suppress(SpecError):
        made = {"transform": _made_columns(spec)} if spec.transform else {}
    return {
        **made,
        "name": spec.name,
        "topics": list(spec.source.topics),
        "topic-pattern": spec.source.topic_pattern,
        "catalog": spec.table.catalog,
        "table": spec.table.identifier,
        "dead-letters": spec.dead_letter_table,
        "partition-by": list(spec.partition_by),
        "fingerprint": spec.fingerprint(),
    }
