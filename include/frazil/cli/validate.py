"""`frazil validate`: checks declared streams before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import ModelSchema

from frazil.cli.options import json_option, streams_option
from frazil.cli.output import echo, echo_explanation
from frazil.errors import Explanation, SpecError
from frazil.spec.conflicts import find_conflicts
from frazil.spec.formats import FORMATS
from frazil.spec.load import describe_empty, list_stream_files, load_partially, load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.problems import PartialStream
from frazil.spec.rules import find_warnings
from frazil.spec.units import format_duration
from frazil.spec.values import field_descriptions

MAX_PROBLEMS = 200


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@streams_option
@json_option
@click.option(
    "--connect", is_flag=True, help="Also check Kafka, registry, catalog and storage, and a writer's permissions there."
)
@click.option("--json-schema", is_flag=True, help="Print the JSON Schema of a stream's file, for editors, and exit.")
def validate(files: tuple[Path, ...], streams_folder: Path, *, as_json: bool, connect: bool, json_schema: bool) -> None:
    """Check declared streams: FILES, or all files of the folder.

    A file is also checked against the other streams of its folder. Prints a line for each valid stream, and every error
    with its file, key, value and the allowed values. A warning marks a setting that would be an error for a new table.
    Reads files only: no broker, no catalog. Exits with 10 if there is an error.

    With --connect, the command also lists the topics, tries to read each topic, calls the schema registry, and opens
    the catalog. It creates a table and an object and removes them again, to check whether catalog and storage can hold
    the stream and allow a writer's operations. It compares tables that exist with the declarations.

    \b
    Example:
      frazil validate include/streams/flights.yaml
    """
    if json_schema:
        echo(render(), nl=False)
        return
    streams, errors = _load_streams(files or _find_stream_files(streams_folder))
    connections = None
    if connect:
        from frazil.doctor.connections import Connections  # PyIceberg, only if needed

        connections = Connections.check(streams.values())
    problems = [*map(Explanation, errors), *(fault.problem for fault in (connections.faults if connections else ()))]
    if (hidden := len(problems) - MAX_PROBLEMS) > 0:
        problems[MAX_PROBLEMS:] = [Explanation(f"and {hidden:,} more; fix these first")]
    warned = [
        f"{path}: {w.key}: {w.value!r}: {w.message}" for path, spec in streams.items() for w in find_warnings(spec)
    ]
    warned += connections.warnings if connections else []
    if as_json:
        result = {
            "streams": [_stream_document(spec) for spec in streams.values()],
            "errors": [*map(str, problems)],
            "warnings": warned,
        }
        result |= {"connections": connections.good} if connections else {}
        echo(json.dumps(result, indent=2))
    else:
        for path, spec in streams.items():
            if not any(error.startswith(f"{path}:") for error in errors):
                echo(_describe_stream(spec))
        for good in connections.good if connections else ():
            echo(good)
        for warning in warned:
            echo(f"warning: {warning}", err=True)
        for problem in problems:
            echo_explanation(problem)
    if problems:
        raise SystemExit(SpecError.exit_code)


def _find_stream_files(folder: Path) -> tuple[Path, ...]:
    files = tuple(list_stream_files(folder)) if folder.is_dir() else ()
    if not files:
        raise SpecError(f"{describe_empty(folder)}; give files, or the folder with --streams or FRAZIL_STREAMS")
    return files


def _load_streams(files: tuple[Path, ...]) -> tuple[dict[Path, StreamSpec], list[str]]:
    streams: dict[Path, StreamSpec] = {}
    errors: list[str] = []
    for path in files:
        try:
            streams[path] = load_stream(path)
        except SpecError as error:
            errors.extend(str(error).splitlines())
            if partial := load_partially(path):
                # The columns of a key may not suit Iceberg's identifier fields.
                without = {"key": ()} | ({"transform": None} if "schema" in partial.invalid else {})
                spec = partial.spec.model_copy(update=without)
                errors.extend(f"{path}: {problem}" for problem in _find_problems(spec, partial))
    for path, spec in streams.items():
        errors.extend(f"{path}: {problem}" for problem in _find_problems(spec))
    clashes = find_conflicts({**_sibling_streams(files), **streams})
    return streams, errors + [each for each in clashes if any(each.startswith(f"{path}:") for path in streams)]


def _sibling_streams(files: tuple[Path, ...]) -> dict[Path, StreamSpec]:
    chosen = {path.resolve() for path in files}
    siblings = {}
    for path in {sibling for file in files for sibling in list_stream_files(file.parent)}:
        if path.resolve() not in chosen:
            with suppress(SpecError):
                siblings[path] = load_stream(path)
    return siblings


def _find_problems(spec: StreamSpec, partial: PartialStream | None = None) -> Iterator[str]:
    """Yield errors that would also stop the writer's start. Checks only the valid parts of an invalid declaration.
    Imports librdkafka, Arrow and DuckDB only if needed.
    """
    for check, needs in _CHECKS:
        if partial is None or partial.is_valid(*needs):
            yield from check(spec)


def _check_transform(spec: StreamSpec) -> Iterator[str]:
    try:
        _transform_columns(spec)
    except SpecError as error:
        yield from str(error).splitlines()


def _check_properties(spec: StreamSpec) -> Iterator[str]:
    if spec.source.properties:
        from frazil.kafka.client import property_problems

        for key, problem in property_problems(spec.source.properties).items():
            yield f"source.properties.{key}: {problem}"


def _check_format(spec: StreamSpec) -> Iterator[str]:
    # JSON fills columns of every type without nested types.
    if {spec.source.format.type, spec.key_format.type} != {"json"} or any("<" in c.type for c in spec.record_columns):
        from frazil.ingest.formats import check_stream_supported
        from frazil.spec.iceberg import records_schema

        try:
            check_stream_supported(spec, records_schema(spec))
        except SpecError as error:
            yield str(error)


def _check_defaults(spec: StreamSpec) -> Iterator[str]:
    if any(column.default is not None for column in spec.record_columns):
        from frazil.ingest.formats.fields import default_of
        from frazil.spec.iceberg import records_schema

        for field in records_schema(spec).fields:
            try:
                default_of(field, spec.units.get(field.name))
            except SpecError as error:
                yield str(error)


def _check_atomic(spec: StreamSpec) -> Iterator[str]:
    if spec.commit.atomic:
        from frazil.table.atomic_catalogs import atomic_commit_problem
        from frazil.table.catalogs import catalog_config

        with suppress(SpecError):  # the catalog is not configured on this machine
            config = catalog_config(spec.table.catalog)
            if reason := atomic_commit_problem(config.name, config.properties):
                yield f"commit.atomic: {reason}"


_RECORDS = ("schema", "source.schema")
_CHECKS: tuple[tuple[Callable[[StreamSpec], Iterator[str]], tuple[str, ...]], ...] = (
    (_check_transform, ("source.schema", "transform")),  # single columns of `schema` may be invalid
    (_check_properties, ("source.properties",)),
    (_check_format, (*_RECORDS, "source.format", "source.key", "source.headers")),
    (_check_defaults, (*_RECORDS, "source.key", "source.headers", "event-time", "cast", "rest")),
    (_check_atomic, ("commit.atomic", "table.catalog")),
)


def _transform_columns(spec: StreamSpec) -> dict[str, str]:
    if spec.transform is None:
        return {}
    from frazil.ingest.transform_check import check_transform  # DuckDB, only if needed

    return dict(check_transform(spec).types)


def _describe_stream(spec: StreamSpec) -> str:
    layout = f"partitioned by {', '.join(spec.partition_by)}" if spec.partition_by else "not partitioned"
    line = f"{spec.name}: {spec.source.topics_text} -> {spec.table.identifier}, {layout}"
    with suppress(SpecError):
        if columns := _transform_columns(spec):
            return f"{line}, transform produces {', '.join(f'{name}: {kind}' for name, kind in columns.items())}"
    return line


def _stream_document(spec: StreamSpec) -> dict[str, Any]:
    transform: dict[str, Any] = {}
    with suppress(SpecError):
        transform = {"transform": _transform_columns(spec)} if spec.transform else {}
    return {
        **transform,
        "name": spec.name,
        "topics": list(spec.source.topics),
        "topic-pattern": spec.source.topic_pattern,
        "catalog": spec.table.catalog,
        "table": spec.table.identifier,
        "dead-letters": spec.dead_letter_table,
        "partition-by": list(spec.partition_by),
        "fingerprint": spec.fingerprint(),
    }


_Schema = dict[str, Any]


def stream_schema() -> _Schema:
    schema = StreamSpec.model_json_schema(by_alias=True, schema_generator=_SchemaGenerator)
    definitions = schema["$defs"]
    _allow_string(definitions, "Table", "`namespace.table`, such as demo.flights")
    _allow_string(definitions, "EventTime", "the event time's column")
    for name in ("Maintenance", "Compaction", "Manifests", "Expiry", "Orphans", "Alerts"):
        definitions[name] = {"anyOf": [{"enum": ["on", "off", True, False]}, definitions[name]]}
    source = definitions["Source"]
    source["required"].remove("bootstrap-servers")  # it may be in _defaults.yaml
    source["oneOf"] = [{"required": ["topics"]}, {"required": ["topic-pattern"]}]
    source["properties"]["topics"].pop("default")
    source["properties"]["topics"] = _string_or_list_schema(source["properties"]["topics"])
    declared = source["properties"]["format"]
    for each in FORMATS:
        of_type = definitions[FORMATS[each].__name__]
        of_type["required"] = ["type"]
        of_type["properties"]["type"] = {"const": each}
    source["properties"]["format"] = {
        "anyOf": [{"enum": list(FORMATS)}, {"oneOf": declared["oneOf"]}],
        "default": "json",
        "description": declared["description"],
    }
    for key in ("partition-by", "sort-by"):
        schema["properties"][key] = _string_or_list_schema(schema["properties"][key])
    schema["properties"]["schema"] = _columns_schema(schema["properties"]["schema"], definitions["Column"])
    source["properties"]["schema"] = _columns_schema(source["properties"]["schema"], definitions["Column"])
    definitions.pop("Column")
    _drop_titles(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A frazil stream", **schema}


class _SchemaGenerator(GenerateJsonSchema):
    def model_schema(self, schema: ModelSchema) -> _Schema:
        json_schema, model = super().model_schema(schema), schema["cls"]
        for name, text in field_descriptions(model).items():
            if name in model.model_fields:
                json_schema["properties"][model.model_fields[name].alias]["description"] = text
        return json_schema

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def render() -> str:
    return json.dumps(stream_schema(), indent=2, ensure_ascii=False) + "\n"


def _allow_string(definitions: dict[str, _Schema], name: str, meaning: str) -> None:
    definitions[name] = {"anyOf": [{"type": "string", "description": meaning}, definitions[name]]}


def _string_or_list_schema(listed: _Schema) -> _Schema:
    outer: _Schema = {key: value for key, value in listed.items() if key in {"description", "default"}}
    inner = {key: value for key, value in listed.items() if key not in outer}
    return {"anyOf": [{"type": "string"}, inner], **outer}


def _columns_schema(declared: _Schema, column: _Schema) -> _Schema:
    fields = {key: value for key, value in column["properties"].items() if key != "name"}
    long_form = {"type": "object", "properties": fields, "required": ["type"], "additionalProperties": False}
    short_form = {"type": "string", "description": "type, or: type not null", "examples": ["string", "long not null"]}
    return {
        "type": "object",
        "description": declared["description"],
        "minProperties": 1,
        "additionalProperties": {"anyOf": [short_form, long_form]},
    }


def _drop_titles(node: object) -> None:
    """Remove pydantic's titles, which only repeat each field's name."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _drop_titles(value)
    elif isinstance(node, list):
        for value in node:
            _drop_titles(value)


if __name__ == "__main__":
    print(render(), end="")
