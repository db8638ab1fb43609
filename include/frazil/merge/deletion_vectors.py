"""Writes and reads deletion vectors: Puffin files with 64-bit Roaring bitmaps of the positions of deleted rows."""

from __future__ import annotations

import json
import zlib

import numpy as np
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile
from pyroaring import BitMap64

from frazil.merge.changes import Numbers

PUFFIN_SUFFIX = ".puffin"
PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""Field ids from the Iceberg specification, "Reserved Field IDs"."""
VECTOR_OFFSET = len(MAGIC_BYTES)
"""Offset of the vector in a file that has one vector."""
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def encode_vector(data_file: str, positions: Numbers) -> tuple[bytes, dict[int, int]]:
    """Return a Puffin file with the vector of one data file, and the vector's size as
    `column_sizes`.
    """
    vector = _VECTOR_MAGIC + BitMap64(positions.tolist()).serialize()
    blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
    described = {
        "type": "deletion-vector-v1",
        "fields": [POSITION_ID],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": VECTOR_OFFSET,
        "length": len(blob),
        "properties": {"referenced-data-file": data_file, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [described], "properties": {"created-by": "frazil"}}).encode()
    end = len(footer).to_bytes(4, "little") + bytes(4) + MAGIC_BYTES
    return MAGIC_BYTES + blob + MAGIC_BYTES + footer + end, {POSITION_ID: len(blob)}


def read_vectors(file: bytes) -> dict[str, Numbers]:
    """Return the sorted positions in a Puffin file's vectors, by data file."""
    vectors = deletion_vectors_from_puffin_file(PuffinFile(file))
    return {vector.referenced_data_file: vector.to_vector().to_numpy().astype(np.int64) for vector in vectors}
