"""Functions for Arrow arrays of every type. Arrow's own functions reject some types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def to_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a boolean array as a NumPy mask, in which null is false."""
    found: NDArray[np.bool_] = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def select_where(mask: NDArray[np.bool_], first: pa.Array, second: pa.Array) -> pa.Array:
    places = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([first, second.cast(first.type)]).take(pa.array(places))


def unwrap_extension(array: pa.Array) -> pa.Array:
    """Return the storage of an extension array (the bytes of UUIDs); return any other array unchanged."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, also for extension types."""
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return an Arrow table without rows. Arrow's own `empty_table` raises for UUIDs in lists, maps and structs."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
