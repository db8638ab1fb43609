"""Encodes JSON text as Parquet's binary variants (VariantEncoding.md, version 1), in compiled code."""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0917, PLR1714, SIM110 - compiled code follows the grammar, and calls cost

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from frazil.ingest.compiled import load64, load_big_endian, memcpy, memmove, store64
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scalars import multiply, parse_decimal, parse_double
from frazil.ingest.formats.json.scan import (
    NO,
    Octets,
    is_digit,
    literal_end,
    loop,
    number_end,
    skip_white_space,
    string_end,
    unescape,
)
from frazil.ingest.formats.json.text import MAX_DEPTH

INVALID, DUPLICATE, UNCERTAIN = -1, -2, -3
"""Errors: text that is not JSON, an object with a key twice, a number whose nearest double is uncertain."""
_NULL, _TRUE, _FALSE, _INT8, _DOUBLE, _DECIMAL4, _LONG_TEXT = 0, 1, 2, 3, 7, 8, 16
"""Ids of primitive types. The types of 16, 32 and 64 bits follow INT8, the types of 8 and 16 bytes follow DECIMAL4."""
_MAX_SHORT_TEXT = 63
MAX_DIGITS = 38
_MULTIPLIER, _ALL = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**64 - 1)
_SEEN, _TRACED, _KNOWN, _CLOSED, _SHAPED = range(5)
"""Positions in `Scratch.track`: keys seen, keys traced, different keys, and the end of `shapes` now and when traced."""
_40 = np.uint64(40)


class Scratch(NamedTuple):
    """Memory for one text. `line` has the text, a newline, and more bytes that loops may read."""

    line: Octets
    names: Octets
    """The different keys of the text, one after the other."""
    ends: Numbers
    """`ends[k + 1]` is where key number k ends in `names`."""
    slots: Numbers
    """A hash table of the keys: their numbers, or -1. Its size is a power of two."""
    key_slots: Numbers
    """The position of each key in `slots`."""
    trace: Numbers
    """The number of each key in the order of the text, or -1 if it has escapes."""
    shapes: Numbers
    """The closed objects, each as `~count` and the numbers of its keys as in the text."""
    orders: Numbers
    """The order of the keys at the same positions of `shapes`, by bytes."""
    track: Numbers
    """Positions in these arrays. A text often has the same keys as the text before, in the same order.

    Until it differs, its keys are those of `trace`, up to `track[_TRACED]`, which is then set to 0. Its objects may be
    those of `shapes`, up to `track[_SHAPED]`.
    """
    opened: Numbers
    """Three numbers for each open object or array: its bracket, where its values begin, and its first entry."""
    entries: Numbers
    """Two numbers for each member of the open objects and arrays: its key's, and where its value begins."""


@loop
def encode_variant(length: int, to: Octets, at: int, s: Scratch) -> tuple[int, int]:
    """Encode the text in `s.line`, whose length is given. Returns the position after it (or an error) and the keys."""
    b, depth, used, keys = s.line, 0, 0, 0
    s.track[_SEEN] = s.track[_CLOSED] = 0
    p = skip_white_space(b, 0, length)
    while True:
        c = b[p]
        if c == 34:
            end, escaped = string_end(b, p + 1)
            if end < 0:
                return INVALID, keys
            at = _write_text(b, p + 1, end, escaped, to, at)
            p = end + 1
        elif c == 91 or c == 123:
            if depth == MAX_DEPTH:
                return INVALID, keys
            s.opened[3 * depth], s.opened[3 * depth + 1], s.opened[3 * depth + 2] = c, at, used
            depth += 1
            p = skip_white_space(b, p + 1, length)
            if b[p] != c + 2:
                p, keys = _add_entry(b, p, length, c, at, used, keys, s)
                if p < 0:
                    return INVALID, keys
                used += 1
                continue
        elif c == 110 or c == 116 or c == 102:
            to[at] = (_NULL if c == 110 else _TRUE if c == 116 else _FALSE) << 2
            at += 1
            p = literal_end(b, p)
        else:
            p, at = _write_number(b, p, to, at)
        if p < 0:
            return p, keys
        while True:
            p = skip_white_space(b, p, length)
            if depth == 0:
                return at if p == length else INVALID, keys
            bracket, first = s.opened[3 * depth - 3], s.opened[3 * depth - 1]
            c = b[p]
            p += 1
            if c == 44:
                p, keys = _add_entry(b, skip_white_space(b, p, length), length, bracket, at, used, keys, s)
                if p < 0:
                    return INVALID, keys
                used += 1
                break
            if c != bracket + 2:
                return INVALID, keys
            at = _close(to, s.opened[3 * depth - 2], at, bracket == 123, first, used, keys, s)
            if at < 0:
                return at, keys
            used = first
            depth -= 1


