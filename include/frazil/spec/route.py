"""The model of a route, which distributes a stream's records to several tables, and the table names of its template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from frazil.spec.values import IntegerBounds, Model, PositiveDuration, Problem, Properties, checked, suggest_names

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

VALUE_PLACEHOLDER = "{value}"
MAX_VALUE_CHARACTERS = 200
MAX_VALUE_CHARACTERS_IN_NAME = 64
"""Maximum length of the value in a table's name: some catalogs limit a whole table name to 128 characters."""
MAX_SIGNALLED_TEMPLATE = 160
"""Maximum length of a signalled template: Airflow's partition keys have at most 250 characters."""

IDENTIFIER = re.compile(r"[\w-]+(\.[\w-]+)+")
_TEMPLATE = re.compile(r"([\w-]+\.)+[\w-]*\{value\}[\w-]*")
_PLAIN = re.compile(rf"[a-z0-9][a-z0-9_]{{0,{MAX_VALUE_CHARACTERS_IN_NAME - 1}}}")
_HASHED = re.compile(r"_[0-9a-f]{12}$")
"""The end of a value that looks like the hash in a table name."""


def _check_identifiers(value: Mapping[str, str]) -> None:
    for name, identifier in value.items():
        if not IDENTIFIER.fullmatch(identifier):
            raise ValueError(f"has {identifier!r} for {name!r}, which is not an identifier; write namespace.table")


def _check_template(value: str) -> None:
    if not _TEMPLATE.fullmatch(value):
        raise ValueError("is not a template; write namespace.{value}, with {value} once, in the table's name")


class Route(Model):
    """Chooses a table for each record. All tables have the stream's columns."""

    by: Literal["topic", "field", "header"]
    """The part of a record that chooses its table."""
    name: str | None = None
    """The `string`, `int` or `long` column for `field`; the header's name for `header`."""
    tables: Annotated[Properties, checked(_check_identifiers)] = Field(default_factory=dict)
    """`value: namespace.table`. Several values may share a table."""
    template: Annotated[str, checked(_check_template)] | None = None
    """`namespace.{value}`, for values that are not in `tables`. A table is created with its first record."""
    allow: tuple[str, ...] = ("*",)
    """Patterns of values for which `template` creates tables. Other values make dead letters."""
    limit: Annotated[int, IntegerBounds(1, 10_000)] = 100
    """Maximum number of tables that `template` creates. Records for further tables become dead letters."""
    otherwise: Literal["table", "dead-letters"] = "table"
    """The destination of records without a value or a table."""
    complete: tuple[str, ...] = ()
    """The routed tables whose windows are signalled. The text of `template` stands for all its tables."""
    lag: PositiveDuration = timedelta(minutes=15)
    """How long rows may wait for a failing table before the stream stops."""

    def find_conflicts(self) -> Iterator[str]:
        if self.by == "topic" and self.name is not None:
            yield "has a name, which is not used with by: topic; leave it out"
        if self.by != "topic" and not self.name:
            yield f"is missing the name of the {self.by}; add name: …"
        if not self.tables and self.template is None:
            yield "has neither tables nor a template; add one"
        if self.template is None and {"allow", "limit"} & self.model_fields_set:
            yield "has allow or limit, which only apply to a template; leave them out"

    def derive_table_name(self, value: str) -> str:
        """Return the table that the template creates for a routing value. Different values have different tables."""
        assert self.template is not None
        return self.template.replace(VALUE_PLACEHOLDER, derive_name_part(value))

    def makes(self, value: str, identifier: str) -> bool:
        is_allowed = self.template is not None and find_refusal(value, self.allow) is None
        return is_allowed and self.derive_table_name(value) == identifier


def find_refusal(value: str, allow: Iterable[str]) -> str | None:
    if len(value) > MAX_VALUE_CHARACTERS:
        return f"it has more than {MAX_VALUE_CHARACTERS} characters"
    if not any(fnmatchcase(value, pattern) for pattern in allow):
        return "route.allow does not allow it"
    return None


