"""Writer applications that several streams share: their streams, and the resources they need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frazil import clock
from frazil.spec.last_sound import STREAMS, find_declared
from frazil.spec.model import StreamSpec
from frazil.spec.references import connections, environment_names
from frazil.spec.resources import Resources


@dataclass(frozen=True, slots=True)
class Application:
    """One writer application that several streams share."""

    name: str
    streams: tuple[StreamSpec, ...]
    """Sorted by name; at least one."""

    @property
    def resources(self) -> Resources:
        """The largest cores and memory that one of the streams declares, and the Spark properties of all.

        If Spark properties differ, the last stream by name wins; for everything else the first. `frazil validate`
        refuses such streams.
        """
        declared = [spec.resources for spec in self.streams]
        spark = {key: value for one in declared for key, value in one.spark.items()}
        return declared[0].model_copy(
            update={
                "cores": max(one.cores for one in declared),
                "driver_memory": max(one.driver_memory for one in declared),
                "spark": spark,
            }
        )

    @property
    def connections(self) -> frozenset[str]:
        """The Airflow connections that its streams refer to."""
        return frozenset().union(*map(connections, self.streams))

    @property
    def environment(self) -> frozenset[str]:
        """The environment variables that its streams refer to."""
        return frozenset().union(*map(environment_names, self.streams))

    def fingerprint(self) -> str:
        """A digest of what the process depends on: it changes exactly when the whole application must be restarted.

        That is its resources and the sources of its secrets: a process keeps the environment that it started with.
        """
        needs = (self.resources.model_dump_json(), sorted(self.connections), sorted(self.environment))
        return hashlib.sha256(repr(needs).encode()).hexdigest()[:16]


def shared_applications(specs: Iterable[StreamSpec]) -> dict[str, Application]:
    """The applications that streams name, by name."""
    named: dict[str, list[StreamSpec]] = {}
    for spec in specs:
        if spec.application is not None:
            named.setdefault(spec.application, []).append(spec)
    by_name = {name: sorted(streams, key=lambda spec: spec.name) for name, streams in sorted(named.items())}
    return {name: Application(name, tuple(streams)) for name, streams in by_name.items()}


def find_application(folder: Path, name: str) -> Application | None:
    """The application that streams of a folder name, by their last valid declarations; None if none names it."""
    found = find_declared(folder, STREAMS, now_ms=clock.now_ms())
    specs = [one.spec for one in found if one.spec is not None and not one.removed]
    return shared_applications(specs).get(name)
