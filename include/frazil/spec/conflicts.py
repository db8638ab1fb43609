"""Finds conflicts between streams that are valid on their own, and describes each in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from frazil.spec.column import COORDINATES, LINE_COLUMN, REQUIRED_COORDINATES
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import view_from_table
from frazil.spec.types import Field, Primitive, Struct, Type, name_key, parse_type

MAX_SCHEMA_CONFLICTS = 10


def find_conflicts(streams: Mapping[Path, StreamSpec]) -> list[str]:
    by_table: dict[tuple[str | None, str], dict[Path, StreamSpec]] = {}
    for path, spec in streams.items():
        by_table.setdefault((spec.table.catalog, spec.table.identifier), {})[path] = spec
    return [
        *_name_conflicts(streams),
        *_catalog_conflicts(streams),
        *_dead_letter_conflicts(streams),
        *_route_conflicts(streams),
        *_routed_window_conflicts(streams),
        *_application_conflicts(streams),
        *chain.from_iterable(_table_conflicts(feeding) for feeding in by_table.values()),
    ]


NO_COLUMN = "no such column"


def find_harmful_writes(path: Path, streams: Mapping[Path, StreamSpec]) -> list[str]:
    """Return how the stream in `path` would harm other streams: write to their tables, or stop them.

    A column that one stream declares optional becomes optional in the table. Streams that declare the column `not null`
    then stop.
    """
    spec = streams[path]
    errors = (*_dead_letter_conflicts(streams), *_route_conflicts(streams))
    problems = [error for error in errors if error.startswith(f"{path}: ")]
    for other, its in streams.items():
        if other != path and (its.table.catalog, its.table.identifier) == (spec.table.catalog, spec.table.identifier):
            problems += (
                f"{path}: schema.{name}: {mine}, but the stream in {other}, which also writes to "
                f"{spec.table.identifier}, has: {theirs}; {_required_field_remedy(mine, theirs)}"
                for name, mine, theirs in _find_field_conflicts(_table_struct(spec), _table_struct(its), ())
                if theirs == NO_COLUMN or theirs.endswith(" not null")
            )
    return problems


def _required_field_remedy(mine: str, theirs: str) -> str:
    if NO_COLUMN in {mine, theirs}:
        return "declare the column in both streams, or without 'not null'"
    return "remove or add 'not null' in all streams of the table together"


def _name_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    first: dict[str, Path] = {}
    for path, spec in streams.items():
        if (other := first.setdefault(spec.name, path)) != path:
            yield f"{path}: name: {spec.name!r} is also the name of the stream in {other}; rename one"


def _catalog_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    first: dict[str, tuple[Path, str | None]] = {}
    for path, spec in streams.items():
        other, catalog = first.setdefault(spec.table.identifier, (path, spec.table.catalog))
        if catalog != spec.table.catalog:
            yield (
                f"{path}: table: {spec.table.identifier!r} is in a different catalog in {other}; signals, assets and "
                "aggregations identify tables by name only, so rename one"
            )


def _dead_letter_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    main_tables = {(spec.table.catalog, spec.table.identifier): path for path, spec in streams.items()}
    for path, spec in streams.items():
        owner = main_tables.get((spec.table.catalog, spec.dead_letter_table))
        if owner is not None and owner != path:
            yield (
                f"{path}: dead-letters.table: {spec.dead_letter_table!r} is the table of the stream in {owner}; name "
                "another one"
            )


def _route_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    """Find routed tables that another stream has as its own. The windows would wait for both streams."""
    table_names = {
        (spec.table.catalog, name): path
        for path, spec in streams.items()
        for name in (spec.table.identifier, spec.dead_letter_table)
    }
    for path, spec in streams.items():
        for value, identifier in spec.sinks.by_value.items():
            owner = table_names.get((spec.table.catalog, identifier))
            if owner is not None and owner != path:
                setting = f"{path}: route.tables.{value}"
                yield f"{setting}: {identifier!r} is a table of the stream in {owner}; name another one"


def _routed_window_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    """Find streams that route to one table, but differ in its windows. The windows would never be complete."""
    first: dict[tuple[str | None, str], tuple[Path, StreamSpec]] = {}
    templates: dict[str, Path] = {}
    for path, spec in streams.items():
        template = spec.sinks.template
        if spec.route and template in spec.route.complete and (other := templates.setdefault(template, path)) != path:
            yield f"{path}: route.complete: {template!r} is also the template of the stream in {other}; rename one"
        for table in spec.sinks.named_tables:
            other, its = first.setdefault((spec.table.catalog, table), (path, spec))
            mine, theirs = view_from_table(spec, table), view_from_table(its, table)
            if (spec.evolution.mode == "full") != (its.evolution.mode == "full"):
                declared = _evolution_conflict(its.evolution.mode, f"the stream in {other}", table)
                yield f"{path}: evolution: {spec.evolution.mode}, but {declared}"
            for key, value, other_value in _window_differences(mine, theirs) if mine and theirs else ():
                yield (
                    f"{path}: {key}: {value} for {table}, but the stream in {other}, which also routes to it, has: "
                    f"{other_value}; declare the same in both streams, and in route.complete"
                )


def _application_conflicts(streams: Mapping[Path, StreamSpec]) -> Iterator[str]:
    """Find applications with the name of a stream, because commands accept both names."""
    names = {spec.name: path for path, spec in streams.items()}
    first: dict[tuple[str, str], tuple[Path, object]] = {}
    for path, spec in streams.items():
        if spec.application is None:
            continue
        if spec.application in names:
            yield (
                f"{path}: application: {spec.application!r} is the name of the stream in {names[spec.application]}; "
                "commands would not know which is meant, so rename the application"
            )
        declared = spec.resources.model_dump(by_alias=True, exclude={"cores", "driver_memory", "spark"})
        declared |= {f"spark.{key}": value for key, value in spec.resources.spark.items()}
        for key, value in declared.items():
            other, its = first.setdefault((spec.application, key), (path, value))
            if its != value:
                yield (
                    f"{path}: resources.{key}: {value!r}, but the stream in {other}, which shares the application "
                    f"{spec.application!r}, has: {its!r}; declare the same"
                )


def _describe_mode(spec: StreamSpec) -> str:
    return f"upsert by {', '.join(spec.key)}" if spec.sinks.mode.replaces_rows else spec.mode


def _table_conflicts(feeding: Mapping[Path, StreamSpec]) -> Iterator[str]:
    """Compare a table's streams: their settings with the first stream's, their topics with all earlier streams'."""
    (first_path, first), *other_feeds = feeding.items()
    for index, (path, spec) in enumerate(other_feeds):
        earlier = f"the stream in {first_path}, which also writes to {spec.table.identifier},"
        for key, mine, its in _window_differences(spec, first):
            yield f"{path}: {key}: {mine}, but {earlier} has: {its}; declare the same"
        if (spec.mode, spec.key) != (first.mode, first.key):
            yield (
                f"{path}: mode: {_describe_mode(spec)}, but {earlier} has: {_describe_mode(first)}; all streams of a "
                "table need the same mode and key, so declare the same"
            )
        if first.maintenance != spec.maintenance:
            yield f"{path}: maintenance: differs from {earlier[:-1]}; declare the same in both, or in neither"
        if (spec.evolution.mode == "full") != (first.evolution.mode == "full"):
            of_table = _evolution_conflict(first.evolution.mode, f"the stream in {first_path}", spec.table.identifier)
            yield f"{path}: evolution: {spec.evolution.mode}, but {of_table}"
        clashes = _find_field_conflicts(_table_struct(spec), _table_struct(first), ())
        for column, mine, its in islice(clashes, MAX_SCHEMA_CONFLICTS):
            yield f"{path}: schema.{column}: {mine}, but {earlier} has: {its}; declare the same"
        for other_path, other in [(first_path, first), *other_feeds[:index]]:
            if not _split_servers(spec) & _split_servers(other):  # the same cluster if they share a server name
                continue
            listed, ours, theirs = {*spec.source.topics, *other.source.topics}, spec.source.reads, other.source.reads
            if shared := sorted(topic for topic in listed if topic in ours and topic in theirs):
                yield (
                    f"{path}: source.topics: {', '.join(shared)}: also read into {spec.table.identifier} by the stream "
                    f"in {other_path}, so every record would land twice; read it in only one of them"
                )
            if spec.source.topic_pattern is not None and other.source.topic_pattern is not None:
                yield (
                    f"{path}: source.topic-pattern: '{spec.source.topic_pattern}': the stream in {other_path}, which "
                    f"also writes to {spec.table.identifier}, has '{other.source.topic_pattern}'; the records of a "
                    "topic that matches both would land twice, so combine the patterns in one stream"
                )


