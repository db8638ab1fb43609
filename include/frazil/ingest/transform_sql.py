"""The DuckDB connection that runs transforms, the queries of a transform, and the names of their result types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from frazil.extras import report_missing_extras
from frazil.ingest.contract import Transform

ROW, KEEP, UNNESTED = "_frazil_row", "_frazil_keep", "_frazil_unnested_"
"""Names that a transform's queries add to the fields of `records`."""
MEMORY_LIMIT = "512MB"
"""DuckDB's memory limit in a task. A chunk takes about a tenth of this."""


def open_connection() -> Any:
    """Return a DuckDB connection with one thread, limited memory, and no access to files or the network.

    The optimizer is off, because it may reorder expressions. Raises MissingExtra.
    """
    with report_missing_extras():
        import duckdb  # only a stream with a transform needs it

    connection = duckdb.connect(
        ":memory:",
        config={
            "allow_community_extensions": False,
            "arrow_large_buffer_size": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_external_access": False,
            "memory_limit": MEMORY_LIMIT,
            "threads": 1,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def select_query(transform: Transform, columns: Sequence[str], *, source: str) -> str:
    """Return a query that selects `columns` from `source`, which gets the transform's alias."""
    return f"SELECT {', '.join(columns)} FROM ({source}) AS {quote_name(transform.alias)}"


def try_expression(expression: str) -> str:
    """Return an SQL expression that is null exactly if `expression` fails."""
    return f"TRY(struct_pack(v := {expression}))"


def kept_records_query(transform: Transform) -> str:
    """Return a query for records that meet all conditions. Evaluation stops at the first false or null condition."""
    if not transform.where:
        return "SELECT * FROM records"
    condition = where_condition(transform)
    return f"SELECT * FROM (SELECT *, {condition} AS {KEEP} FROM records AS {quote_name(transform.alias)}) WHERE {KEEP}"


def where_condition(transform: Transform) -> str:
    condition = "true"
    for text in reversed(transform.where):
        condition = f"CASE WHEN {text} THEN {condition} ELSE false END"
    return condition


def unnest_query(transform: Transform, source: str) -> str:
    lists = [f"unnest({text}) AS {UNNESTED}{n}" for n, text in enumerate(transform.unnested)]
    return select_query(transform, ["*", *lists], source=source) if lists else source


def full_query(transform: Transform) -> str:
    """Return the query for all rows and columns. `_frazil_row` is the number of a row's record."""
    columns = [ROW, *(f"{column.expression} AS {quote_name(column.name)}" for column in transform.columns)]
    return select_query(transform, columns, source=unnest_query(transform, kept_records_query(transform)))


_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
}


def type_text(kind: pa.DataType) -> str:  # noqa: PLR0911 - a case for each kind of type
    """Return an Arrow type in Iceberg's notation, or else Arrow's name. `fixed` becomes `binary`, as in DuckDB."""
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in fields)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    return str(kind)
