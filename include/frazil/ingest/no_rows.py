"""Makes tables without rows, of any type."""

from __future__ import annotations

import pyarrow as pa


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table. Arrow's `empty_table` raises for UUIDs in lists, maps and structs."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