@loop
def _add_entry(b: Octets, p: int, end: int, bracket: int, at: int, used: int, keys: int, s: Scratch) -> tuple[int, int]:
    """Add a member of the innermost object or array. Returns where its value begins (or NO), and the number of keys."""
    s.entries[2 * used + 1] = at
    if bracket == 91:
        return p, keys
    if b[p] != 34:
        return NO, keys
    seen = s.track[_SEEN]
    key = s.trace[seen] if seen < s.track[_TRACED] else NO
    if key >= 0 and _is_key(b, p + 1, end, key, s):
        stop = p + 1 + s.ends[key + 1] - s.ends[key]
        keys = max(keys, key + 1)
    else:
        for k in range(keys, s.track[_KNOWN] if s.track[_TRACED] else 0):
            s.slots[s.key_slots[k]] = NO
        s.track[_TRACED] = 0
        stop, escaped = string_end(b, p + 1)
        if stop < 0:
            return NO, keys
        key = _find_key(b, p + 1, stop, escaped, keys, s)
        keys = max(keys, key + 1)
        s.trace[seen] = NO if escaped else key
    s.track[_SEEN] = seen + 1
    s.entries[2 * used] = key
    p = skip_white_space(b, stop + 1, end)
    return skip_white_space(b, p + 1, end) if b[p] == 58 else NO, keys


@loop
def _is_key(b: Octets, p: int, end: int, key: int, s: Scratch) -> bool:
    """Return whether the string at `p` is this key, without escapes."""
    begin, size = s.ends[key], s.ends[key + 1] - s.ends[key]
    if p + size >= end or b[p + size] != 34:
        return False
    for q in range(0, size, 8):
        if _word(b, p + q, size - q) != _word(s.names, begin + q, size - q):
            return False
    return True


@loop
def _find_key(b: Octets, p: int, stop: int, is_escaped: bool, keys: int, s: Scratch) -> int:
    """Return the number of the key in `[p, stop)`. A new key gets the number `keys`."""
    start = s.ends[keys]
    length = stop - p
    if is_escaped:
        length = unescape(b, p, stop, s.names, start) - start
    else:
        memcpy(np.int64(s.names.ctypes.data) + start, np.int64(b.ctypes.data) + p, length)
    # The hash begins with an address, which no producer knows, so none can choose keys that collide.
    value = np.uint64(length) ^ np.uint64(s.names.ctypes.data)
    for q in range(0, length, 8):
        high, low = multiply(value ^ _word(s.names, start + q, length - q), _MULTIPLIER)
        value = high ^ low
    mask = len(s.slots) - 1
    slot = np.int64(value >> _40) & mask
    while s.slots[slot] >= 0 and _compare(s, s.slots[slot], start, length) != 0:
        slot = (slot + 1) & mask
    if s.slots[slot] < 0:
        s.slots[slot] = keys
        s.key_slots[keys] = slot
        s.ends[keys + 1] = start + length
    return s.slots[slot]  # type: ignore[no-any-return]


@loop
def _word(b: Octets, at: int, left: int) -> np.uint64:
    """Return eight bytes, or fewer with zeros after them, as a number that is ordered like the bytes."""
    word = load_big_endian(np.int64(b.ctypes.data) + at)
    return word if left >= 8 else word & _ALL << np.uint64(64 - 8 * left)  # type: ignore[no-any-return]


