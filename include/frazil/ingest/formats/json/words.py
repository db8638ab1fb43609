"""Writes values as 64-bit words to the memory of columns, and copies strings to Arrow's buffers, in compiled code.

The value of node k at entry e is at `words[base[k] + width * e]`; `valid[flag[k] + e]` is 0 for a null. The entries
are numbered within the node's entry set: all rows, or all elements of one list or map column (see `nodes`).

- a number, date, time or boolean: one word; a double is stored as its bits
- a string or bytes: start and length; a start of -1 - x means position x in `text` instead of the records
- a decimal or UUID: two words in Arrow's order
- a list or map: the index after its last element, in the entry set of the elements
"""

# ruff: noqa: PLR0911, PLR0913, PLR0917, PLR1714 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from frazil.ingest.compiled import memcpy
from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scalars import (
    INVALID_DATE,
    parse_date,
    parse_decimal,
    parse_integer,
    parse_seconds,
    parse_time,
    parse_timestamp,
)
from frazil.ingest.formats.json.scan import HEX, NO, Octets, literal_end, loop, unescape

_base64 = np.full(256, -1, np.int64)
for _value, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _base64[_letter] = _value
BASE64 = _base64
MIN_MEMCPY_BYTES = 32
_MAX_PAIRED_KEYS = 16
"""Maximum number of a map's keys that are compared in pairs to find duplicates. Larger maps use a hash table."""

# Columns of the table of entry sets. The last row is not an entry set: it counts the bytes in `text`.
USED, ROOM, BEFORE = range(3)
"""Columns of `entry_counts`: entries in use, allocated entries, and entries before the current record."""


class Memory(NamedTuple):
    """The arrays of columns that the loops of Avro and Protobuf fill."""

    nodes: Numbers
    words: Numbers
    valid: Octets
    entry_counts: Numbers


