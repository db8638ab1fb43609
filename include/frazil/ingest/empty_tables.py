"""Creates Arrow tables without rows."""

from __future__ import annotations

import pyarrow as pa


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return an Arrow table without rows. Arrow's own `empty_table` raises for UUIDs in lists, maps and structs."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
