"""Resolves references to values that must not be in a file, when the values are used.

`${env:NAME}`, `${env:NAME:-default}`: an environment variable.
`${airflow:conn_id.field}`: a field of an Airflow connection (host, port, login, password, schema, or a key of its
extras), from the variable AIRFLOW_CONN_<CONN_ID>, which the supervisor sets for a writer's connections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from frazil.errors import SpecError
from frazil.spec.addresses import find_servers_problem

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ENVIRONMENT = re.compile(r"env:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>.*))?", re.DOTALL)
_AIRFLOW = re.compile(r"airflow:(?P<connection>[\w.-]+)\.(?P<field>[\w-]+)")
_FIELDS = ("host", "port", "login", "password", "schema")


def resolve(text: str, environment: Mapping[str, str]) -> str:
    """Replace references. Raises SpecError, which names a missing variable or connection, but never shows a value."""
    return _REFERENCE.sub(lambda match: _resolve_reference(match[1], environment), text)


def resolve_properties(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Resolve references in properties. Raises SpecError, whose message begins with the property's key."""
    resolved = {}
    for key, text in properties.items():
        try:
            resolved[key] = resolve(text, environment)
        except SpecError as error:
            raise SpecError(f"{key}: {error}") from None
    return resolved


def declared_kafka_properties(spec: StreamSpec) -> dict[str, str]:
    """Return the librdkafka properties of a stream's source, with unresolved references."""
    return {"bootstrap.servers": spec.source.bootstrap_servers, **spec.source.properties}


def resolve_kafka_properties(spec: StreamSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's properties. Raises SpecError for unresolvable references and for invalid addresses."""
    try:
        resolved = resolve_properties(declared_kafka_properties(spec), environment)
    except SpecError as error:
        raise SpecError(f"source: {error}", stream=spec.name) from None
    if problem := find_servers_problem(resolved["bootstrap.servers"]):
        raise SpecError(f"source.bootstrap-servers: {problem}", stream=spec.name)
    return resolved


def shown_servers(spec: StreamSpec, environment: Mapping[str, str]) -> str:
    """Return the brokers for a message: as declared, if they cannot be resolved or may contain credentials."""
    try:
        resolved = resolve(spec.source.bootstrap_servers, environment)
    except SpecError:
        return spec.source.bootstrap_servers
    return spec.source.bootstrap_servers if find_servers_problem(resolved) else resolved


def executor_kafka_properties(spec: StreamSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """Return properties in which only the brokers are resolved.

    Tasks resolve all other references, because hosts differ and secrets must not be sent.
    """
    resolved = resolve_kafka_properties(spec, environment)
    return {**declared_kafka_properties(spec), "bootstrap.servers": resolved["bootstrap.servers"]}


def find_connections(spec: StreamSpec) -> frozenset[str]:
    return _find_names(spec, _AIRFLOW, "connection")


def find_environment_names(spec: StreamSpec) -> frozenset[str]:
    return _find_names(spec, _ENVIRONMENT, "name")


def _find_names(spec: StreamSpec, kind: re.Pattern[str], part: str) -> frozenset[str]:
    references = (reference for text in _find_texts(spec.model_dump()) for reference in _REFERENCE.findall(text))
    return frozenset(match[part] for reference in references if (match := kind.fullmatch(reference)))


def find_reference_problem(text: str) -> str | None:
    for reference in _REFERENCE.findall(text):
        if not _ENVIRONMENT.fullmatch(reference) and not _AIRFLOW.fullmatch(reference):
            return f"has ${{{reference}}}; write ${{env:NAME}}, ${{env:NAME:-default}} or ${{airflow:connection.field}}"
    return None


def connection_variable(connection: str) -> str:
    """Return the environment variable that defines a connection, for Airflow and for frazil."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def _resolve_reference(reference: str, environment: Mapping[str, str]) -> str:
    if match := _ENVIRONMENT.fullmatch(reference):
        value = environment.get(match["name"]) or match["default"]  # empty counts as unset, as in ${NAME:-default}
        if value is None or (not value and match["default"] is None):
            raise SpecError(
                f"the environment variable {match['name']} is not set in this process, or is empty; set it before the "
                "start"
            )
        return value
    if match := _AIRFLOW.fullmatch(reference):
        connection, field = match["connection"], match["field"]
        variable = connection_variable(connection)
        if not environment.get(variable):
            raise SpecError(
                f"the Airflow connection {connection!r} is missing: add it in Airflow, or set {variable} for a writer "
                "that Airflow does not start"
            )
        fields = _parse_connection(environment[variable], variable)
        field_value = fields.get(field)
        if field_value is None:
            names = ", ".join(sorted(name for name, field in fields.items() if field is not None))
            raise SpecError(f"the Airflow connection {connection!r} has no {field!r}; it has: {names or 'nothing'}")
        return field_value if isinstance(field_value, str) else json.dumps(field_value)
    raise SpecError(find_reference_problem(f"${{{reference}}}") or "")


def _parse_connection(text: str, variable: str) -> dict[str, Any]:
    try:
        return _parse_json_connection(text) if text.lstrip().startswith("{") else _parse_uri_connection(text)
    except (ValueError, TypeError, RecursionError):
        # The message shows neither text nor cause, because both may hold a password.
        raise SpecError(f"{variable} is not an Airflow connection; write it as JSON or as a URI") from None


def _parse_json_connection(text: str) -> dict[str, Any]:
    declared = json.loads(text)
    extra = declared.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    if not isinstance(extra, dict):
        raise TypeError("extra is not a mapping")
    fields = {name: declared.get(name) for name in _FIELDS}
    fields["port"] = None if fields["port"] is None else str(fields["port"])
    return extra | {name: value for name, value in fields.items() if value is not None}


def _parse_uri_connection(text: str) -> dict[str, Any]:
    """Parse a URI as `airflow.models.Connection` does; extras are in the query, or as JSON in `__extra__`."""
    parts = urlsplit(text)
    if not parts.scheme:
        raise ValueError("no scheme")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    fields = {
        "host": unquote(parts.hostname or ""),
        "port": str(parts.port or ""),
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "schema": unquote(parts.path.removeprefix("/")),
    }
    return dict(extra) | {name: value for name, value in fields.items() if value}


def _find_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _find_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_texts(item)
