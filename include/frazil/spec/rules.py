"""Checks that a declaration's parts fit each other and the schema. Reports every problem, not only the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from frazil.spec import incompatible_settings, layout, property_rules, reading_rules, route, sensitive, upsert
from frazil.spec.column import METADATA_COLUMN_PROBLEM, METADATA_COLUMNS, RESERVED_COLUMNS
from frazil.spec.formats import BytesFormat, CsvFormat, StringFormat, envelope_of
from frazil.spec.reading_rules import FORMATS_WITH_FIELD_NAMES
from frazil.spec.resources import IMAGE_PROPERTIES, ClusterManager, DeployMode
from frazil.spec.types import SAME_NAMES, UNREADABLE_TYPES, Map, find_type, find_type_paths, name_key, parse_type
from frazil.spec.units import format_duration
from frazil.spec.values import Problem, Rules, suggest_names

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


def find_problems(spec: StreamSpec, *, invalid: frozenset[str] = frozenset()) -> tuple[Problem, ...]:
    """Return a declaration's problems. `invalid` has the dotted keys of invalid parts, whose rules are skipped."""
    return tuple(
        problem
        for rule, needs in _RULES
        if not any(_is_affected(need, part) for need in needs for part in invalid)
        for problem in rule(spec)
    )


def _is_affected(need: str, invalid: str) -> bool:
    return invalid == need if need == "schema" else overlaps(need, invalid)  # single columns may be invalid


