"""Rules between the parts of a declared stream. Pure; all problems are reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from frazil.spec.addresses import location_problem, servers_problem
from frazil.spec.formats import BytesFormat, CsvFormat, Registry, StringFormat
from frazil.spec.layout import TIME_TRANSFORMS, Term, fits, fitting_types, parse_sort_term, parse_term
from frazil.spec.references import problem_in
from frazil.spec.resources import IMAGES, ClusterManager
from frazil.spec.types import UNREADABLE, Primitive, Struct, Type, parse_type, places_of
from frazil.spec.units import format_duration

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

COORDINATES = {
    "kafka_topic": Primitive("string"),
    "kafka_partition": Primitive("int"),
    "kafka_offset": Primitive("long"),
    "kafka_timestamp": Primitive("timestamptz"),
}
"""The columns that frazil adds, unless `coordinates: false`, with their types."""

REQUIRED_COORDINATES = frozenset({"kafka_topic", "kafka_partition", "kafka_offset"})

SET_BY_FRAZIL = {
    "bootstrap.servers": "write source.bootstrap-servers",
    "isolation.level": "frazil reads committed records only",
    "auto.offset.reset": "frazil never jumps over records; a new stream's start is source.start",
    "enable.partition.eof": "frazil needs it to find the end of a range",
    "group.id": "offsets live in the table, and there is no consumer group to join",
    "enable.auto.commit": "offsets live in the table",
    "enable.auto.offset.store": "offsets live in the table",
}
"""librdkafka properties that users must not set, and why."""

JAVA_ONLY = {
    "sasl.jaas.config": "write sasl.username and sasl.password",
    "sasl.login.callback.handler.class": "write sasl.oauthbearer.method and its properties",
    "security.providers": "leave it out",
    "key.deserializer": "leave it out: source.format says how a record is read",
    "value.deserializer": "leave it out: source.format says how a record is read",
    "ssl.truststore.location": "write ssl.ca.location, the path of a PEM file",
    "ssl.truststore.password": "leave it out: a PEM file of ssl.ca.location has none",
    "ssl.truststore.type": "leave it out: ssl.ca.location is a PEM file",
    "ssl.keystore.type": "leave it out: ssl.keystore.location is a PKCS#12 file",
    "ssl.protocol": "leave it out",
    "fetch.max.wait.ms": "write fetch.wait.max.ms",
    "default.api.timeout.ms": "leave it out",
}
"""Properties of Kafka's Java client that librdkafka lacks, and what to write instead."""

_WHOLE_NUMBERS = re.compile(r"write\..*-(bytes|limit)|.*-(ms|versions-max|num-retries)|commit\..*-count-to-merge")
"""Table properties whose value is a whole number (Iceberg's configuration page)."""

NAMED_FIELDS = frozenset({"json", "avro"})
"""Formats that can say which fields a record has beyond the schema."""

_SECRET = re.compile(r"password|secret|passphrase|private[._-]key|key\.pem$|jaas|token$|access-key-id$", re.IGNORECASE)
Columns = Mapping[str, Type | None]
"""Types by column; None for a type that cannot be read."""

_REFERENCES = re.compile(r"(\$\{(env:[A-Za-z_]\w*|airflow:[\w.-]+\.[\w-]+)\})+")


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is the dotted path in the YAML; `value` is what was written there, None if it must not be shown."""

    key: str
    value: object
    message: str


class InconsistentError(ValueError):
    """Raised by the model's validation; `frazil.spec.load` turns it into a SpecError."""

    def __init__(self, found: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(f"{p.key} {p.message}" for p in found))
        self.problems = found


def is_secret(key: str) -> bool:
    """Whether a property's value must not be in a file."""
    return _SECRET.search(key) is not None


def problems(spec: StreamSpec, *, wrong: frozenset[str] = frozenset()) -> tuple[Problem, ...]:
    """All problems between the parts; empty if the stream is sound.

    `wrong` has the dotted keys of parts that are stand-ins for unusable values: rules that need one of them are
    skipped. A column whose type is wrong has an empty type.
    """
    return tuple(
        problem
        for rule, needs in _RULES
        if not any(_overlaps(need, part) for need in needs for part in wrong)
        for problem in rule(spec)
    )


