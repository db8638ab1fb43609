"""The content of OpenLineage events about a run, independent of OpenLineage's client. Pure."""

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

INTERVAL_VARIABLE = "FRAZIL_LINEAGE_EVERY"
DEFAULT_INTERVAL = "15m"
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
"""Environment variable with the parent run, `<namespace>/<job>/<run id>`."""
NAMESPACE_VARIABLE = "OPENLINEAGE_NAMESPACE"
_PARENT = re.compile(r"(?P<namespace>[^/]+)/(?P<job>.+)/(?P<run>[0-9a-fA-F-]{36})")


class LineageState(StrEnum):
    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A topic or a table, named by OpenLineage's conventions."""

    namespace: str
    name: str
    identifier: str | None = None
    """The table's identifier in its catalog, such as `demo.flights`; None for a topic."""
    catalog: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    snapshot_id: int | None = None
    """The snapshot that was read, or that the run created."""


@dataclass(frozen=True, slots=True)
class Totals:
    records: int = 0
    bytes: int = 0
    files: int = 0
    snapshot_id: int | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    """Counts of changes that merges made: `inserted`, `updated`, `deleted`, and the kinds of dropped changes."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    inputs: tuple[Dataset, ...] = ()
    output: Dataset | None = None
    totals: Totals | None = None
    error: str | None = None
    day: date | None = None
    """The UTC day that an aggregation reads, which is also the partition that it writes."""
    actions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class LineageSettings:
    on: bool = False
    every_ms: int = 900_000
    """Milliseconds between RUNNING events. An event for each batch would flood a backend."""
    namespace: str = "frazil"
    parent: tuple[str, str, str] | None = None
    """Namespace and name of the parent job, and the id of its run."""
    problems: tuple[str, ...] = ()

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> LineageSettings:
        disabled = environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
        present = {name for name, value in environment.items() if value}
        variables = {"OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"} & present
        if disabled or not (variables or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in present)):
            return cls()
        problems, interval = [], parse_duration(DEFAULT_INTERVAL)
        try:
            interval = parse_duration(environment.get(INTERVAL_VARIABLE) or DEFAULT_INTERVAL)
        except ValueError:
            problems.append(
                f"{INTERVAL_VARIABLE} is {environment[INTERVAL_VARIABLE]!r}, which is not a duration such as 5m; "
                f"{DEFAULT_INTERVAL} is used"
            )
        parent_id = environment.get(PARENT_VARIABLE)
        parent = _PARENT.fullmatch(parent_id) if parent_id else None
        if parent_id and parent is None:
            text = f"{PARENT_VARIABLE} is {parent_id!r}, not <namespace>/<job>/<run id>; the run has no parent"
            problems.append(text)
        return cls(
            on=True,
            every_ms=round(interval.total_seconds() * 1000),
            namespace=environment.get(NAMESPACE_VARIABLE) or "frazil",
            parent=(parent["namespace"], parent["job"], parent["run"]) if parent else None,
            problems=tuple(problems),
        )


def topic_datasets(bootstrap_servers: str, names: Iterable[str]) -> tuple[Dataset, ...]:
    """Return topics as datasets. OpenLineage names a Kafka cluster after its first broker."""
    first = bootstrap_servers.split(",", maxsplit=1)[0].strip()
    return tuple(Dataset(f"kafka://{first}", name) for name in sorted(names))


def table_dataset(table: Table) -> Dataset:
    """Return a table as a dataset, named by its location as in OpenLineage's Iceberg integrations."""
    parts = urlsplit(table.location())
    in_store = parts.scheme not in {"", "file"}
    return Dataset(
        namespace=f"{parts.scheme}://{parts.netloc}" if in_store else "file",
        name=parts.path.strip("/") if in_store else parts.path.rstrip("/"),
        identifier=".".join(table.name()),
        catalog=table.catalog.properties.get("uri") or table.catalog.name,
        columns=tuple((field.name, str(field.field_type)) for field in table.schema().fields),
    )
