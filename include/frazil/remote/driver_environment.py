"""What a driver in a cluster gets of its agent's environment: variables that its stream needs, and its catalog.

Imports little, because the driver's program takes this up before it imports PyIceberg.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path

import yaml

FILE = ".pyiceberg.yaml"
CATALOG = "FRAZIL_DRIVER_CATALOG"
"""The configuration of the stream's catalog, as JSON in Base64: YARN puts values into a script as they are."""
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "OPENLINEAGE_", "OTEL_", "LC_")
NAMES = frozenset(
    {
        *("LANG", "TZ", "FRAZIL_KAFKA_READER", "FRAZIL_LINEAGE_EVERY"),
        *("FRAZIL_METRICS", "FRAZIL_METRICS_LISTEN", "FRAZIL_METRICS_PARTITIONS"),
    }
)
OF_THIS_HOST = ("_FILE", "_DIR", "_PATH", "_CREDENTIALS", "_BUNDLE", "_PROFILE", "_CONFIG")
"""Ends of names whose values are files or in files, unless the stream refers to them."""


def driver_environment(
    base: Mapping[str, str], *, referred: Collection[str], catalog: str, properties: Mapping[str, str]
) -> dict[str, str]:
    """Variables for a driver: those that the stream refers to, credentials of storages, and its catalog's properties.

    Nothing that names a folder or a program of this host.
    """
    passed = {
        name: value
        for name, value in base.items()
        if name in referred or name in NAMES or (name.startswith(PREFIXES) and not name.endswith(OF_THIS_HOST))
    }
    sent = json.dumps({"name": catalog, "properties": dict(properties)})
    return {**passed, CATALOG: base64.b64encode(sent.encode()).decode()}


def take_up(environment: MutableMapping[str, str], folder: Path) -> None:
    """In the driver, in its folder: make a home of its own, and configure PyIceberg where the agent sent a catalog."""
    try:
        home = folder / "frazil-home"
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # an image's folder may be read-only
        home = Path(tempfile.mkdtemp(prefix="frazil-home-"))
    environment["FRAZIL_HOME"] = str(home)
    if sent := environment.pop(CATALOG, None):
        found = json.loads(base64.b64decode(sent))
        file = home / FILE
        file.touch(mode=0o600)
        configured = {"default-catalog": found["name"], "catalog": {found["name"]: found["properties"]}}
        # PyIceberg takes YAML's block form alone, and a folded line for a mistake.
        file.write_text(yaml.safe_dump(configured, default_flow_style=False, width=sys.maxsize))
        environment["PYICEBERG_HOME"] = str(home)
        environment.pop("PYICEBERG_DEFAULT_CATALOG", None)


def lay_down(environment: Mapping[str, str]) -> None:
    """At the driver's end: remove the catalog's configuration, which may have secrets, and stays with the folder."""
    if home := environment.get("FRAZIL_HOME"):
        (Path(home) / FILE).unlink(missing_ok=True)
