"""Patches values that PyIceberg reads or writes wrongly, in each process that imports this package.

PyIceberg 0.12 decodes doubles in manifests with the precision of a float: 0.1 becomes 0.10000000149011612, and 1e300
becomes infinity. Scans, merges and delete files would miss files with such partition values, and rewritten manifests
would store the wrong values. `data_files` also patches the values of data files.
"""

from __future__ import annotations

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader

import frazil.pyiceberg_fixes.version_3  # noqa: F401 - patches tables of format version 3


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    found: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
    return found


DoubleReader.read = _read  # type: ignore[method-assign, assignment]
