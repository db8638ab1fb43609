"""Writer applications that several streams share, and the resources that they need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frazil import clock
from frazil.spec.last_valid import STREAMS, find_declared
from frazil.spec.model import StreamSpec
from frazil.spec.references import find_connections, find_environment_names
from frazil.spec.resources import Resources


@dataclass(frozen=True, slots=True)
class Application:
    name: str
    streams: tuple[StreamSpec, ...]

    @property
    def resources(self) -> Resources:
        """The streams' largest `cores` and `driver-memory`, all Spark properties; else the first stream's settings."""
        declared = [spec.resources for spec in self.streams]
        spark = {key: value for resources in declared for key, value in resources.spark.items()}
        maxima = {name: max(getattr(resources, name) for resources in declared) for name in ("cores", "driver_memory")}
        return declared[0].model_copy(update={**maxima, "spark": spark})

    @property
    def connections(self) -> frozenset[str]:
        return frozenset().union(*map(find_connections, self.streams))

    @property
    def environment(self) -> frozenset[str]:
        return frozenset().union(*map(find_environment_names, self.streams))

    def fingerprint(self) -> str:
        """Return a hash of the resources, connections and variables (names). A change of it needs a restart."""
        needs = (self.resources.model_dump_json(), sorted(self.connections), sorted(self.environment))
        return hashlib.sha256(repr(needs).encode()).hexdigest()[:16]


def group_applications(specs: Iterable[StreamSpec]) -> dict[str, Application]:
    members: dict[str, list[StreamSpec]] = {}
    for spec in specs:
        if spec.application is not None:
            members.setdefault(spec.application, []).append(spec)
    by_name = {name: sorted(streams, key=lambda spec: spec.name) for name, streams in sorted(members.items())}
    return {name: Application(name, tuple(streams)) for name, streams in by_name.items()}


def find_application(folder: Path, name: str) -> Application | None:
    """Return the application with this name, from the last valid declarations; None if no stream names it."""
    streams = find_declared(folder, STREAMS, now_ms=clock.now_ms())
    specs = [stream.spec for stream in streams if stream.spec is not None and not stream.removed]
    return group_applications(specs).get(name)
