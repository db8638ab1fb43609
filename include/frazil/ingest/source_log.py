"""Where an event lies in the log of its source, as a text that is greater for a later event of the same log.

The text ends with the time at which the source made the change. It tells a log that began anew (another server, a
restored one, `RESET MASTER`), where positions are lower and times later, from an event that a connector sends again,
which has the time that it had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.types import IcebergType, LongType, StringType

POSITIONS: Mapping[str, IcebergType] = {
    "lsn": LongType(),
    "file": StringType(),
    "pos": LongType(),
    "row": LongType(),
    "ts_ms": LongType(),
}
"""The fields of `source` that tell an event's place in the log of PostgreSQL, or of MySQL, and its time."""
_TIME_DIGITS = 13
_TIME = re.compile(rf"@(\d{{{_TIME_DIGITS}}})$")
_LONG_NUMBERS = (7, 8, 9, 10)
"""Digits of a binlog's number beyond the six to which MySQL and MariaDB pad it; it ends at 2**31."""


def positions(lsn: pa.Array, file: pa.Array, pos: pa.Array, row: pa.Array, time: pa.Array) -> pa.Array:
    """A text for each event; null for one that tells no position, such as those of an incremental snapshot."""
    name = _in_order(file.cast(pa.string()))
    of_log = pc.binary_join_element_wise(name, _padded(pos), _padded(pc.fill_null(row, 0)), "/")
    at = pc.if_else(lsn.is_valid(), _padded(lsn), of_log)
    ms = pc.utf8_lpad(_milliseconds(time).cast(pa.string()), _TIME_DIGITS, "0")
    return pc.coalesce(pc.binary_join_element_wise(at, ms, "@"), at)


def began_anew(new: pa.Array, old: pa.Array) -> NDArray[np.bool_]:
    """Where the source made the first change later than the second one, as far as both positions tell their times."""
    found: NDArray[np.bool_] = (times(new) > times(old)) & (times(old) > 0)
    return found


def is_after(one: str | None, other: str | None) -> bool:
    """Whether the first position lies behind the second one in the same log, or in one that began anew since."""
    if one is None or other is None:
        return False
    new, old = _TIME.search(one), _TIME.search(other)
    return one > other or (new is not None and old is not None and new[1] > old[1])


def is_before(one: str | None, other: str | None) -> bool:
    """Whether the first position lies before the second one in the same log."""
    return one is not None and other is not None and one != other and not is_after(one, other)


def times(places: pa.Array) -> NDArray[np.int64]:
    """The milliseconds since 1970 at the end of positions; 0 where there are none."""
    found = pc.struct_field(pc.extract_regex(places.cast(pa.string()), f"@(?P<ms>[0-9]{{{_TIME_DIGITS}}})$"), "ms")
    milliseconds: NDArray[np.int64] = pc.fill_null(found.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return milliseconds


def _in_order(file: pa.Array) -> pa.Array:
    """Names of binlogs as texts in their order; null for an empty one.

    A letter before a number of seven digits or more sorts it behind the shorter ones, which stay as they are: tables
    have them.
    """
    file = pc.if_else(pc.equal(file, ""), None, file)
    for letter, digits in zip("abcd", _LONG_NUMBERS, strict=True):
        file = pc.replace_substring_regex(file, rf"\.([0-9]{{{digits}}})$", rf".{letter}\1")
    return file


def _milliseconds(time: pa.Array) -> pa.Array:
    """Of a field that a column may read as well, with a type of its own."""
    if pa.types.is_timestamp(time.type):
        time = pc.floor_temporal(time, unit="millisecond").cast(pa.timestamp("ms", time.type.tz)).cast(pa.int64())
    if not pa.types.is_integer(time.type):
        return pa.nulls(len(time), pa.int64())
    return pc.if_else(pc.greater_equal(time, 0), time, None)


def _padded(numbers: pa.Array) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), 20, "0")