@loop
def _compare(s: Scratch, key: int, start: int, length: int) -> int:
    """Compare a key with `length` bytes of `names` at `start`, by unsigned bytes: negative, 0 or positive."""
    begin, size = s.ends[key], s.ends[key + 1] - s.ends[key]
    for q in range(0, min(size, length), 8):
        one, other = _word(s.names, begin + q, size - q), _word(s.names, start + q, length - q)
        if one != other:
            return -1 if one < other else 1
    return size - length  # type: ignore[no-any-return]


@loop
def _write_text(b: Octets, p: int, end: int, is_escaped: bool, to: Octets, at: int) -> int:
    start = at + (1 if end - p <= _MAX_SHORT_TEXT else 5)
    after = start + end - p
    if is_escaped:
        after = unescape(b, p, end, to, start)
    elif end > p:
        memcpy(np.int64(to.ctypes.data) + start, np.int64(b.ctypes.data) + p, end - p)
    if start == at + 1:
        to[at] = (after - start) << 2 | 1
    else:
        to[at] = _LONG_TEXT << 2
        address = np.int64(to.ctypes.data) + at + 1
        store64(address, load64(address) >> 32 << 32 | after - start)
    return after


@loop
def _write_integer(to: Octets, at: int, value: int, width: int) -> int:
    store64(np.int64(to.ctypes.data) + at, value)
    return at + width


@loop
def _write_number(b: Octets, p: int, to: Octets, at: int) -> tuple[int, int]:
    """Write an integer of up to 64 bits, a decimal of up to 38 digits, or else the nearest double."""
    negative = b[p] == 45
    first = q = p + negative
    value = 0
    while is_digit(b[q]):
        value = value * 10 + (b[q] - 48)
        q += 1
    point = q
    if b[q] == 46:
        q += 1
        while is_digit(b[q]):
            value = value * 10 + (b[q] - 48)
            q += 1
    zero, scale = b[first] == 48, max(0, q - point - 1)
    digits = q - first - (q > point) - zero
    is_number = point == first + 1 or (point > first and not zero)
    if is_number and q != point + 1 and b[q] | 32 != 101 and max(digits, scale) <= MAX_DIGITS:
        low = -value if negative else value
        high, is_exact = low >> 63, digits < 20 and (value >= 0 or (negative and value == low))  # else it overflowed
        if is_exact and q == point:
            size = (low ^ high >= 1 << 7) + (low ^ high >= 1 << 15) + (low ^ high >= 1 << 31)
            to[at] = (_INT8 + size) << 2
            return q, _write_integer(to, at + 1, low, 1 << size)
        if not is_exact:
            _, upper, lower = parse_decimal(b, p, MAX_DIGITS, scale, False)
            high, low = np.int64(upper), np.int64(lower)  # type: ignore[assignment]
        size = (max(digits, scale) > 9) + (max(digits, scale) > 18)
        to[at] = (_DECIMAL4 + size) << 2
        to[at + 1] = scale
        at = _write_integer(to, at + 2, low, min(8, 4 << size))
        return q, _write_integer(to, at, high, 8) if size == 2 else at
    end, real = parse_double(b, p)
    if end < 0:
        return UNCERTAIN if number_end(b, p) >= q else INVALID, at
    to[at] = _DOUBLE << 2
    return end, _write_integer(to, at + 1, np.float64(real).view(np.int64), 8)  # type: ignore[arg-type]


@loop
def _width(value: int) -> int:
    return 1 if value < 1 << 8 else 2 if value < 1 << 16 else 3 if value < 1 << 24 else 4


