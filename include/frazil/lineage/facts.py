"""The contents of an OpenLineage event about a run, without its client. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.table import Table

from frazil.spec.units import parse_duration

EVERY = "FRAZIL_LINEAGE_EVERY"
EVERY_DEFAULT = "15m"
PARENT = "OPENLINEAGE_PARENT_ID"
"""`<namespace>/<job>/<run id>`, as OpenLineage's Spark integration expects it."""
NAMESPACE = "OPENLINEAGE_NAMESPACE"
_PARENT = re.compile(r"(?P<namespace>[^/]+)/(?P<job>.+)/(?P<run>[0-9a-fA-F-]{36})")


class State(StrEnum):
    """OpenLineage's states of a run."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A topic or a table, by OpenLineage's naming."""

    namespace: str
    name: str
    identifier: str | None = None
    """A table's identifier in its catalog, such as `demo.flights`."""
    catalog: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types."""
    snapshot_id: int | None = None
    """The snapshot that was read, or that the run created."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run has written so far."""

    records: int = 0
    bytes: int = 0
    files: int = 0
    snapshot_id: int | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    """Changes that merges made: `inserted`, `updated`, `deleted`, and the kinds that were dropped."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The contents of one event."""

    inputs: tuple[Dataset, ...] = ()
    output: Dataset | None = None
    totals: Totals | None = None
    """What was written; None if nothing was."""
    error: str | None = None
    day: date | None = None
    """The UTC day of an aggregation, and the partition that it writes."""
    actions: tuple[Mapping[str, Any], ...] = ()
    """Actions of maintenance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings, as an environment declares them."""

    on: bool = False
    every_ms: int = 900_000
    """Interval of RUNNING events; an event for each batch would flood a backend."""
    namespace: str = "frazil"
    parent: tuple[str, str, str] | None = None
    """Namespace and name of the parent job, and its run id."""
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        disabled = environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
        named = {"OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"} & {name for name, value in environment.items() if value}
        if disabled or not (named or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environment)):
            return cls()
        problems, every = [], parse_duration(EVERY_DEFAULT)
        try:
            every = parse_duration(environment.get(EVERY) or EVERY_DEFAULT)
        except ValueError:
            problems.append(
                f"{EVERY} is {environment[EVERY]!r}: it is a duration such as {EVERY_DEFAULT}, which is taken"
            )
        said = environment.get(PARENT)
        parent = _PARENT.fullmatch(said) if said else None
        if said and parent is None:
            problems.append(f"{PARENT} is {said!r}: it is <namespace>/<job>/<run id>; the run has no parent")
        return cls(
            on=True,
            every_ms=round(every.total_seconds() * 1000),
            namespace=environment.get(NAMESPACE) or "frazil",
            parent=(parent["namespace"], parent["job"], parent["run"]) if parent else None,
            problems=tuple(problems),
        )


def topics(bootstrap_servers: str, names: Iterable[str]) -> tuple[Dataset, ...]:
    """The topics as datasets; OpenLineage names a cluster after its first broker."""
    first = bootstrap_servers.split(",", maxsplit=1)[0].strip()
    return tuple(Dataset(f"kafka://{first}", name) for name in sorted(names))


def dataset_of(table: Table) -> Dataset:
    """A table as a dataset: named by its location, like OpenLineage's Iceberg integrations, plus its identifier."""
    parts = urlsplit(table.location())
    in_store = parts.scheme not in {"", "file"}
    return Dataset(
        namespace=f"{parts.scheme}://{parts.netloc}" if in_store else "file",
        name=parts.path.strip("/") if in_store else parts.path.rstrip("/"),
        identifier=".".join(table.name()),
        catalog=table.catalog.properties.get("uri") or table.catalog.name,
        columns=tuple((field.name, str(field.field_type)) for field in table.schema().fields),
    )
