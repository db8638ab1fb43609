"""Passes part of the agent's environment to a driver in a cluster: variables that its stream needs, and its catalog.

This module imports little, because the driver's program uses it before it imports PyIceberg.
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
"""The variable with the configuration of the stream's catalog, as JSON in Base64: YARN puts values into a script
unquoted.
"""
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "OPENLINEAGE_", "OTEL_", "LC_")
NAMES = frozenset(
    {
        *("LANG", "TZ", "FRAZIL_KAFKA_READER", "FRAZIL_LINEAGE_EVERY"),
        *("FRAZIL_METRICS", "FRAZIL_METRICS_LISTEN", "FRAZIL_METRICS_PARTITIONS"),
    }
)
OF_THIS_HOST = ("_FILE", "_DIR", "_PATH", "_CREDENTIALS", "_BUNDLE", "_PROFILE", "_CONFIG")
"""Suffixes of variables whose values name files of this host. They are not passed on, unless the stream refers to them.
"""


def driver_environment(
    base: Mapping[str, str], *, referred: Collection[str], catalog: str, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the driver's variables: those that the stream refers to, credentials of storages, and catalog properties.

    Folders and programs of this host are left out.
    """
    passed = {
        name: value
        for name, value in base.items()
        if name in referred or name in NAMES or (name.startswith(PREFIXES) and not name.endswith(OF_THIS_HOST))
    }
    sent = json.dumps({"name": catalog, "properties": dict(properties)})
    return {**passed, CATALOG: base64.b64encode(sent.encode()).decode()}


def take_up(environment: MutableMapping[str, str], folder: Path) -> None:
    """Create a FRAZIL_HOME in the driver's folder, and configure PyIceberg if the agent sent a catalog."""
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
        # PyIceberg accepts only YAML's block form, and not a folded line.
        file.write_text(yaml.safe_dump(configured, default_flow_style=False, width=sys.maxsize))
        environment["PYICEBERG_HOME"] = str(home)
        environment.pop("PYICEBERG_DEFAULT_CATALOG", None)


def lay_down(environment: Mapping[str, str]) -> None:
    """Remove the catalog's configuration when the driver ends: the file may have secrets, and the folder stays."""
    if home := environment.get("FRAZIL_HOME"):
        (Path(home) / FILE).unlink(missing_ok=True)
