"""Settings for publishing metrics, from environment variables that the supervisor passes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

EXPORTS = "FRAZIL_METRICS"
LISTEN = "FRAZIL_METRICS_LISTEN"
PARTITIONS = "FRAZIL_METRICS_PARTITIONS"

LISTEN_DEFAULT = "127.0.0.1:9464-9563"
"""OpenTelemetry's port for Prometheus, and the next 99 ports. Each writer application on a host takes the next free
port.
"""
_LISTEN = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:]+):(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?")
_KNOWN = ("prometheus", "otlp")


@dataclass(frozen=True, slots=True)
class Settings:
    prometheus: bool = False
    otlp: bool = False
    host: str = "127.0.0.1"
    ports: range = range(0)
    partitions: bool = False
    problems: tuple[str, ...] = ()
    """Errors in the settings. They never end a writer."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from an environment; by default nothing is published."""
        names = [name.strip().lower() for name in environment.get(EXPORTS, "").split(",") if name.strip()]
        problems = [
            f"{EXPORTS} names {name!r}: it is a list of {' and '.join(_KNOWN)}, with commas"
            for name in names
            if name not in _KNOWN
        ]
        host, ports = _where(environment.get(LISTEN) or LISTEN_DEFAULT)
        if "prometheus" in names and not ports:
            problems.append(f"{LISTEN} is {environment[LISTEN]!r}: it is an address such as {LISTEN_DEFAULT}")
        return cls(
            prometheus="prometheus" in names and bool(ports),
            otlp="otlp" in names,
            host=host,
            ports=ports,
            partitions=environment.get(PARTITIONS, "").lower() in {"1", "true", "yes", "on"},
            problems=tuple(problems),
        )


def _where(text: str) -> tuple[str, range]:
    """Return the host and the ports; an empty host and no ports if the text is not an address."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None:
        return "", range(0)
    first = int(found["first"])
    last = int(found["last"] or first)
    ports = range(first, last + 1) if last <= 65_535 else range(0)
    return found["host"].strip("[]"), ports