@loop
def _sort(first: int, used: int, s: Scratch) -> int:
    """Sort an object's entries by key (Shell's method). Returns where their order begins; NO if a key occurs twice."""
    e, count, header = s.entries, used - first, s.track[_CLOSED]
    order, s.track[_CLOSED] = header + 1, header + 1 + count
    same = s.track[_TRACED] > 0 and order + count <= s.track[_SHAPED] and s.shapes[header] == ~count
    i = 0
    while same and i < count:
        same = s.shapes[order + i] == e[2 * (first + i)]
        i += 1
    if same:
        return order  # type: ignore[no-any-return]
    s.shapes[header] = ~count
    for i in range(count):
        s.shapes[order + i], s.orders[order + i] = e[2 * (first + i)], i
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(order + gap, order + count):
            entry, j = s.orders[i], i
            key = e[2 * (first + entry)]
            begin, length = s.ends[key], s.ends[key + 1] - s.ends[key]
            while j >= order + gap and _compare(s, e[2 * (first + s.orders[j - gap])], begin, length) > 0:
                s.orders[j] = s.orders[j - gap]
                j -= gap
            s.orders[j] = entry
        gap //= 3
    for i in range(order + 1, order + count):
        if e[2 * (first + s.orders[i])] == e[2 * (first + s.orders[i - 1])]:
            s.shapes[header] = 0
            return NO
    return order  # type: ignore[no-any-return]


@loop
def _close(to: Octets, start: int, at: int, is_object: bool, first: int, used: int, keys: int, s: Scratch) -> int:
    """Write the header of an object or array before its values, which begin at `start`. Returns its end."""
    count, size, order = used - first, at - start, 0
    if is_object:
        order = _sort(first, used, s)
        if order < 0:
            return DUPLICATE
    large = count > 255
    width, id_width = _width(size), _width(keys) if is_object else 0
    header = 1 + (4 if large else 1) + count * id_width + (count + 1) * width
    address = np.int64(to.ctypes.data) + start
    memmove(address + header, address, size)
    first_bytes = load64(address + header)
    if is_object:
        to[start] = (64 if large else 0) | (id_width - 1) << 4 | (width - 1) << 2 | 2
    else:
        to[start] = (16 if large else 0) | (width - 1) << 2 | 3
    p = _write_integer(to, start + 1, count, 4 if large else 1)
    if is_object:
        for i in range(order, order + count):
            p = _write_integer(to, p, s.entries[2 * (first + s.orders[i])], id_width)
    for i in range(count):
        entry = first + (s.orders[order + i] if is_object else i)
        p = _write_integer(to, p, s.entries[2 * entry + 1] - start, width)
    _write_integer(to, p, size, width)
    store64(address + header, first_bytes)
    return at + header


@loop
def _write_metadata(to: Octets, at: int, keys: int, s: Scratch) -> int:
    size = s.ends[keys]
    width = _width(max(size, keys))
    to[at] = (width - 1) << 6 | 1
    p = _write_integer(to, at + 1, keys, width)
    for k in range(keys + 1):
        p = _write_integer(to, p, s.ends[k], width)
    memcpy(np.int64(to.ctypes.data) + p, np.int64(s.names.ctypes.data), size)
    return p + size  # type: ignore[no-any-return]


@loop
def encode_variants(
    offsets: Numbers,
    text: int,
    values: Octets,
    value_ends: Numbers,
    metadata: Octets,
    metadata_ends: Numbers,
    errors: Numbers,
    s: Scratch,
) -> None:
    """Encode JSON texts, whose bytes begin at the address `text`. An empty text and an error become empty bytes."""
    at, of_keys = 0, 0
    for i in range(len(offsets) - 1):
        length = offsets[i + 1] - offsets[i]
        errors[i] = 0
        if length:
            memcpy(np.int64(s.line.ctypes.data), text + offsets[i], length)
            s.line[length] = 10
            after, keys = encode_variant(length, values, at, s)
            if after < 0:
                errors[i] = after
            else:
                at = after
                of_keys = _write_metadata(metadata, of_keys, keys, s)
            if not s.track[_TRACED]:
                s.track[_TRACED], s.track[_KNOWN], s.track[_SHAPED] = s.track[_SEEN], keys, s.track[_CLOSED]
        value_ends[i + 1] = at
        metadata_ends[i + 1] = of_keys
