"""Encodes an event's position in its source's log as a string. Later positions in one log sort higher.

The string ends with the event's time and server. Time and server show whether a new log has begun, because of another
server, a restored server, or `RESET MASTER`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.types import IcebergType, LongType, StringType

POSITIONS: Mapping[str, IcebergType] = {
    name: StringType() if name == "file" else LongType() for name in ("lsn", "file", "pos", "row", "ts_ms", "server_id")
}
"""Fields of `source` for an event's position in PostgreSQL's or MySQL's log, its time, and its server."""
MIN_NEW_LOG_GAP_MS = 3_600_000
"""Minimum time (ms) after which a lower position means a new log. A single statement takes less."""
_TIME_DIGITS = 13
_DIGITS = 20
_POSITION_PATTERN = (
    r"^(?:(?P<name>.*?)(?:\.[a-d]?[0-9]+)?/[0-9]+/[0-9]+|[0-9]+)"
    rf"@(?P<ms>[0-9]{{{_TIME_DIGITS}}})(?:#(?P<server>[0-9]{{1,18}}))?$"
)
_POSITION_REGEX = re.compile(_POSITION_PATTERN)


class PositionLogs(NamedTuple):
    """Times (ms since 1970) and logs of several positions. Unknown times are 0; unknown strings are empty."""

    ms: NDArray[np.int64]
    name: pa.Array
    """The common name of the binlog files, without their number."""
    server: pa.Array


def encode_positions(source: Mapping[str, pa.Array]) -> pa.Array:
    """Encode each event's position from the fields of `POSITIONS`; null for an event without a position."""
    lsn, file, pos, row, time, server = (source[field] for field in POSITIONS)
    name = _to_sortable(file.cast(pa.string()))
    of_log = pc.binary_join_element_wise(name, _pad(pos), pc.fill_null(_pad(row), "0" * _DIGITS), "/")
    position = pc.if_else(lsn.is_valid(), _pad(lsn), of_log)
    ms = pc.utf8_lpad(_to_integers(time).cast(pa.string()), _TIME_DIGITS, "0")
    of_time = pc.coalesce(pc.binary_join_element_wise(position, ms, "@"), position)
    server = _to_integers(server)
    server_text = pc.if_else(pc.greater(server, 0), server, None).cast(pa.string())  # snapshot rows have server 0
    return pc.coalesce(pc.binary_join_element_wise(of_time, pc.if_else(ms.is_valid(), server_text, None), "#"), of_time)


def newer_log_mask(new: pa.Array, old: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of positions in a newer log: much later than `old`, or later with another server or binlog name."""
    first, other = parse_logs(new), parse_logs(old)
    moved = _differ_mask(first.name, other.name) | _differ_mask(first.server, other.server)
    newer: NDArray[np.bool_] = (other.ms > 0) & (first.ms >= other.ms + np.where(moved, 1, MIN_NEW_LOG_GAP_MS))
    return newer


def is_after(first: str | None, other: str | None) -> bool:
    """Return whether `first` comes after `other` in the same log, or is in a newer log; False if either is None."""
    if first is None or other is None:
        return False
    if first > other:
        return True
    new, old = _POSITION_REGEX.match(first), _POSITION_REGEX.match(other)
    if new is None or old is None:
        return False
    moved = any(new[part] and old[part] and new[part] != old[part] for part in ("name", "server"))
    return int(new["ms"]) >= int(old["ms"]) + (1 if moved else MIN_NEW_LOG_GAP_MS)


def is_before(first: str | None, other: str | None) -> bool:
    return first is not None and other is not None and first != other and not is_after(first, other)


def parse_logs(texts: pa.Array) -> PositionLogs:
    parts = pc.extract_regex(texts.cast(pa.string()), _POSITION_PATTERN)
    name, ms, server = (pc.fill_null(pc.struct_field(parts, part), "") for part in ("name", "ms", "server"))
    milliseconds = pc.if_else(pc.equal(ms, ""), "0", ms).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return PositionLogs(milliseconds, name, server)


def _differ_mask(first: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    has_both = pc.and_(pc.not_equal(first, ""), pc.not_equal(other, ""))
    differ: NDArray[np.bool_] = pc.and_(has_both, pc.not_equal(first, other)).to_numpy(zero_copy_only=False)
    return differ


def _to_sortable(file: pa.Array) -> pa.Array:
    """Convert binlog file names to strings that sort in log order; null for an empty or invalid name.

    Numbers of seven or more digits get a letter, so that they sort last. Shorter numbers in existing tables have no
    letter.
    """
    is_name = pc.and_(pc.not_equal(file, ""), pc.less_equal(pc.utf8_length(file), 255))
    file = pc.if_else(is_name, file, None)
    for letter, digits in zip("abcd", (7, 8, 9, 10), strict=True):  # up to 2**31; six digits are padded
        file = pc.replace_substring_regex(file, rf"\.([0-9]{{{digits}}})$", rf".{letter}\1")
    return file


def _to_integers(numbers: pa.Array) -> pa.Array:
    """Return integers and timestamps (ms) as int64; null for negative values and other types."""
    if pa.types.is_timestamp(numbers.type):
        numbers = pc.floor_temporal(numbers, unit="millisecond").cast(pa.timestamp("ms", numbers.type.tz))
        numbers = numbers.cast(pa.int64())
    if not pa.types.is_integer(numbers.type):
        return pa.nulls(len(numbers), pa.int64())
    return pc.if_else(pc.greater_equal(numbers, 0), numbers, None)


def _pad(numbers: pa.Array) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), _DIGITS, "0")
