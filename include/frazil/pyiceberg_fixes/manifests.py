"""Makes PyIceberg read the doubles of manifests in full, in a process that imports this module.

The decoder of PyIceberg 0.12 gives them the precision of a float: 0.1 is read as 0.10000000149011612, and 1e300 as
infinity. Scans, merges and delete files find a file by the partition values that are read, and a manifest that is
written again has them.
"""

from __future__ import annotations

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    found: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
    return found


DoubleReader.read = _read  # type: ignore[method-assign, assignment]
