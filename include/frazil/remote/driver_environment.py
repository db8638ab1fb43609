"""Passes the variables that a stream needs, and its catalog's configuration, from the agent to a driver in a cluster.
The driver uses this module before it imports PyIceberg, so it imports little.
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
CATALOG_VARIABLE = "FRAZIL_DRIVER_CATALOG"
"""Variable with the catalog's configuration, as JSON in Base64: YARN does not quote values in its scripts."""
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "OPENLINEAGE_", "OTEL_", "LC_")
_METRICS = ("FRAZIL_METRICS", "FRAZIL_METRICS_LISTEN", "FRAZIL_METRICS_PARTITIONS")
NAMES = frozenset({"LANG", "TZ", "FRAZIL_LINEAGE_EVERY", *_METRICS})
HOST_FILE_SUFFIXES = ("_FILE", "_DIR", "_PATH", "_CREDENTIALS", "_BUNDLE", "_PROFILE", "_CONFIG")
"""Suffixes of variables that name files on this host. These are passed only if the stream references them."""


def build_driver_environment(
    base: Mapping[str, str], *, referenced: Collection[str], catalog: str, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the driver's variables: those that the stream uses, storage credentials, and the catalog's properties."""
    passed = {
        name: value
        for name, value in base.items()
        if name in referenced or name in NAMES or (name.startswith(PREFIXES) and not name.endswith(HOST_FILE_SUFFIXES))
    }
    sent = json.dumps({"name": catalog, "properties": dict(properties)})
    return {**passed, CATALOG_VARIABLE: base64.b64encode(sent.encode()).decode()}


def set_up_home(environment: MutableMapping[str, str], folder: Path) -> None:
    """Create a FRAZIL_HOME in the driver's folder, with the catalog that the agent sent. Sets both in `environment`."""
    try:
        home = folder / "frazil-home"
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # an image's folder may be read-only
        home = Path(tempfile.mkdtemp(prefix="frazil-home-"))
    environment["FRAZIL_HOME"] = str(home)
    if sent := environment.pop(CATALOG_VARIABLE, None):
        settings = json.loads(base64.b64decode(sent))
        file = home / FILE
        file.touch(mode=0o600)
        configured = {"default-catalog": settings["name"], "catalog": {settings["name"]: settings["properties"]}}
        # PyIceberg accepts only YAML's block form, and not a folded line.
        file.write_text(yaml.safe_dump(configured, default_flow_style=False, width=sys.maxsize))
        environment["PYICEBERG_HOME"] = str(home)
        environment.pop("PYICEBERG_DEFAULT_CATALOG", None)


def remove_catalog_config(environment: Mapping[str, str]) -> None:
    """Remove the catalog's configuration file when the driver ends, because it may contain secrets."""
    if home := environment.get("FRAZIL_HOME"):
        (Path(home) / FILE).unlink(missing_ok=True)