def _evolution_conflict(mode: str, other: str, table: str) -> str:
    return (
        f"{other}, which also writes to {table}, has: {mode}; with full, records of one stream may make "
        "a column optional that the other stream declares not null, which stops the other stream. Declare full for "
        "both or neither"
    )


def _window_differences(spec: StreamSpec, first: StreamSpec) -> Iterator[tuple[str, str, str]]:
    for key, values, other_values in (
        ("complete", spec.window, first.window),
        ("complete-from", spec.complete_from, first.complete_from),
        ("event-time", spec.event_time.column, first.event_time.column),
    ):
        if values != other_values:
            yield key, str(values or "none"), str(other_values or "none")


def _split_servers(spec: StreamSpec) -> set[str]:
    return {server.strip() for server in spec.source.bootstrap_servers.split(",")}


def _table_struct(spec: StreamSpec) -> Struct:
    declared = [Field(column.name, parse_type(column.type), column.required) for column in spec.columns]
    if spec.coordinates:
        declared += [Field(name, kind, name in REQUIRED_COORDINATES) for name, kind in COORDINATES.items()]
        if spec.has_lines:
            declared.append(Field(LINE_COLUMN, Primitive("int"), False))
    return Struct(tuple(declared))


def _find_field_conflicts(first: Type, second: Type, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield the path and both declarations of each conflict. A field of only one struct must not be `not null`."""
    fields = {name_key(field.name): field for field in second.fields}
    for field in first.fields:
        other = fields.pop(name_key(field.name), None)
        column = (*path, field.name)
        if other is None:
            if field.required:
                yield ".".join(column), f"{field.type} not null", NO_COLUMN
        elif field.name != other.name:
            yield ".".join(column), f"written {field.name!r}", repr(other.name)
        elif field.required != other.required:
            ours, theirs = (f"{f.type}{' not null' if f.required else ''}" for f in (field, other))
            yield ".".join(column), ours, theirs
        elif field.type.fields and type(field.type) is type(other.type):
            yield from _find_field_conflicts(field.type, other.type, column)
        elif field.type != other.type:
            yield ".".join(column), str(field.type), str(other.type)
    for other in fields.values():
        if other.required:
            yield ".".join((*path, other.name)), NO_COLUMN, f"{other.type} not null"
