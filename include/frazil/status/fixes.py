"""Suggests how to fix an error of a service that a stream uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from frazil.errors import (
    AccessDenied,
    Failure,
    FrazilError,
    MissingExtra,
    RegistryUnavailable,
    SchemaIncompatible,
    SpecError,
    TableLost,
    explain,
)


class Service(StrEnum):
    """The services that a stream connects to, named as in its declaration."""

    SOURCE = "source"
    REGISTRY = "source.format.registry"
    TABLE = "table"


_FIXES: Mapping[Service, Sequence[tuple[type[FrazilError], str]]] = {
    Service.SOURCE: (
        (SpecError, "Set the variables that `source` refers to for the user who runs the writer, or correct `source`"),
    ),
    Service.REGISTRY: (
        (
            RegistryUnavailable,
            "Start the registry, make it reachable from this host, or correct its url and credentials",
        ),
        (SpecError, "Set the variables that `source.format.registry` refers to, or correct it"),
    ),
    Service.TABLE: (
        (
            TableLost,
            "Declare the right catalog, or register the table: `A lost catalog` in docs/how-to/operate-writers.md",
        ),
        (
            AccessDenied,
            "Correct the credentials in .pyiceberg.yaml, or grant them permission to create, write, list and delete",
        ),
        (SchemaIncompatible, "Change the declaration, or write to a new table"),
        (SpecError, "Correct `table.catalog`, or that catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__…"),
    ),
}
"""Fixes by service and error class. The first class that matches is used."""


def explain_error(service: Service, error: Exception, about: str = "") -> Failure:
    """Explain an error, with its fix. Omits the stream, because it may concern several."""
    failure = explain(error, about)
    return failure if failure.remedy else replace(failure, remedy=_suggest_fix(service, error))


def _suggest_fix(service: Service, error: Exception) -> str:
    """Return the fix for an error; empty if its message states the fix, or none is known."""
    if isinstance(error, MissingExtra):
        return ""
    return next((fix for kind, fix in _FIXES[service] if isinstance(error, kind)), "")
