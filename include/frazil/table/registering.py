"""Checks a metadata file before a catalog registers a table from it. A SQL catalog accepts any path, and no catalog
checks whether a newer metadata file exists.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from frazil.errors import SpecError
from frazil.table.lost import find_other_name, registration_command
from frazil.table.remains import file_name, find_newest_metadata
from frazil.table.storage import open_store
from frazil.timetext import format_utc

MAX_ERROR_CHARACTERS = 200
"""Maximum number of characters quoted from an error about a file's contents."""


def read_metadata(catalog: Catalog, path: str) -> TableMetadata | None:
    """Read a metadata file; None if only a REST catalog's server can read it. Raises SpecError for other files."""
    open_store(path, catalog.properties)  # raises the usual error for an unsupported scheme
    try:
        return FromInputFile.table_metadata(catalog._load_file_io(location=path).new_input(path))
    except FileNotFoundError:
        raise SpecError(f"the file {path} does not exist: nothing was registered") from None
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError, EOFError) as error:
        raise _not_metadata_error(path, error) from None
    except Exception as error:  # storages raise anything, also where only the server has credentials
        if isinstance(error, OSError) and "is a directory" in str(error).lower():
            raise _not_metadata_error(path, error) from None
        if isinstance(catalog, MetastoreCatalog):
            raise
        return None


def _not_metadata_error(path: str, error: Exception) -> SpecError:
    text = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return SpecError(
        f"{path} is not a metadata file of a table ({text}): nothing was registered. Pass the newest "
        "*.metadata.json file of the table's folder `metadata`"
    )


def check_newest(catalog: Catalog, table: str, path: str, metadata: TableMetadata) -> None:
    """Raise SpecError if the table has a newer metadata file, whose commits would be lost."""
    store = open_store(metadata.location, catalog.properties)
    newest = find_newest_metadata(store, metadata.location, str(metadata.table_uuid))
    if newest is not None and file_name(newest.path) != file_name(path):
        raise SpecError(
            f"{path} is not the newest metadata file of its table: {newest.path} was written later, at "
            f"{format_utc(newest.modified_ms)}, so the commits between them would be missing. Nothing was registered. "
            f"Register the newest file: `{registration_command(catalog.name, table, newest.path)}`; or add --older to "
            "go back to the older state"
        )


def check_no_other_name(catalog: Catalog, table: str, metadata: TableMetadata) -> None:
    """Raise SpecError if the table has another name in the namespaces of `table` and of its folder."""
    name = find_other_name(catalog, table, location=metadata.location, uuid=str(metadata.table_uuid))
    if name is not None:
        raise SpecError(
            f"the catalog {catalog.name!r} already has the table in {metadata.location} under the name {name}. Under "
            "two names, commits under one name would be missing under the other. Nothing was registered. To change the "
            f"name to {table}, rename {name}"
        )