def _overlaps(need: str, wrong: str) -> bool:
    if need == "schema":  # single columns of it may be wrong
        return wrong == need
    return f"{need}.".startswith(f"{wrong}.") or wrong.startswith(f"{need}.")


def warnings(spec: StreamSpec) -> tuple[Problem, ...]:
    """Problems that are errors only for a stream whose table is new."""
    return tuple(
        Problem(place, name, f"{reason}. A table that has the column can still be written; a new one is refused")
        for column in spec.columns
        for name, reason in UNREADABLE.items()
        for place in places_of(name, parse_type(column.type), f"schema.{column.name}")
    )


def _columns(spec: StreamSpec) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for column in spec.columns:
        lower = column.name.lower()
        if lower in seen:
            yield Problem(
                f"schema.{column.name}",
                column.type or None,
                f"names the column {seen[lower]!r} again; names are case-insensitive",
            )
        if spec.coordinates and lower in COORDINATES:
            yield Problem(
                f"schema.{column.name}",
                column.type or None,
                "has the name of a column that frazil adds; rename it, or set coordinates: false",
            )
        seen.setdefault(lower, column.name)


def _event_time(spec: StreamSpec) -> Iterator[Problem]:
    name = spec.event_time.column
    declared = {column.name: column.type for column in spec.columns}
    if name == "kafka_timestamp" and spec.coordinates:
        if spec.event_time.unit != "iso":
            yield Problem("event-time.unit", spec.event_time.unit, "has no meaning: Kafka keeps this time by itself")
    elif name not in declared:
        yield Problem("event-time", name, f"is not a column of the schema{_did_you_mean(name, declared)}")
    elif declared[name] not in {"timestamptz", "timestamp", ""}:
        yield Problem(
            "event-time",
            name,
            f"is a column of type {declared[name]}; event time is a timestamptz or timestamp (if the record "
            "holds a number, declare the column timestamptz, and event-time: {column: …, unit: ms})",
        )


def _units(spec: StreamSpec) -> Iterator[Problem]:
    for column in spec.columns:
        if column.unit is None:
            continue
        if column.type not in {"timestamptz", "timestamp", ""}:
            what = f"is the unit of a time, and the column is {column.type}; make it timestamptz, or leave the unit out"
            yield Problem(f"schema.{column.name}.unit", column.unit, what)
        if column.name == spec.event_time.column and spec.event_time.unit not in {"iso", column.unit}:
            what = f"differs from the column's own unit, {column.unit}; keep one"
            yield Problem("event-time.unit", spec.event_time.unit, what)


def _beside_value(spec: StreamSpec) -> Iterator[Problem]:
    """The key and headers each fill a column of their own."""
    declared = {column.name: column.type for column in spec.columns}
    wanted: list[tuple[str, str, set[str]]] = []
    if key := spec.source.key:
        wanted.append(("source.key.column", key.column, {"string" if key.format == "string" else "binary"}))
    for index, header in enumerate(spec.source.headers):
        wanted.append((f"source.headers.{index}.column", header.column, {"string", "binary"}))
    seen: dict[str, str] = {}
    for path, name, fitting in wanted:
        if name not in declared:
            yield Problem(path, name, f"is not a column of the schema{_did_you_mean(name, declared)}")
        elif declared[name] and declared[name] not in fitting:
            what = f"is a column of type {declared[name]}; make it {' or '.join(sorted(fitting, reverse=True))}"
            yield Problem(path, name, what)
        elif name in seen:
            yield Problem(path, name, f"is filled by {seen[name]} already")
        seen.setdefault(name, path)


