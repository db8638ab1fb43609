"""Creates empty tables."""

from __future__ import annotations

import pyarrow as pa


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. Arrow's own `empty_table` raises for UUIDs inside lists, maps and structs."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