def derive_name_part(value: str) -> str:
    """Return the part of a table's name for a route value.

    A plain value is used unchanged, unless it ends like a hash. Other values get 48 bits of their hash.
    """
    if _PLAIN.fullmatch(value) and not _HASHED.search(value):
        return value
    plain = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")[:MAX_VALUE_CHARACTERS_IN_NAME].strip("_") or "value"
    return f"{plain}_{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def value_property(stream: str) -> str:
    return f"frazil.route.{stream}"


def find_problems(spec: StreamSpec) -> Iterator[Problem]:
    yield from _find_atomic_problems(spec)
    if (route := spec.route) is None:
        return
    yield from _find_source_problems(spec, route)
    reserved = {
        spec.table.identifier: "the stream's own table",
        spec.dead_letter_table: "the table of its dead letters",
    }
    for value, identifier in route.tables.items():
        if identifier in reserved:
            text = f"is {reserved[identifier]}; name another table, or leave the value out"
            yield Problem(f"route.tables.{value}", identifier, text)
    yield from _find_window_problems(spec, route)


def _find_atomic_problems(spec: StreamSpec) -> Iterator[Problem]:
    if isinstance(spec.commit.atomic, bool):
        return
    tables = dict.fromkeys(spec.sinks.named_tables)
    if not spec.commit.atomic or not tables:
        text = "lists tables, but route.tables has none; write true or false"
        yield Problem("commit.atomic", ", ".join(spec.commit.atomic), text)
        return
    for identifier in spec.commit.atomic:
        if identifier not in {*tables, spec.table.identifier, spec.dead_letter_table}:
            text = f"is neither a table of the stream nor in route.tables{suggest_names(identifier, tables)}"
            yield Problem("commit.atomic", identifier, f"{text}; add it there")


def _find_window_problems(spec: StreamSpec, route: Route) -> Iterator[Problem]:
    tables = [*route.tables.values(), *([route.template] if route.template else [])]
    for identifier in route.complete:
        if identifier not in tables and not spec.sinks.matches_template(identifier):
            hint = suggest_names(identifier, dict.fromkeys(tables))
            yield Problem("route.complete", identifier, f"is not in route.tables{hint}; add it there")
        elif identifier == route.template and len(identifier) > MAX_SIGNALLED_TEMPLATE:
            text = f"has over {MAX_SIGNALLED_TEMPLATE} characters, too long for Airflow's partition keys; shorten it"
            yield Problem("route.complete", identifier, text)
        elif spec.window is None:
            text = "cannot be signalled, because no window of the stream ever completes; declare complete: hour or day"
            yield Problem("route.complete", identifier, text)


def _find_source_problems(spec: StreamSpec, route: Route) -> Iterator[Problem]:
    if route.by == "topic":
        for topic in route.tables:
            if spec.source.topic_pattern is None and topic not in spec.source.topics:
                text = f"is not a topic of the stream{suggest_names(topic, dict.fromkeys(spec.source.topics))}"
                yield Problem("route.tables", topic, text)
    elif route.by == "field":
        declared = {column.name: column.type for column in spec.columns}
        name = route.name or ""
        if name not in declared:
            yield Problem("route.name", name, f"is not a column of the schema{suggest_names(name, declared)}")
        elif declared[name] and declared[name] not in {"string", "int", "long"}:
            text = f"is a column of type {declared[name]}; a route needs a string, int or long"
            yield Problem("route.name", name, text)
        elif spec.sensitive and name in spec.sensitive.fields:
            text = "is sensitive, but table names would show its values; choose another field"
            yield Problem("route.name", name, text)
        elif declared[name] in {"int", "long"}:
            yield from _find_integer_problems(route, name)


def _find_integer_problems(route: Route, column: str) -> Iterator[Problem]:
    """Yield a problem for each key of `tables` that no value can equal, because it is not a canonical integer."""
    for value in route.tables:
        try:
            number = str(int(value, 16 if value.startswith("0x") else 10))
        except ValueError:
            yield Problem("route.tables", value, f"is not an integer, but the column {column} has integers")
        else:
            if value != number:
                yield Problem("route.tables", value, f"is never a value of the column {column}; write {number}")
