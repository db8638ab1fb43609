"""Describes a table as staging needs it, and names the objects that frazil stores for each table."""

from __future__ import annotations

from urllib.parse import quote, unquote

from pyiceberg.table import Table, TableProperties

from frazil.commit.marker import PROPERTY_PREFIX
from frazil.ingest.contract import Target, TargetTable
from frazil.table.object_store import ObjectStore, file_io_properties

TARGET_FILE_BYTES = 512 * 2**20


def target_table(table: Table, *, folder: str) -> TargetTable:
    """Describe the table to the tasks that write its files. Omits the streams' markers."""
    metadata = table.metadata
    return TargetTable(
        schema_json=metadata.schema().model_dump_json(),
        spec_json=metadata.spec().model_dump_json(),
        sort_order_json=metadata.sort_order().model_dump_json(),
        properties={k: v for k, v in metadata.properties.items() if not k.startswith(PROPERTY_PREFIX)},
        folder=folder,
        target_file_bytes=target_file_bytes(table),
        io=file_io_properties(table.io.properties),
        format_version=metadata.format_version,
    )


def target_file_bytes(table: Table) -> int:
    return int(table.metadata.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TARGET_FILE_BYTES))


_SUFFIX = ".json"


def object_path(folder: str, target: Target) -> str:
    return f"{folder}/{quote(target, safe='')}{_SUFFIX}"


def list_targets(store: ObjectStore, folder: str) -> set[Target]:
    names = (file.path.rsplit("/", 1)[-1] for file in store.list_files(folder))
    return {unquote(name.removesuffix(_SUFFIX)) for name in names}