def _whole_value(spec: StreamSpec) -> Iterator[Problem]:
    """A value that is one text, or one string of bytes, fills one column."""
    declared = spec.source.format
    if not isinstance(declared, StringFormat | BytesFormat):
        return
    kind = "string" if isinstance(declared, StringFormat) else "binary"
    filled = {column.name: column.type for column in spec.columns if column.name not in spec.beside_value}
    if len(filled) != 1:
        what = f"fills one column, but those that neither key nor header fills are: {', '.join(filled) or 'none'}"
        yield Problem("source.format", declared.type, what)
        return
    ((name, of_type),) = filled.items()
    if declared.column not in {"", name}:
        yield Problem("source.format.column", declared.column, f"is not the column that the value fills, {name}")
    if of_type not in {kind, ""}:
        what = f"is of type {of_type}, and source.format: {declared.type} fills a column of type {kind}"
        yield Problem(f"schema.{name}", None, what)


def _csv(spec: StreamSpec) -> Iterator[Problem]:
    """Each column has one field, and each field is of a type without types inside."""
    if not isinstance(spec.source.format, CsvFormat):
        return
    fields = spec.source.format.columns
    for column in spec.columns:
        if column.name in spec.beside_value:
            if column.name in fields:
                what = "is filled by a key or a header, and not by a field; rename the field"
                yield Problem("source.format.columns", column.name, what)
        elif "<" in column.type:
            what = "cannot be one field of a line; source.format: csv fills columns without types inside"
            yield Problem(f"schema.{column.name}", column.type, what)
        elif fields and column.name not in fields:
            yield Problem("source.format.columns", None, f"does not name the column {column.name}")


def _evolution(spec: StreamSpec) -> Iterator[Problem]:
    if spec.evolution.mode != "off" and spec.source.format.type not in NAMED_FIELDS:
        what = f"needs records whose fields have names, and source.format is {spec.source.format.type}; leave it out"
        yield Problem("evolution", spec.evolution.mode, what)


def _types(spec: StreamSpec) -> Columns:
    declared: dict[str, Type | None] = {c.name: parse_type(c.type) if c.type else None for c in spec.columns}
    return declared | COORDINATES if spec.coordinates else declared


def _partitioning(spec: StreamSpec) -> Iterator[Problem]:
    columns, terms = _types(spec), [parse_term(text) for text in spec.partition_by]
    for index, term in enumerate(terms):
        yield from _term(f"partition-by.{index}", term, columns)
        yield from _partition_field(f"partition-by.{index}", term, terms[:index], columns)


def _sorting(spec: StreamSpec) -> Iterator[Problem]:
    for index, text in enumerate(spec.sort_by):
        yield from _term(f"sort-by.{index}", parse_sort_term(text).term, _types(spec))


def _aligned(spec: StreamSpec) -> Iterator[Problem]:
    """Whole windows need data files that span no two of them."""
    if spec.commit.align == "none":
        return
    column, fine = spec.event_time.column, ("hour",) if spec.window == "hour" else ("hour", "day")
    terms = " or ".join(f"{transform}({column})" for transform in fine)
    if spec.window is None:
        what = f"waits for windows to complete, but the stream has none; partition by {terms}, or declare complete"
        yield Problem("commit.align", spec.commit.align, what)
    elif not set(fine) & set(spec.event_time_partitions):
        what = f"needs partition-by {terms}, so that each file lies in one {spec.window}, the window that completes"
        yield Problem("commit.align", spec.commit.align, what)


def _throttle(spec: StreamSpec) -> Iterator[Problem]:
    if spec.commit.throttle == "stretch" and spec.commit.max_interval <= spec.commit.interval:
        what = f"is not above commit.interval, {format_duration(spec.commit.interval)}: there is nothing to stretch"
        yield Problem("commit.max-interval", format_duration(spec.commit.max_interval), what)


def _expiry(spec: StreamSpec) -> Iterator[Problem]:
    expiry = spec.maintenance.expiry
    if expiry.at_least > expiry.at_most:
        what = f"is above maintenance.expiry.at-most, {expiry.at_most}"
        yield Problem("maintenance.expiry.at-least", expiry.at_least, what)


