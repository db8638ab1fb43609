"""Opens the object store for a location."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from frazil.errors import SpecError
from frazil.spec.addresses import OBJECT_STORES
from frazil.table.local_storage import LocalStore
from frazil.table.object_store import IoProperties, ObjectStore


def open_store(location: str, io_properties: IoProperties, *, renew: Callable[[], object] | None = None) -> ObjectStore:
    """Return the store for a location. It calls `renew` for expired credentials. Raises SpecError for other schemes."""
    scheme = urlsplit(location).scheme
    if scheme in {"", "file"}:
        return LocalStore()
    if scheme in OBJECT_STORES:
        from frazil.table.object_storage import FsspecStore  # loads botocore and fsspec

        return FsspecStore(location, io_properties, renew=renew)
    raise SpecError(
        f"{location}: the scheme {scheme!r} is not supported; a table's location must be a folder, file://, "
        f"or one of {', '.join(sorted(OBJECT_STORES))}"
    )
