"""Describes a table as staging needs it to write files, and names the objects that frazil stores for each table."""

from __future__ import annotations

from urllib.parse import quote, unquote

from pyiceberg.table import Table, TableProperties

from frazil.commit.marker import PROPERTY_PREFIX
from frazil.ingest.contract import Target, TargetTable
from frazil.table.object_store import ObjectStore, file_io_properties

TARGET_FILE_BYTES = 512 * 2**20
"""Iceberg's default of `write.target-file-size-bytes`."""


def target_table(table: Table, *, folder: str) -> TargetTable:
    """Return the description that is needed to write files for the table. It does not contain the streams' markers."""
    metadata = table.metadata
    return TargetTable(
        schema_json=metadata.schema().model_dump_json(),
        spec_json=metadata.spec().model_dump_json(),
        sort_order_json=metadata.sort_order().model_dump_json(),
        properties={k: v for k, v in metadata.properties.items() if not k.startswith(PROPERTY_PREFIX)},
        folder=folder,
        target_file_bytes=target_file_bytes(table),
        io=file_io_properties(table.io.properties),
    )


def target_file_bytes(table: Table) -> int:
    """Return the target size (bytes) of the table's files, or Iceberg's default."""
    return int(table.metadata.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TARGET_FILE_BYTES))


_SUFFIX = ".json"


def object_path(folder: str, target: Target) -> str:
    """Return the path of the JSON object that belongs to a table, in a folder with one object per table."""
    return f"{folder}/{quote(target, safe='')}{_SUFFIX}"


def list_targets(store: ObjectStore, folder: str) -> set[Target]:
    """Return the tables that have an object in a folder. Needs one listing for any number of tables."""
    names = (file.path.rsplit("/", 1)[-1] for file in store.list_files(folder))
    return {unquote(name.removesuffix(_SUFFIX)) for name in names}
