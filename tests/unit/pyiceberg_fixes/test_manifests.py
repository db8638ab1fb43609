"""Partition values of manifests are read in full."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.manifest import PartitionFieldStats
from pyiceberg.types import DoubleType

import frazil.pyiceberg_fixes  # noqa: F401


@given(st.floats())
@pytest.mark.parametrize("more", [b"", b"\x02"])
def test_a_double_is_read_to_its_last_bit(more: bytes, value: float) -> None:
    decoder = new_decoder(struct.pack("<d", value) + more)

    assert struct.pack("<d", DoubleReader().read(decoder)) == struct.pack("<d", value)
    assert decoder.tell() == struct.calcsize("<d")


def test_the_largest_double_is_no_infinity() -> None:
    assert DoubleReader().read(new_decoder(struct.pack("<d", sys.float_info.max))) == sys.float_info.max


@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0), (-0.0, float("nan"), 0.0, None)])
def test_bounds_of_partitions_tell_the_two_zeros_apart(values: tuple[float | None, ...]) -> None:
    """See apache/doris#5226. Iceberg orders -0.0 before 0.0."""
    stats = PartitionFieldStats(DoubleType())
    for value in values:
        stats.update(value)

    summary = stats.to_summary()

    assert (summary.lower_bound, summary.upper_bound) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))
