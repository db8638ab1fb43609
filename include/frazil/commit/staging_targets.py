"""Describes a table as staging needs it, and names the objects that frazil stores for each table."""

from __future__ import annotations

import logging
from functools import cache
from urllib.parse import quote, unquote

from pyiceberg.table import Table, TableProperties

from frazil.commit.marker import PROPERTY_PREFIX
from frazil.ingest.contract import Target, TargetTable
from frazil.spec.property_rules import find_integer_problem
from frazil.table.declared_tables import table_identifier
from frazil.table.object_store import ObjectStore, file_io_properties

log = logging.getLogger(__name__)
_warn_once = cache(log.warning)
"""Logs a warning once per process, because each batch reads the properties again."""


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
    return read_size(table, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default=512 * 2**20)


def read_size(table: Table, key: str, *, default: int) -> int:
    """Return a positive property of the table, or the default if another engine has set an invalid value."""
    text = table.metadata.properties.get(key, str(default))
    if problem := find_integer_problem(text, 1):
        invalid = f"table {table_identifier(table)}: property {key}: {text!r} {problem}"
        _warn_once(f"{invalid}, so frazil uses {default:,}. Set or remove the property")
        return default
    return int(text)


_SUFFIX = ".json"


def object_path(folder: str, target: Target) -> str:
    return f"{folder}/{quote(target, safe='')}{_SUFFIX}"


def list_targets(store: ObjectStore, folder: str) -> set[Target]:
    names = (file.path.rsplit("/", 1)[-1] for file in store.list_files(folder))
    return {unquote(name.removesuffix(_SUFFIX)) for name in names}
