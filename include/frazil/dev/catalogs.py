"""Writes the `.pyiceberg.yaml` for the embedded object store and the embedded PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import yaml

from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.dev.postgres import EmbeddedPostgres

FILE = ".pyiceberg.yaml"


def catalogs(
    *, store: EmbeddedObjectStore | None, database: EmbeddedPostgres | None, local_warehouse: Path
) -> dict[str, dict[str, str]]:
    """Return the properties of the catalogs `rest` and `postgres`, by name. The first one is the default catalog.

    The tables of the catalog `postgres` are in the object store if there is one, otherwise in a local folder.
    """
    found: dict[str, dict[str, str]] = {}
    if store is not None:
        found["rest"] = store.rest_catalog()
    if database is not None:
        storage = {"warehouse": f"file://{local_warehouse.absolute()}"}
        if store is not None:
            storage = {"warehouse": f"s3://{WAREHOUSE}/", **store.s3_properties()}
        found["postgres"] = {"type": "sql", "uri": database.uri, **storage}
    return found


def write_configuration(
    folder: Path,
    *,
    store: EmbeddedObjectStore | None,
    database: EmbeddedPostgres | None,
    local_warehouse: Path,
    default: str | None = None,
) -> tuple[str, ...]:
    """Write the configuration file for these catalogs, and return their names. Only the file's owner can read it.

    `default` names the default catalog; otherwise the first catalog is the default.
    """
    found = catalogs(store=store, database=database, local_warehouse=local_warehouse)
    text = yaml.safe_dump({"default-catalog": default or next(iter(found)), "catalog": found}, sort_keys=False)
    file = folder / FILE
    file.touch(mode=0o600)
    file.write_text(text)
    return tuple(found)