def _term(key: str, term: Term, columns: Columns) -> Iterator[Problem]:
    if columns.get(term.column.split(".")[0], Primitive("")) is None:
        return
    source = _source(term.column, columns)
    if source is None:
        yield Problem(key, str(term), f"names {term.column!r}, which is no column{_did_you_mean(term.column, columns)}")
    elif not fits(term.transform, source):
        yield Problem(
            key,
            str(term),
            f"does not fit: {term.column} is {source}; {term.transform} takes {fitting_types(term.transform)}",
        )


def _partition_field(key: str, term: Term, before: list[Term], columns: Columns) -> Iterator[Problem]:
    """Partition field names are unique, and a column has one time granularity (Iceberg Java refuses two)."""
    other = next((t for t in before if t.field_name == term.field_name), None)
    if other is not None:
        yield Problem(key, str(term), f"makes the partition field {term.field_name}, and so does {other}; keep one")
    elif term.transform != "identity" and term.field_name in columns:
        yield Problem(key, str(term), f"makes the partition field {term.field_name}, which is a column; rename it")
    elif term.transform in TIME_TRANSFORMS:
        clash = next((t for t in before if t.column == term.column and t.transform in TIME_TRANSFORMS), None)
        if clash is not None:
            yield Problem(key, str(term), f"is redundant beside {clash}; keep the finer one")


def _source(path: str, columns: Columns) -> Type | None:
    """The type at a dotted path, which leads through structs only, like Iceberg's sources."""
    first, *rest = path.split(".")
    found = columns.get(first)
    for name in rest:
        fields = found.fields if isinstance(found, Struct) else ()
        found = next((field.type for field in fields if field.name == name), None)
    return found


def _kafka_properties(spec: StreamSpec) -> Iterator[Problem]:
    for key, value in spec.source.properties.items():
        if key in SET_BY_FRAZIL:
            yield Problem(f"source.properties.{key}", value, f"is set by frazil: {SET_BY_FRAZIL[key]}")
        elif key in JAVA_ONLY:
            what = f"is a property of Kafka's Java client, which librdkafka does not have; {JAVA_ONLY[key]}"
            yield Problem(f"source.properties.{key}", None, what)


def _servers(spec: StreamSpec) -> Iterator[Problem]:
    text = spec.source.bootstrap_servers
    if "${" not in text and (what := servers_problem(text)):
        yield Problem("source.bootstrap-servers", None, what)


def _secrets(spec: StreamSpec) -> Iterator[Problem]:
    for path, properties in (("source.properties", spec.source.properties), ("resources.spark", spec.resources.spark)):
        for key, value in properties.items():
            if is_secret(key) and key not in JAVA_ONLY and not _REFERENCES.fullmatch(value):
                yield Problem(
                    f"{path}.{key}",
                    None,
                    "is a secret, which the file must not hold; write ${env:NAME} or ${airflow:connection.password}",
                )
    for path, text in _registry_texts(spec):
        if is_secret(path) and not _REFERENCES.fullmatch(text):
            what = "is a secret, which the file must not hold; write ${env:NAME} or ${airflow:connection.password}"
            yield Problem(path, None, what)


def _registry_texts(spec: StreamSpec) -> Iterator[tuple[str, str]]:
    """What may hold a reference in the registry's declaration, by its key."""
    registry = getattr(spec.source.format, "registry", None)
    if isinstance(registry, Registry):
        parts = {"url": registry.url, "username": registry.username, "password": registry.password}
        parts |= {"token": registry.token, **{f"properties.{key}": text for key, text in registry.properties.items()}}
        for name, text in parts.items():
            if text is not None:
                yield f"source.format.registry.{name}", text


def _references(spec: StreamSpec) -> Iterator[Problem]:
    texts = {"source.bootstrap-servers": spec.source.bootstrap_servers}
    texts |= {f"source.properties.{key}": value for key, value in spec.source.properties.items()}
    texts |= {f"resources.spark.{key}": value for key, value in spec.resources.spark.items()}
    texts |= dict(_registry_texts(spec))
    for path, text in texts.items():
        if message := problem_in(text):
            yield Problem(path, None, message)
    if spec.table.location and "${" in spec.table.location:
        yield Problem("table.location", spec.table.location, "holds a reference, which a location does not allow")
    elif spec.table.location and (what := location_problem(spec.table.location)):
        yield Problem("table.location", spec.table.location, what)


