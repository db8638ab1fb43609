"""Functions of Arrow arrays for every type, including those that Arrow's own refuse."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def true_where(array: pa.Array) -> NDArray[np.bool_]:
    """The mask of true values; null counts as false."""
    found: NDArray[np.bool_] = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def chosen(mask: NDArray[np.bool_], first: pa.Array, second: pa.Array) -> pa.Array:
    """The first value where the mask is true, else the second."""
    places = np.where(mask, np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([first, second.cast(first.type)]).take(pa.array(places))


def plain(array: pa.Array) -> pa.Array:
    """The array, of UUIDs their bytes."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array