@loop
def read_word(b: Octets, p: int, kind: int) -> tuple[int, int]:
    """Read a boolean, date, time or epoch number. Returns the position after it (or NO), and its word."""
    if kind == tree.BOOLEAN:
        return (literal_end(b, p) if b[p] == 116 or b[p] == 102 else NO), 1 if b[p] == 116 else 0
    if kind == tree.SECONDS:
        text = b[p] == 34
        p, value = parse_seconds(b, p + text)
        if p < 0 or not text:
            return p, value
        return p + 1 if b[p] == 34 else NO, value
    if kind >= tree.MILLISECONDS:
        p, value = parse_integer(b, p)
        if kind == tree.MILLISECONDS:
            return p if -(2**63 // 1000) <= value <= 2**63 // 1000 else NO, value * 1000
        if kind == tree.NANOSECONDS:
            return p, value // 1000
        return p, value
    if b[p] != 34:
        return NO, 0
    if kind == tree.DATE:
        value = parse_date(b, p + 1)
        if value == INVALID_DATE:
            return NO, value
        p += 11
        p += b[p] == 90
        return p + 1 if b[p] == 34 else NO, value
    p, value = parse_time(b, p + 1)
    p += p >= 0 and b[p] == 90
    return p + 1 if p >= 0 and b[p] == 34 else NO, value


@loop
def write_value(b: Octets, p: int, kind: int, precision: int, scale: int, at: int, words: Numbers) -> int:
    """Read a value that is not a string or bytes, and write its words. Returns the position after it, or NO."""
    if kind == tree.TIMESTAMP:
        if b[p] != 34:
            return NO
        p, words[at] = parse_timestamp(b, p + 1)
        return p + 1 if p >= 0 and b[p] == 34 else NO
    if kind == tree.DECIMAL or kind == tree.UUID:
        return write_two_words(b, p, kind, precision, scale, at, words)
    p, words[at] = read_word(b, p, kind)
    return p


@loop
def write_two_words(b: Octets, p: int, kind: int, precision: int, scale: int, at: int, words: Numbers) -> int:
    """Read a decimal or UUID, and write its two words. Returns the position after it, or NO."""
    text = b[p] == 34
    if kind == tree.DECIMAL:
        p, high, low = parse_decimal(b, p + text, precision, scale, text)
        words[at] = np.int64(low)
        words[at + 1] = np.int64(high)
        if p < 0 or not text:
            return p
        return p + 1 if b[p] == 34 else NO
    if not text:
        return NO
    p = parse_uuid(b, p + 1, len(b), at, words)
    return p + 1 if p >= 0 and b[p] == 34 else NO


@loop
def parse_uuid(b: Octets, p: int, end: int, at: int, words: Numbers) -> int:
    """Write 32 hexadecimal digits, with hyphens anywhere, as the two words of a UUID.

    The UUID's first byte is the lowest byte of the first word. Returns the position after the digits, or NO.
    """
    digits = 0
    words[at] = 0
    words[at + 1] = 0
    while p < end and (b[p] == 45 or HEX[b[p]] >= 0):
        if b[p] != 45:
            if digits == 32:
                return NO
            words[at + digits // 16] |= HEX[b[p]] << (digits % 16 // 2 * 8 + (4 if digits % 2 == 0 else 0))
            digits += 1
        p += 1
    return p if digits == 32 else NO


@loop
def write_string(
    b: Octets, p: int, end: int, is_escaped: bool, at: int, words: Numbers, text: Octets, entry_counts: Numbers
) -> bool:
    """Write the start and length of a string to `words`. Returns False if `text` is full.

    An escaped string is first unescaped into `text`.
    """
    if not is_escaped:
        words[at] = p
        words[at + 1] = end - p
        return True
    last = len(entry_counts) - 1
    used = entry_counts[last, USED]
    if used + end - p > entry_counts[last, ROOM]:
        return False
    after = unescape(b, p, end, text, used)
    words[at] = -1 - used
    words[at + 1] = after - used
    entry_counts[last, USED] = after
    return True


@loop
def write_decoded_base64(
    b: Octets, p: int, end: int, is_escaped: bool, at: int, words: Numbers, text: Octets, entry_counts: Numbers
) -> bool:
    """Decode base64, which may have escapes, into `text`; length -1 if invalid. Returns False if `text` is full."""
    last = len(entry_counts) - 1
    used = entry_counts[last, USED]
    if used + end - p > entry_counts[last, ROOM]:
        return False
    if is_escaped:
        length = _decode_base64(text, used, unescape(b, p, end, text, used), text, used)
    else:
        length = _decode_base64(b, p, end, text, used)
    words[at] = -1 - used
    words[at + 1] = length
    entry_counts[last, USED] = used + max(length, 0)
    return True


@loop
def _decode_base64(b: Octets, p: int, end: int, to: Octets, at: int) -> int:
    """Decode padded base64 into `to`, which may overlap the input. Returns the number of bytes; -1 if invalid."""
    if (end - p) % 4:
        return -1
    first = at
    while p < end:
        padding = 0
        if p + 4 == end:
            padding = 2 if b[p + 2] == 61 and b[p + 3] == 61 else 1 if b[p + 3] == 61 else 0
        one, two = BASE64[b[p]], BASE64[b[p + 1]]
        three = 0 if padding == 2 else BASE64[b[p + 2]]
        four = 0 if padding else BASE64[b[p + 3]]
        if one < 0 or two < 0 or three < 0 or four < 0:
            return -1
        bits = one << 18 | two << 12 | three << 6 | four
        to[at] = bits >> 16
        if padding < 2:
            to[at + 1] = bits >> 8 & 0xFF
        if padding == 0:
            to[at + 2] = bits & 0xFF
        at += 3 - padding
        p += 4
    return at - first


@loop
def find_duplicate_key(
    b: Octets, text: Octets, base: int, first: int, end: int, words: Numbers, slots: Numbers, seed: int
) -> int:
    """Return the entry of a map's second equal key, or NO. `slots` is a hash table with four slots for each entry."""
    if end - first <= _MAX_PAIRED_KEYS:
        for i in range(first, end):
            for j in range(first, i):
                if _are_equal(b, text, base + 2 * i, base + 2 * j, words):
                    return i
        return NO
    bits = 1
    while 1 << bits < 2 * (end - first):
        bits += 1
    mask = (1 << bits) - 1
    slots[: mask + 1] = -1
    for i in range(first, end):
        start, length = words[base + 2 * i], words[base + 2 * i + 1]
        value = np.uint64(length)
        for q in range(length):
            octet = b[start + q] if start >= 0 else text[q - start - 1]
            value = (value + np.uint64(octet) + np.uint64(1)) * np.uint64(seed)
        slot = np.int64(value >> np.uint64(64 - bits))
        while slots[slot] >= 0:
            if _are_equal(b, text, base + 2 * i, base + 2 * slots[slot], words):
                return i
            slot = (slot + 1) & mask
        slots[slot] = i
    return NO


@loop
def _are_equal(b: Octets, text: Octets, one: int, other: int, words: Numbers) -> bool:
    length = words[one + 1]
    if length != words[other + 1]:
        return False
    s, t, q = words[one], words[other], length - 1
    for following in range(length):  # begins with the last byte, because keys often have a common prefix
        x = b[s + q] if s >= 0 else text[q - s - 1]
        y = b[t + q] if t >= 0 else text[q - t - 1]
        if x != y:
            return False
        q = following
    return True


@loop
def copy_strings(b: Octets, text: Octets, spans: Numbers, offsets: Numbers, to: Octets) -> None:
    """Copy strings, given as (start, length) pairs, into `to`. Writes each string's end in `to` to `offsets`."""
    at = 0
    for i in range(len(offsets) - 1):
        start, length = spans[2 * i], spans[2 * i + 1]
        if length >= MIN_MEMCPY_BYTES:
            source, begin = (b, start) if start >= 0 else (text, -1 - start)
            memcpy(np.int64(to.ctypes.data) + at, np.int64(source.ctypes.data) + begin, length)
        elif start >= 0:
            for q in range(length):
                to[at + q] = b[start + q]
        else:
            start = -1 - start
            for q in range(length):
                to[at + q] = text[start + q]
        at += length
        offsets[i + 1] = at