def _resources(spec: StreamSpec) -> Iterator[Problem]:
    r = spec.resources
    if r.on_cluster:
        if r.cores % r.executor_cores:
            what = f"does not divide resources.cores, {r.cores}: executors are alike, and have that many cores together"
            yield Problem("resources.executor-cores", r.executor_cores, what)
        if "spark.master" in r.spark:
            yield Problem("resources.spark.spark.master", r.spark["spark.master"], "is set by resources.master")
        deploy = r.spark.get("spark.submit.deployMode", "client")
        if deploy != "client" and not deploy.startswith("${"):
            what = "is not supported: a writer's driver is a process of the host that supervises it; leave it out"
            yield Problem("resources.spark.spark.submit.deployMode", deploy, what)
        if r.manager is ClusterManager.KUBERNETES and not IMAGES & set(r.spark):
            what = "needs an image for its executors: let resources.spark.spark.kubernetes.container.image name one"
            yield Problem("resources.master", r.master, what)
    elif not r.spark.get("spark.master", "local").startswith(("local", "${")):
        what = "names a cluster, of which only resources.master tells frazil"
        yield Problem("resources.spark.spark.master", r.spark["spark.master"], what)
    if "spark.archives" in r.spark and r.package:
        yield Problem("resources.spark.spark.archives", r.spark["spark.archives"], "is set by resources.package")
    if not r.on_cluster and r.package:
        yield Problem("resources.package", r.package, "is for executors of a cluster, but resources.master is local[*]")


def _dead_letters(spec: StreamSpec) -> Iterator[Problem]:
    if spec.dead_letter_table == spec.table.identifier:
        yield Problem("dead-letters.table", spec.dead_letter_table, "is the stream's own table; name another one")


def _table_properties(spec: StreamSpec) -> Iterator[Problem]:
    for key, value in spec.table.properties.items():
        path = f"table.properties.{key}"
        if is_secret(key):
            yield Problem(
                path,
                None,
                "is a secret, and would be readable in the table; it belongs to the catalog's configuration",
            )
        elif key.startswith("frazil."):
            yield Problem(path, value, "is set by frazil: the prefix frazil. is reserved for it")
        elif key == "format-version" and value != "2":
            yield Problem(path, value, "is not supported; frazil writes format version 2")
        elif key == "write.format.default" and value.lower() != "parquet":
            yield Problem(path, value, "is not supported; frazil writes parquet, so leave it out")
        elif _WHOLE_NUMBERS.fullmatch(key) and not re.fullmatch(r"\d+", value):
            yield Problem(path, value, "is not a whole number, as Iceberg requires")


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f" ({', '.join(known)})"


_RULES: tuple[tuple[Callable[[StreamSpec], Iterator[Problem]], tuple[str, ...]], ...] = (
    (_columns, ("schema", "coordinates")),
    (_event_time, ("schema", "event-time", "coordinates")),
    (_units, ("schema", "event-time")),
    (_beside_value, ("schema", "source.key", "source.headers")),
    (_whole_value, ("schema", "source.format", "source.key", "source.headers")),
    (_csv, ("schema", "source.format", "source.key", "source.headers")),
    (_evolution, ("evolution", "source.format")),
    (_partitioning, ("schema", "coordinates", "partition-by")),
    (_sorting, ("schema", "coordinates", "sort-by")),
    (_aligned, ("commit.align", "complete", "event-time", "partition-by")),
    (_throttle, ("commit.throttle", "commit.interval", "commit.max-interval")),
    (_expiry, ("maintenance.expiry",)),
    (_servers, ("source.bootstrap-servers",)),
    (_kafka_properties, ("source.properties",)),
    (_secrets, ()),
    (_references, ()),
    (_resources, ("resources",)),
    (_dead_letters, ("table.identifier", "dead-letters")),
    (_table_properties, ("table.properties",)),
)
"""The rules, each with the parts that it needs."""
