"""The fixes that an operator can apply to a failing connection. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from frazil.errors import (
    AccessDenied,
    CommitUnavailable,
    FrazilError,
    KafkaUnavailable,
    MissingExtra,
    RegistryUnavailable,
    SpecError,
    TableLost,
    TopicMissing,
)

CAPABILITY = "let the catalog do what docs/reference/catalogs.md asks of one, or name another: `table.catalog`"


_ACLS = "kafka-acls.sh --add --allow-principal User:NAME --operation Describe --operation Read --topic NAME"


class Place(StrEnum):
    """The services that a stream connects to, named as in its declaration."""

    SOURCE = "source"
    REGISTRY = "source.format.registry"
    TABLE = "table"


_MENDS: Mapping[Place, Sequence[tuple[type[FrazilError], str]]] = {
    Place.SOURCE: (
        (TopicMissing, "make the topic (kafka-topics.sh --create --topic NAME), or correct `source.topics`"),
        (KafkaUnavailable, "start the brokers, let this host reach them, or correct `source.bootstrap-servers`"),
        (AccessDenied, f"correct user and secret in `source.properties`, or give the user its rights: {_ACLS}"),
        (SpecError, "set the variables of `source` for the user who runs the writer, or correct its properties"),
    ),
    Place.REGISTRY: (
        (RegistryUnavailable, "start the registry, let this host reach it, or correct its url and credentials"),
        (SpecError, "set the variables that `source.format.registry` refers to, or correct it"),
    ),
    Place.TABLE: (
        (
            TableLost,
            "name the right catalog, or register the table: `A lost catalog` in docs/how-to/operate-writers.md",
        ),
        (CommitUnavailable, "start catalog and storage, let this host reach them, or correct .pyiceberg.yaml"),
        (AccessDenied, "correct the credentials in .pyiceberg.yaml, or let them create, write, list and delete there"),
        (SpecError, "correct `table.catalog`, or that catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__…"),
    ),
}
"""Fixes by error class; the first class that matches counts."""


def fix_of(place: Place, error: FrazilError) -> str:
    """Return the fix for an error; empty if the error's message contains the fix."""
    if isinstance(error, MissingExtra):
        return ""
    return next((fix for kind, fix in _MENDS[place] if isinstance(error, kind)), "")
