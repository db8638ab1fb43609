"""Small objects of a stream, one for each table. The listing of their folder names the tables."""

from __future__ import annotations

from urllib.parse import quote, unquote

from frazil.ingest.contract import Target
from frazil.table.object_store import ObjectStore

_SUFFIX = ".json"


def object_of(folder: str, target: Target) -> str:
    """Return the path of a table's object."""
    return f"{folder}/{quote(target, safe='')}{_SUFFIX}"


def targets_in(store: ObjectStore, folder: str) -> set[Target]:
    """Return the tables that have an object in a folder. Costs one listing for any number of tables."""
    names = (file.path.rsplit("/", 1)[-1] for file in store.list_files(folder))
    return {unquote(name.removesuffix(_SUFFIX)) for name in names}