def overlaps(key: str, other: str) -> bool:
    """Return whether one of two dotted keys contains the other, or both are the same."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def find_warnings(spec: StreamSpec) -> tuple[Problem, ...]:
    """Return settings that are errors for a new table, or that some engines cannot read."""
    findings = []
    for column in spec.columns:
        setting = f"schema.{column.name}"
        for name, reason in UNREADABLE_TYPES.items():
            findings += [(path, name, reason) for path in find_type_paths(name, parse_type(column.type), setting)]
        if name_key(column.name) in METADATA_COLUMNS:
            findings.append((setting, column.type, METADATA_COLUMN_PROBLEM))
    consequence = "Existing tables with the column can still be written to, but no new table is created with it"
    warnings = [Problem(setting, value, f"{reason}. {consequence}") for setting, value, reason in findings]
    if (version := spec.table.properties.get("format-version")) == "3":
        warnings.append(Problem("table.properties.format-version", version, property_rules.FORMAT_3_READERS))
    return tuple(warnings)


def _check_columns(spec: StreamSpec) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for column in spec.columns:
        key = name_key(column.name)
        if key in names:
            yield Problem(f"schema.{column.name}", column.name, f"names the column {names[key]!r} again; {SAME_NAMES}")
        if spec.coordinates and key in RESERVED_COLUMNS:
            text = "has the name of a column that frazil adds; rename it, or set coordinates: false"
            yield Problem(f"schema.{column.name}", column.name, text)
        names.setdefault(key, column.name)


def _check_lines(spec: StreamSpec) -> Iterator[Problem]:
    if spec.has_lines and not spec.coordinates:
        yield Problem(
            *(("transform", "unnest") if spec.may_unnest else ("source.format.lines", "true")),
            "needs the column kafka_line, which distinguishes the rows of a record; leave out coordinates: false",
        )


def _check_event_time(spec: StreamSpec) -> Iterator[Problem]:
    name = spec.event_time.column
    declared = {column.name: column.type for column in spec.columns}
    if name == "kafka_timestamp" and spec.coordinates:
        if spec.event_time.unit != "iso":
            text = "cannot be set for kafka_timestamp, whose unit is fixed; leave it out"
            yield Problem("event-time.unit", spec.event_time.unit, text)
    elif name not in declared:
        yield Problem("event-time", name, f"is not a column of the schema{suggest_names(name, declared)}")
    elif declared[name] not in {"timestamptz", "timestamp", ""}:
        text = (
            f"is a column of type {declared[name]}; event time must be a timestamptz or timestamp (if records "
            "have a number, declare the column timestamptz, and event-time: {column: …, unit: ms})"
        )
        yield Problem("event-time", name, text)


def _check_units(spec: StreamSpec) -> Iterator[Problem]:
    for column in spec.record_columns:
        if column.unit is None:
            continue
        if column.type not in {"timestamptz", "timestamp", ""}:
            text = f"is the unit of a time, but the column is {column.type}; make it timestamptz, or leave the unit out"
            yield Problem(f"schema.{column.name}.unit", column.unit, text)
        if column.name == spec.event_time.column and spec.event_time.unit not in {"iso", column.unit}:
            text = f"differs from the column's own unit, {column.unit}; keep one"
            yield Problem("event-time.unit", spec.event_time.unit, text)


def _check_transform(spec: StreamSpec) -> Iterator[Problem]:
    """Yield the problems of a transform's declaration. DuckDB checks the transform's SQL."""
    if spec.transform is None:
        if spec.source.columns:
            yield Problem("source.schema", None, "is only used with a transform; declare one, or leave this out")
        return
    names: set[str] = set()
    for column in spec.record_columns:
        lower = column.name.lower()
        if lower in names or lower.startswith("_frazil"):
            text = "is declared twice; names are case-insensitive" if lower in names else "is a name that frazil uses"
            yield Problem(f"source.schema.{column.name}", column.name, f"{text}; rename it")
        names.add(lower)
    if spec.source.columns:
        for column in spec.columns:
            if column.unit is not None:
                text = "is the unit of a record's field, but a transform computes this column; move it to source.schema"
                yield Problem(f"schema.{column.name}.unit", column.unit, text)
        if spec.event_time.unit != "iso":
            text = "is the unit of a record's field, but a transform computes this column; move it to source.schema"
            yield Problem("event-time.unit", spec.event_time.unit, text)
    if envelope_of(spec.source.format):
        text = "is not possible with a transform yet, because deletes have only a key; leave one of them out"
        yield Problem("source.format.envelope", None, text)
    if spec.delete and spec.delete.tombstones:
        text = "cannot be used with a transform, which would need fields to compute the key; use delete.column"
        yield Problem("delete.tombstones", True, text)


def _check_json_columns(spec: StreamSpec) -> Iterator[Problem]:
    columns = {column.name: parse_type(column.type) for column in spec.record_columns if column.type}
    key_header_columns = spec.key_header_columns
    for column in spec.record_columns:
        for name in column.json_text_fields if column.name in columns else ():
            setting, value = (
                (f"schema.{column.name}.as", "json") if column.as_ else (f"schema.{column.name}", "variant")
            )
            path = name.split(".")
            column_type, outer = find_type(columns, path), find_type(columns, path[:-1] or path)
            if column_type is None:
                yield Problem(setting, name, f"does not exist in the column, which is {column.type}")
            elif column.as_ and column.type == "variant":
                yield Problem(setting, value, "is not needed for a variant, which is always any value; leave it out")
            elif str(column_type) not in {"string", "variant"}:
                yield Problem(setting, value, f"needs a string, but {name} is of type {column_type}; make it a string")
            elif isinstance(outer, Map) and path[-1] == "key":
                yield Problem(setting, value, f"cannot be used for {name}, which is the key of a map; leave it out")
            elif column.name in key_header_columns and not column.is_from_key:
                text = (
                    "cannot be used for a column that stores a key or header, whose text is not converted; leave it out"
                )
                yield Problem(setting, value, text)
            elif spec.source.format.type not in FORMATS_WITH_FIELD_NAMES:
                text = f"needs fields with types, but source.format is {spec.source.format.type}; leave it out"
                yield Problem(setting, value, text)


def _check_variants(spec: StreamSpec) -> Iterator[Problem]:
    for column in spec.source.columns:
        if column.type == "variant":
            text = "is a type of tables, not of records; write {type: string, as: json}"
            yield Problem(f"source.schema.{column.name}", "variant", text)
    for column in spec.columns:
        if column.type == "variant" and spec.table.properties.get("format-version") != "3":
            text = "needs format version 3; set table.properties.format-version: 3, or write {type: string, as: json}"
            yield Problem(f"schema.{column.name}", "variant", text)


def _check_rest(spec: StreamSpec) -> Iterator[Problem]:
    if (name := spec.rest) is None:
        return
    declared = {column.name: column for column in spec.record_columns}
    if (column := declared.get(name)) is None:
        yield Problem("rest", name, f"is not a column of the schema{suggest_names(name, declared)}")
        return
    if text := reading_rules.find_format_problem(spec.source.format):
        yield Problem("rest", name, text)
    if column.type not in {"string", "variant", ""}:
        yield Problem("rest", name, f"is a column of type {column.type}; make it string")
    if column.required:
        yield Problem("rest", name, "is declared not null, but a record may have no other fields; leave not null out")
    if column.as_ is not None:
        text = "cannot be used for the column of rest, which is always JSON; leave it out"
        yield Problem(f"schema.{name}.as", "json", text)
    if name in spec.key_header_columns:
        yield Problem("rest", name, "is already filled by a key or header; name another column")
    if name in spec.key:
        yield Problem("rest", name, "is a key column, which rest cannot fill; name another column")
    if spec.sensitive is not None and any(path.split(".")[0] == name for path in spec.sensitive.fields):
        text = "is listed in sensitive.fields, but rest never stores sensitive fields; remove it from sensitive.fields"
        yield Problem("rest", name, text)


def _check_topics(spec: StreamSpec) -> Iterator[Problem]:
    if not spec.source.topics and spec.source.topic_pattern is None:
        yield Problem("source.topics", None, "is missing; declare topics, or source.topic-pattern")
    if spec.source.topics and spec.source.topic_pattern is not None:
        text = "is declared together with source.topics; keep one of them"
        yield Problem("source.topic-pattern", spec.source.topic_pattern, text)


def _check_key_header_columns(spec: StreamSpec) -> Iterator[Problem]:
    declared = {column.name: column.type for column in spec.record_columns}
    candidates: list[tuple[str, str, set[str]]] = []
    if (key := spec.source.key) and key.column:
        allowed = {"string": {"string"}, "bytes": {"binary"}}.get(key.format) or {declared.get(key.column, "")}
        candidates.append(("source.key.column", key.column, allowed))
    for index, header in enumerate(spec.source.headers):
        candidates.append((f"source.headers.{index}.column", header.column, {"string", "binary"}))
    paths_by_name: dict[str, str] = {}
    for path, name, fitting in candidates:
        if name not in declared:
            yield Problem(path, name, f"is not a column of the schema{suggest_names(name, declared)}")
        elif declared[name] and declared[name] not in fitting:
            text = f"is a column of type {declared[name]}; make it {' or '.join(sorted(fitting, reverse=True))}"
            yield Problem(path, name, text)
        elif name in paths_by_name:
            yield Problem(path, name, f"is already filled by {paths_by_name[name]}; name another column")
        paths_by_name.setdefault(name, path)


def _check_whole_value(spec: StreamSpec) -> Iterator[Problem]:
    declared = spec.source.format
    if not isinstance(declared, StringFormat | BytesFormat):
        return
    kind, key_header_columns = "string" if isinstance(declared, StringFormat) else "binary", spec.key_header_columns
    filled = {column.name: column.type for column in spec.record_columns if column.name not in key_header_columns}
    if len(filled) != 1:
        text = (
            "fills exactly one column, but these columns have neither a key nor a header: "
            f"{', '.join(filled) or 'none'}"
        )
        yield Problem("source.format", declared.type, text)
        return
    ((name, of_type),) = filled.items()
    if declared.column not in {"", name}:
        text = f"is not {name}, the column that the value fills; leave it out"
        yield Problem("source.format.column", declared.column, text)
    if of_type not in {kind, ""}:
        text = f"is of type {of_type}, but source.format: {declared.type} needs a column of type {kind}"
        yield Problem(f"schema.{name}", None, text)


def _check_csv(spec: StreamSpec) -> Iterator[Problem]:
    if not isinstance(spec.source.format, CsvFormat):
        return
    fields, key_header_columns = spec.source.format.columns, spec.key_header_columns
    for column in spec.record_columns:
        if column.name in key_header_columns:
            if column.name in fields:
                text = "is filled by a key or header, not by a field of the line; rename the field"
                yield Problem("source.format.columns", column.name, text)
        elif "<" in column.type:
            text = "cannot be read from one field of a line; source.format: csv needs columns of primitive types"
            yield Problem(f"schema.{column.name}", column.type, text)
        elif fields and column.name not in fields:
            yield Problem("source.format.columns", None, f"does not name the column {column.name}")


def _check_evolution(spec: StreamSpec) -> Iterator[Problem]:
    if spec.evolution.mode != "off" and (text := reading_rules.find_format_problem(spec.source.format)):
        yield Problem("evolution", spec.evolution.mode, text)


def _check_alignment(spec: StreamSpec) -> Iterator[Problem]:
    if spec.commit.align == "none":
        return
    column, fine = spec.event_time.column, ("hour",) if spec.window == "hour" else ("hour", "day")
    terms = " or ".join(f"{transform}({column})" for transform in fine)
    if spec.window is None:
        text = f"waits for windows to complete, but the stream has none; partition by {terms}, or declare complete"
        yield Problem("commit.align", spec.commit.align, text)
    elif not set(fine) & set(spec.event_time_partitions):
        text = f"needs partition-by {terms}, so that each file belongs to one {spec.window}"
        yield Problem("commit.align", spec.commit.align, text)


def _check_throttle(spec: StreamSpec) -> Iterator[Problem]:
    if spec.commit.throttle == "stretch" and spec.commit.max_interval <= spec.commit.interval:
        text = (
            f"is not above commit.interval, {format_duration(spec.commit.interval)}; raise it, so that commits can "
            "be stretched"
        )
        yield Problem("commit.max-interval", format_duration(spec.commit.max_interval), text)


def _check_maintenance(spec: StreamSpec) -> Iterator[Problem]:
    expiry, fold_files = spec.maintenance.expiry, spec.maintenance.compaction.fold_files
    if expiry.at_least > expiry.at_most:
        text = f"is above maintenance.expiry.at-most, {expiry.at_most}; lower it"
        yield Problem("maintenance.expiry.at-least", expiry.at_least, text)
    merges = spec.mode == "upsert" or spec.dedupe is not None or spec.commit.align != "none"
    if fold_files and (merges or spec.table.properties.get("format-version") == "3"):
        text = "has no effect with mode: upsert, dedupe, commit.align or format-version 3; leave it out"
        yield Problem("maintenance.compaction.fold-files", fold_files, text)


def _check_resources(spec: StreamSpec) -> Iterator[Problem]:
    r = spec.resources
    if r.on_cluster:
        if r.cores % r.executor_cores:
            text = f"does not divide resources.cores, {r.cores}, the total of all executors; choose a divisor"
            yield Problem("resources.executor-cores", r.executor_cores, text)
        if "spark.master" in r.spark:
            text = "is set by resources.master; leave it out"
            yield Problem("resources.spark.spark.master", r.spark["spark.master"], text)
        deploy = r.spark.get("spark.submit.deployMode", "client")
        if deploy != "client" and not deploy.startswith("${"):
            text = "is set by resources.deploy-mode; leave it out"
            yield Problem("resources.spark.spark.submit.deployMode", deploy, text)
        if r.manager is ClusterManager.KUBERNETES and not IMAGE_PROPERTIES & set(r.spark):
            text = "needs an image for its executors; set resources.spark.spark.kubernetes.container.image"
            yield Problem("resources.master", r.master, text)
        if r.driver_in_cluster and r.manager is ClusterManager.KUBERNETES and r.package:
            text = "cannot be used for a driver in a pod; install frazil in its image"
            yield Problem("resources.package", r.package, text)
    elif r.deploy_mode is DeployMode.CLUSTER:
        text = "needs a cluster; set resources.master to one"
        yield Problem("resources.deploy-mode", r.deploy_mode.value, text)
    elif not r.spark.get("spark.master", "local").startswith(("local", "${")):
        text = "is a cluster; write it in resources.master instead"
        yield Problem("resources.spark.spark.master", r.spark["spark.master"], text)
    if "spark.archives" in r.spark and r.package:
        text = "is set by resources.package; leave it out"
        yield Problem("resources.spark.spark.archives", r.spark["spark.archives"], text)
    if not r.on_cluster and r.package:
        text = "is only used by executors of a cluster, but resources.master is local[*]; leave it out"
        yield Problem("resources.package", r.package, text)


def _check_dead_letters(spec: StreamSpec) -> Iterator[Problem]:
    if spec.dead_letter_table == spec.table.identifier:
        yield Problem("dead-letters.table", spec.dead_letter_table, "is the stream's own table; name another one")


_MODE, _TABLES = ("mode", "key", "dedupe", "route", "commit"), ("route", "table.identifier", "dead-letters", "commit")
_FILLED_COLUMNS = ("schema", "source.schema", "source.format", "source.key", "source.headers")
_RULES: Rules = (
    (_check_columns, ("schema", "coordinates")),
    (_check_lines, ("source.format", "coordinates")),
    (_check_event_time, ("schema", "event-time", "coordinates")),
    (_check_units, ("schema", "source.schema", "event-time")),
    (_check_transform, ("schema", "source.schema", "source.format", "event-time", "delete", "transform")),
    (_check_json_columns, _FILLED_COLUMNS),
    (_check_variants, ("schema", "source.schema", "table.properties", "mode")),
    (_check_rest, (*_FILLED_COLUMNS, "key", "sensitive", "rest")),
    (_check_topics, ("source.topics", "source.topic-pattern")),
    (_check_key_header_columns, ("schema", "source.schema", "source.key", "source.headers")),
    (_check_whole_value, _FILLED_COLUMNS),
    (_check_csv, _FILLED_COLUMNS),
    (
        reading_rules.find_problems,
        (*_FILLED_COLUMNS, "cast", "rest", "mode", "key", "delete", "sensitive", "transform"),
    ),
    (_check_evolution, ("evolution", "source.format")),
    (sensitive.problems, ("schema", "sensitive")),
    (
        incompatible_settings.find_problems,
        (*_MODE, "evolution", "distribution", "source.format", "coordinates", "transform"),
    ),
    *upsert.RULES,
    (route.find_problems, (*_TABLES, "schema", "sensitive", "complete", "source.topics", "source.topic-pattern")),
    (layout.find_partitioning_problems, ("schema", "coordinates", "partition-by")),
    (layout.find_sorting_problems, ("schema", "coordinates", "sort-by")),
    (_check_alignment, ("commit.align", "complete", "event-time", "partition-by")),
    (_check_throttle, ("commit.throttle", "commit.interval", "commit.max-interval")),
    (_check_maintenance, ("maintenance", "mode", "dedupe", "commit.align", "table.properties")),
    (property_rules.find_server_problems, ("source.bootstrap-servers",)),
    (property_rules.find_consumer_property_problems, ("source.properties",)),
    (property_rules.find_secret_problems, ()),
    (property_rules.find_reference_problems, ()),
    (_check_resources, ("resources",)),
    (_check_dead_letters, ("table.identifier", "dead-letters")),
    (property_rules.find_table_property_problems, ("table.properties",)),
    (property_rules.find_page_version_problems, ("table.properties", "schema", "evolution")),
)
