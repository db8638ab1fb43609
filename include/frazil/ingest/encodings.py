"""Chooses the encoding of each column of a Parquet file from the file's first rows. A table property enables encodings
v2 (DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT), which not all readers support.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MAX_SAMPLED_ROWS = 8_192
"""Maximum number of sampled rows, and of sampled elements, keys and values of lists and maps."""
MAX_BATCH_VALUES, MAX_BATCH_BYTES = 1_024, 2**20
"""Maximum number and bytes of values that Parquet's writer encodes before it checks whether a page is full."""
MINIBLOCK_VALUES = 32
"""Number of values of DELTA_BINARY_PACKED with the same bit width. Four miniblocks form a block."""
PACKED_INDICES = 8
"""Number of different indices that a dictionary page packs together (Parquet's RLE/bit-packing hybrid)."""
DELTA, SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"


@dataclass(frozen=True, slots=True)
class Encodings:
    """Arguments for `pyarrow.parquet.ParquetWriter`. Columns are named by their path."""

    use_dictionary: list[str]
    column_encoding: dict[str, str]
    batch_values: int = MAX_BATCH_VALUES


def choose_encodings(rows: pa.Table, *, modern: bool) -> Encodings:
    """Choose encodings for a file that begins with these rows. `modern` allows encodings of v2.

    Numbers and times get a dictionary only if that is smaller than the other encodings. Other columns get a dictionary,
    which Parquet's writer abandons if it grows too large.
    """
    use_dictionary: list[str] = []
    column_encoding: dict[str, str] = {}
    widest = 1.0
    sample = rows.slice(0, MAX_SAMPLED_ROWS)
    for field, column in zip(sample.schema, sample.columns, strict=True):
        # Text chunks are not combined, because they may be large.
        leaves = [(field.name, column)] if _is_text(field.type) else _leaves(field.name, column.combine_chunks())
        for path, values in leaves:
            other = None
            if _is_text(values.type):
                widest = max(widest, values.nbytes / max(len(values), 1))
            else:
                other = _better_encoding(values[:MAX_SAMPLED_ROWS])
            if other is None:
                use_dictionary.append(path)
            elif modern:
                column_encoding[path] = other
    return Encodings(use_dictionary, column_encoding, max(1, min(MAX_BATCH_VALUES, int(MAX_BATCH_BYTES / widest))))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    kind: Any = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from _leaves(path, array.storage)
    elif pa.types.is_struct(kind):
        for part, values in zip(kind, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{part.name}", values)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.{kind.key_field.name}", array.keys)
        yield from _leaves(f"{path}.key_value.{kind.item_field.name}", array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = array.values[array.offsets[0].as_py() : array.offsets[-1].as_py()]  # Arrow cannot flatten some UUIDs
        yield from _leaves(f"{path}.list.{kind.value_field.name}", values)
    else:
        yield path, array


def _better_encoding(array: pa.Array) -> str | None:
    """Return an encoding that needs fewer bits than a dictionary, or None."""
    kind: Any = array.type
    real = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (real or pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return None
    words = array.drop_null().view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy()
    if len(words) < 2:
        return None
    dictionary = _dictionary_bits(words)
    if real:  # so encoded, values compress to about half
        return SPLIT if dictionary > kind.bit_width / 2 else None
    return DELTA if dictionary > _delta_bits(words) else None


def _dictionary_bits(words: NDArray[Any]) -> float:
    """Estimate the bits per value with a dictionary. Assumes that runs of equal values take no space."""
    half = len(words) // 2
    before, distinct = (int(pc.count_distinct(pa.array(some)).as_py()) for some in (words[:half], words))
    changes = int(np.count_nonzero(words[1:] != words[:-1]))
    indices: float = (distinct - 1).bit_length() * min(1.0, PACKED_INDICES * changes / len(words))
    return indices + 8.0 * words.itemsize * (distinct - before) / (len(words) - half)


def _delta_bits(words: NDArray[Any]) -> float:
    # Differences wrap around, as in Parquet. Their distances from the minimum may wrap around too; they are unsigned.
    differences = np.diff(words)
    blocks = len(differences) // (4 * MINIBLOCK_VALUES)
    if blocks == 0:
        above = (differences - differences.min()).view(f"u{words.itemsize}")
        return int(above.max()).bit_length()
    table = differences[: blocks * 4 * MINIBLOCK_VALUES].reshape(blocks, 4 * MINIBLOCK_VALUES)
    above = (table - table.min(axis=1, keepdims=True)).view(f"u{words.itemsize}")
    greatest = above.reshape(-1, MINIBLOCK_VALUES).max(axis=1)
    return float(np.mean(np.ceil(np.log2(greatest.astype(np.float64) + 1))))
