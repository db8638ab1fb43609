"""Chooses how a Parquet file encodes each column, from its first rows.

Parquet has two generations of encodings. Every reader supports dictionaries and plain values (v1). Delta
(DELTA_BINARY_PACKED) and split bytes (BYTE_STREAM_SPLIT) are v2: some readers do not support them, so a table property
allows them. Figures are in docs/explanation/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

SAMPLED_ROWS = 8_192
"""Rows sampled; also the limit of sampled elements, keys and values of lists and maps."""
BATCH_VALUES, BATCH_BYTES = 1_024, 2**20
"""Values and bytes that Parquet's writer encodes before it checks whether a page is full.

Its default of 1,024 values makes a page of 100 MB from values of 100 KB, which takes three times that memory.
"""
MINIBLOCK = 32
"""Values of DELTA_BINARY_PACKED that share a bit width; four miniblocks share a minimum."""
RUN = 8
"""Indices that a dictionary page packs together unless all are equal (Parquet's RLE/bit-packing hybrid)."""
DELTA, SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"


@dataclass(frozen=True, slots=True)
class Encodings:
    """Arguments of `pyarrow.parquet.ParquetWriter`: encodings by column path."""

    use_dictionary: list[str]
    column_encoding: dict[str, str]
    batch_values: int = BATCH_VALUES


def choose(rows: pa.Table, *, modern: bool) -> Encodings:
    """Choose encodings for these rows; `modern` allows those of v2.

    A number or time column gets a dictionary only if that is smaller. All other columns always get one, and Parquet's
    writer abandons it if it grows too large.
    """
    use_dictionary: list[str] = []
    column_encoding: dict[str, str] = {}
    widest = 1.0
    sample = rows.slice(0, SAMPLED_ROWS)
    for field, column in zip(sample.schema, sample.columns, strict=True):
        # Texts are not copied into one piece: they may be large.
        leaves = [(field.name, column)] if _is_text(field.type) else _leaves(field.name, column.combine_chunks())
        for path, values in leaves:
            other = None
            if _is_text(values.type):
                widest = max(widest, values.nbytes / max(len(values), 1))
            else:
                other = _instead_of_a_dictionary(values[:SAMPLED_ROWS])
            if other is None:
                use_dictionary.append(path)
            elif modern:
                column_encoding[path] = other
    return Encodings(use_dictionary, column_encoding, max(1, min(BATCH_VALUES, int(BATCH_BYTES / widest))))


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are strings or bytes of any length."""
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
        values = array.values[array.offsets[0].as_py() : array.offsets[-1].as_py()]  # Arrow cannot flatten all UUIDs
        yield from _leaves(f"{path}.list.{kind.value_field.name}", values)
    else:
        yield path, array


def _instead_of_a_dictionary(array: pa.Array) -> str | None:
    """The encoding that takes fewer bits than a dictionary; None if a dictionary is best or nothing is known."""
    kind: Any = array.type
    real = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (real or pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return None
    words = array.drop_null().view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy()
    if len(words) < 2:
        return None
    dictionary = _dictionary_bits(words)
    if real:  # split bytes compress to about half
        return SPLIT if dictionary > kind.bit_width / 2 else None
    return DELTA if dictionary > _delta_bits(words) else None


def _dictionary_bits(words: NDArray[Any]) -> float:
    """Bits per value with a dictionary: indices of one width, where runs are free, plus each distinct value once."""
    half = len(words) // 2
    before, distinct = (int(pc.count_distinct(pa.array(some)).as_py()) for some in (words[:half], words))
    changes = int(np.count_nonzero(words[1:] != words[:-1]))
    indices: float = (distinct - 1).bit_length() * min(1.0, RUN * changes / len(words))
    return indices + 8.0 * words.itemsize * (distinct - before) / (len(words) - half)


def _delta_bits(words: NDArray[Any]) -> float:
    """Bits per value with deltas: each miniblock has the width of its largest difference above the block's minimum."""
    # Differences wrap around as Parquet's do, and so may their distance from the minimum, which is unsigned.
    differences = np.diff(words)
    blocks = len(differences) // (4 * MINIBLOCK)
    if blocks == 0:
        above = (differences - differences.min()).view(f"u{words.itemsize}")
        return int(above.max()).bit_length()
    table = differences[: blocks * 4 * MINIBLOCK].reshape(blocks, 4 * MINIBLOCK)
    above = (table - table.min(axis=1, keepdims=True)).view(f"u{words.itemsize}")
    greatest = above.reshape(-1, MINIBLOCK).max(axis=1)
    return float(np.mean(np.ceil(np.log2(greatest.astype(np.float64) + 1))))
