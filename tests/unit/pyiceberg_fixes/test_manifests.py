"""Partition values of manifests are read in full."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.reader import DoubleReader

import frazil.pyiceberg_fixes  # noqa: F401


@given(st.floats())
@pytest.mark.parametrize("more", [b"", b"\x02"])
def test_a_double_is_read_to_its_last_bit(more: bytes, value: float) -> None:
    decoder = new_decoder(struct.pack("<d", value) + more)

    assert struct.pack("<d", DoubleReader().read(decoder)) == struct.pack("<d", value)
    assert decoder.tell() == struct.calcsize("<d")


def test_the_largest_double_is_no_infinity() -> None:
    assert DoubleReader().read(new_decoder(struct.pack("<d", sys.float_info.max))) == sys.float_info.max
