"""Reads Avro records into columns, in compiled code. A record that cannot be read completely leaves no values in the
columns.

One loop, compiled once, reads records of any schema. A table of operations controls the loop. For each record, the
caller passes the operation to begin with, which depends on the record's schema. The loop accepts a length or count only
if the record has that many bytes left, so a record's cost is limited by its size.

`json.words` describes where values are stored. The module is long, because parts in other modules would need the loop's
whole state as arguments.
"""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, PLR1714, SIM109 - compiled code follows the encoding, and each call and container costs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from frazil.ingest.compiled import load32, load64
from frazil.ingest.formats.avro.operations import (
    BITS,
    BLOB,
    BOOLEAN,
    BYTES,
    BYTES_AS_DECIMAL,
    BYTES_AS_FIXED,
    COUNT,
    DOUBLE,
    EMPTY,
    ENDS_EARLY,
    ENUM,
    FACTOR,
    FIRST,
    FIRST_UNFILLED,
    FIXED,
    FIXED_AS_DECIMAL,
    FIXED_AS_UUID,
    FIXED_BYTES,
    FLOAT,
    INTEGER,
    INTEGER_AS_DECIMAL,
    INTEGER_AS_FLOAT,
    INVALID_UTF8,
    LIMIT_HIGH,
    LIMIT_LOW,
    LONG_VARINT,
    MAP,
    MAX_VALUE,
    MIN_VALUE,
    NO_BOOLEAN,
    NO_BRANCH,
    NO_COUNT,
    NO_DECIMAL,
    NO_LENGTH,
    NO_MOMENT,
    NO_SYMBOL,
    NO_UUID,
    NODE,
    NOT_HELD,
    NULL,
    OPERATION,
    OTHER_LENGTH,
    RECORD,
    REFUSED,
    REPEATED_KEY,
    SIZE,
    SPAN,
    TENS,
    TEXT,
    TEXT_AS_MOMENT,
    TEXT_AS_UUID,
    TOO_DEEP,
    TRAILING_BYTES,
    UNFILLED,
    UNFIT,
    UNION,
    VALID,
    VARINT,
    WIDE_INT,
)
from frazil.ingest.formats.json.dates_and_times import INVALID_DATE, parse_date, parse_time, parse_timestamp
from frazil.ingest.formats.json.nodes import BASE, DATE, FLAG, INNER, KIND, TIME, Numbers
from frazil.ingest.formats.json.nodes import FLOAT as FLOAT_NODE
from frazil.ingest.formats.json.numbers import times_ten
from frazil.ingest.formats.json.rows import set_null
from frazil.ingest.formats.json.scan import HEX, Octets, loop, utf8_length
from frazil.ingest.formats.json.words import BEFORE, ROOM, USED, Memory

NO_ROOM = 64
"""Result code NO_ROOM + d: domain d needs more room, and the record must be read again.

If d is the number of domains, the hash table of map keys needs more room.
"""
NOT_READ = 255
"""Error code of a record that was skipped."""
QUOTE, LETTER_Z = 34, 90
MAX_MOMENT_LENGTH = 64
"""Maximum length of a date or time as a string. Longer strings are rejected."""
SPAN_BITS = 32
"""Number of low bits of a SPAN's second word that hold its length. The bits above them hold its operation."""
MAX_EMPTY_ELEMENTS = 64
"""Maximum number of elements without bytes (such as nulls) in one record.

Each element takes memory, and a chunk has many records.
"""

_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)
_0, _1 = np.uint64(0), np.uint64(1)


class Plan(NamedTuple):
    """The operations that read the records, and `places`: lists of numbers to which operations refer."""

    ops: Numbers
    places: Numbers


class Scratch(NamedTuple):
    """Memory that the loop needs while it reads a record, and the seed of its hash table."""

    frames: Numbers
    """One row per level of nesting."""
    slots: Numbers
    """The hash table of map keys."""
    seed: int


@loop
def read_varint(b: Octets, p: int, end: int) -> tuple[int, Any]:
    """Read a zigzag varint. Returns the position after it (or a negative error code), and its value."""
    if p >= end:
        return -ENDS_EARLY, 0
    c = np.int64(b[p])
    if c < 128:
        return p + 1, (c >> 1) ^ -(c & 1)
    value = np.uint64(c & 127)
    for k in range(1, 10):
        if p + k >= end:
            return -ENDS_EARLY, 0
        c = np.int64(b[p + k])
        value |= np.uint64(c & 127) << np.uint64(7 * k)
        if c < 128:
            if k == 9 and c > 1:
                return -LONG_VARINT, 0
            return p + k + 1, np.int64(value >> _1) ^ -np.int64(value & _1)
    return -LONG_VARINT, 0


@loop
def read_span(b: Octets, p: int, end: int) -> tuple[int, int]:
    """Read the length of a length-prefixed value. Returns the value's start (or a negative error code), and its
    length.
    """
    p, length = read_varint(b, p, end)
    if p < 0:
        return p, 0
    if length < 0:
        return -NO_LENGTH, 0
    if length > end - p:
        return -ENDS_EARLY, 0
    return p, length


@loop
def is_utf8(b: Octets, p: int, end: int) -> bool:
    address = np.int64(b.ctypes.data)
    while p < end:
        while p + 8 <= end and load64(address + p) & _HIGH_BITS == 0:
            p += 8
        if p < end:
            if b[p] < 128:
                p += 1
            else:
                length = utf8_length(b, p)
                if length == 0 or p + length > end:
                    return False
                p += length
    return True


@loop
def parse_uuid(b: Octets, p: int, end: int, at: int, words: Numbers) -> bool:
    """Parse 32 hexadecimal digits, with hyphens anywhere, and write the UUID as two words. Returns False if invalid."""
    digits = 0
    words[at] = 0
    words[at + 1] = 0
    for q in range(p, end):
        if b[q] != 45:
            digit = HEX[b[q]]
            if digit < 0 or digits == 32:
                return False
            words[at + digits // 16] |= digit << (digits % 16 // 2 * 8 + (4 if digits % 2 == 0 else 0))
            digits += 1
    return digits == 32


@loop
def parse_moment(b: Octets, p: int, end: int, kind: int, at: int, words: Numbers, text: Any) -> bool:
    """Parse an ISO 8601 date, time or timestamp, as in JSON, and write it as one word. Returns False if invalid.

    `text` is scratch memory.
    """
    length = end - p
    if length > MAX_MOMENT_LENGTH:
        return False
    for i in range(length):
        text[i] = b[p + i]
    text[length : 2 * MAX_MOMENT_LENGTH] = QUOTE  # the parser reads some characters ahead
    if kind == DATE:
        after, words[at] = 10, parse_date(text, 0)
        if words[at] == INVALID_DATE:
            return False
    elif kind == TIME:
        after, words[at] = parse_time(text, 0)
    else:
        after, words[at] = parse_timestamp(text, 0)
    if (kind == DATE or kind == TIME) and after >= 0 and text[after] == LETTER_Z:
        after += 1
    return after == length


@loop
def write_decimal(
    negative: bool, high: np.uint64, low: np.uint64, op: int, ops: Numbers, at: int, words: Numbers
) -> int:
    """Scale a decimal to the column's scale, and write it as two words. Returns VALID or an error code.

    `high` and `low` are the words of the unscaled number's absolute value.
    """
    limit = np.uint64(ops[op, LIMIT_HIGH])
    if high > limit or (high == limit and low >= np.uint64(ops[op, LIMIT_LOW])):
        return NOT_HELD
    for _ in range(ops[op, TENS]):
        high, low = times_ten(high, low, _0)
    if negative:
        high, low = ~high + (_1 if low == _0 else _0), ~low + _1
    words[at] = np.int64(low)
    words[at + 1] = np.int64(high)
    return VALID


@loop
def write_decimal_bytes(b: Octets, p: int, end: int, op: int, ops: Numbers, at: int, words: Numbers) -> int:
    """Write a decimal whose unscaled number is big-endian in two's complement. Returns VALID or an error code."""
    if p == end:
        return NO_DECIMAL
    negative = b[p] >= 128
    sign = np.uint64(255 if negative else 0)
    while end - p > 16:
        if b[p] != sign or (b[p + 1] >= 128) != negative:
            return NOT_HELD
        p += 1
    high = _0 - _1 if negative else _0
    low = high
    for q in range(p, end):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(b[q])
    if negative:
        high, low = ~high + (_1 if low == _0 else _0), ~low + _1
    return write_decimal(negative, high, low, op, ops, at, words)


@loop
def has_duplicate_key(b: Octets, base: int, first: int, end: int, words: Numbers, slots: Numbers, seed: int) -> bool:
    """Return whether a map has a duplicate key. `slots` is memory for a hash table: at least four slots per entry."""
    bits = 1
    while 1 << bits < 2 * (end - first):
        bits += 1
    mask = (1 << bits) - 1
    slots[: mask + 1] = -1
    for i in range(first, end):
        start, length = words[base + 2 * i], words[base + 2 * i + 1]
        value = np.uint64(length)
        for q in range(start, start + length):
            value = (value + np.uint64(b[q]) + _1) * np.uint64(seed)
        slot = np.int64(value >> np.uint64(64 - bits))
        while slots[slot] >= 0:
            other = words[base + 2 * slots[slot]]
            if words[base + 2 * slots[slot] + 1] == length:
                q = 0
                while q < length and b[start + q] == b[other + q]:
                    q += 1
                if q == length:
                    return True
            slot = (slot + 1) & mask
        slots[slot] = i
    return False


@loop
def read_value(
    b: Octets,
    p: int,
    end: int,
    op: int,
    e: int,
    plan: Plan,
    memory: Memory,
    slots: Numbers,
) -> int:
    """Read a scalar into entry e of its node. Returns the position after the value, or a negative error code."""
    ops, places = plan
    nodes, words, valid, domains = memory
    kind, node = ops[op, OPERATION], ops[op, NODE]
    if kind <= BLOB:
        if kind == BLOB:
            p, length = read_span(b, p, end)
            return p + length if p >= 0 else p
        if kind == VARINT:
            p, _ = read_varint(b, p, end)
            return p
        length = ops[op, SIZE] if kind == FIXED_BYTES else 0
        return p + length if length <= end - p else -ENDS_EARLY
    if kind == NULL:
        set_null(node, e, nodes, words, valid, domains)
        return p
    valid[nodes[node, FLAG] + e] = 1
    at = nodes[node, BASE] + e
    if kind == INTEGER or kind == INTEGER_AS_FLOAT or kind == INTEGER_AS_DECIMAL:
        p, value = read_varint(b, p, end)
        if p < 0:
            return p
        if ops[op, BITS] == 32 and not -(2**31) <= value < 2**31:
            return -WIDE_INT
        if kind == INTEGER_AS_FLOAT:
            words[at] = np.float64(value).view(np.int64)
            return p
        if kind == INTEGER_AS_DECIMAL:
            amount = np.uint64(value) if value >= 0 else _0 - np.uint64(value)
            wrong = write_decimal(value < 0, _0, amount, op, ops, at + e, words)
            return p if wrong == VALID else -wrong
        if not ops[op, MIN_VALUE] <= value <= ops[op, MAX_VALUE]:
            return -NOT_HELD
        factor = ops[op, FACTOR]
        if factor < 0:
            words[at] = value // -factor if value >= 0 else -(-value // -factor)
        else:
            words[at] = value * factor
        return p
    if kind == TEXT or kind == BYTES:
        p, length = read_span(b, p, end)
        if p < 0:
            return p
        if kind == TEXT and not is_utf8(b, p, p + length):
            return -INVALID_UTF8
        words[at + e] = p
        words[at + e + 1] = length
        return p + length
    if kind == DOUBLE:
        if end - p < 8:
            return -ENDS_EARLY
        bits = load64(np.int64(b.ctypes.data) + p)
        if nodes[node, KIND] == FLOAT_NODE:
            number = np.int64(bits).view(np.float64)
            if np.isinf(np.float32(number)) and not np.isinf(number):
                return -NOT_HELD
        words[at] = bits
        return p + 8
    if kind == FLOAT:
        if end - p < 4:
            return -ENDS_EARLY
        words[at] = np.float64(np.int32(load32(np.int64(b.ctypes.data) + p)).view(np.float32)).view(np.int64)
        return p + 4
    if kind == BOOLEAN:
        if p >= end:
            return -ENDS_EARLY
        if b[p] > 1:
            return -NO_BOOLEAN
        words[at] = b[p]
        return p + 1
    if kind == ENUM:
        p, symbol = read_varint(b, p, end)
        if p < 0:
            return p
        if not 0 <= symbol < ops[op, COUNT]:
            return -NO_SYMBOL
        first = ops[op, FIRST] + 2 * symbol
        words[at + e] = -1 - places[first]
        words[at + e + 1] = places[first + 1]
        return p
    if kind == FIXED or kind == FIXED_AS_UUID or kind == FIXED_AS_DECIMAL:
        length = ops[op, SIZE]
        if length > end - p:
            return -ENDS_EARLY
    else:
        p, length = read_span(b, p, end)
        if p < 0:
            return p
        if kind == BYTES_AS_FIXED and length != ops[op, SIZE]:
            return -OTHER_LENGTH
    if kind == FIXED_AS_UUID:
        words[at + e] = load64(np.int64(b.ctypes.data) + p)
        words[at + e + 1] = load64(np.int64(b.ctypes.data) + p + 8)
    elif kind == TEXT_AS_UUID:
        if not parse_uuid(b, p, p + length, at + e, words):
            return -NO_UUID
    elif kind == TEXT_AS_MOMENT:
        if not parse_moment(b, p, p + length, nodes[node, KIND], at, words, slots):
            return -NO_MOMENT
    elif kind == BYTES_AS_DECIMAL or kind == FIXED_AS_DECIMAL:
        wrong = write_decimal_bytes(b, p, p + length, op, ops, at + e, words)
        if wrong != VALID:
            return -wrong
    else:
        words[at + e] = p
        words[at + e + 1] = length
    return p + length


@loop
def read_record(
    b: Octets,
    p: int,
    end: int,
    root: int,
    plan: Plan,
    memory: Memory,
    scratch: Scratch,
) -> tuple[int, int, int]:
    """Read one record. Returns VALID, an error code or NO_ROOM + d, and the operation and position of the error."""
    ops, places = plan
    nodes, words, valid, domains = memory
    frames, slots, seed = scratch
    op, depth, e, empty = root, -1, domains[0, USED], MAX_EMPTY_ELEMENTS
    while True:
        kind, node = ops[op, OPERATION], ops[op, NODE]
        if kind < REFUSED:
            after = read_value(b, p, end, op, e, plan, memory, slots)
            if after < 0:
                return -after, op, p
            p = after
        elif kind == UNION:
            after, branch = read_varint(b, p, end)
            if after < 0:
                return -after, op, p
            if not 0 <= branch < ops[op, COUNT]:
                return NO_BRANCH, op, p
            p = after
            op = places[ops[op, FIRST] + branch]
            continue
        elif kind == REFUSED:
            return UNFIT, op, p
        else:
            depth += 1
            if depth == len(frames):
                return TOO_DEEP, op, p
            frames[depth, 0], frames[depth, 2] = op, e
            if node >= 0:
                valid[nodes[node, FLAG] + e] = 1
            frames[depth, 1] = -1 if kind == RECORD else 0
            if kind == SPAN:
                words[nodes[node, BASE] + 2 * e] = p
                op = places[ops[op, FIRST]]
                continue
            if kind == RECORD:
                for k in range(ops[op, FIRST_UNFILLED], ops[op, FIRST_UNFILLED] + ops[op, UNFILLED]):
                    set_null(places[k], e, nodes, words, valid, domains)
        # Advance to the next value.
        while True:
            if depth < 0:
                return (VALID if p == end else TRAILING_BYTES), root, p
            outer, e = frames[depth, 0], frames[depth, 2]
            if ops[outer, OPERATION] == RECORD:
                frames[depth, 1] += 1
                if frames[depth, 1] < ops[outer, COUNT]:
                    op = places[ops[outer, FIRST] + frames[depth, 1]]
                    break
                depth -= 1
                continue
            node = ops[outer, NODE]
            if ops[outer, OPERATION] == SPAN:
                to = nodes[node, BASE] + 2 * e
                words[to + 1] = outer << SPAN_BITS | p - words[to]
                depth -= 1
                continue
            is_map = ops[outer, OPERATION] == MAP
            if frames[depth, 1] == 0:
                after, count = read_varint(b, p, end)
                if after < 0:
                    return -after, outer, p
                octets = -1
                if count < 0:
                    after, octets = read_span(b, after, end)
                    if after < 0:
                        return -after, outer, p
                    count = -count
                if ops[outer, EMPTY]:
                    empty -= min(max(count, -1), MAX_EMPTY_ELEMENTS + 1)
                    if count < 0 or empty < 0:
                        return NO_COUNT, outer, p
                elif count < 0 or count > end - after:
                    return NO_COUNT, outer, p
                p = after
                if count == 0:
                    if node >= 0:
                        inner = nodes[node, INNER]
                        used = domains[inner, USED]
                        to = nodes[node, BASE] + e
                        if is_map:
                            first = words[to - 1] if e else 0
                            if 4 * (used - first) > len(slots):
                                return NO_ROOM + len(domains), outer, p
                            if has_duplicate_key(b, nodes[node + 1, BASE], first, used, words, slots, seed):
                                return REPEATED_KEY, outer, p
                        words[to] = used
                    depth -= 1
                    continue
                if node < 0 and octets >= 0:
                    p += octets
                    continue
                frames[depth, 1] = count
            frames[depth, 1] -= 1
            if node >= 0:
                inner = nodes[node, INNER]
                e = domains[inner, USED]
                if e >= domains[inner, ROOM]:
                    return NO_ROOM + inner, outer, p
                domains[inner, USED] += 1
            if is_map:
                after, length = read_span(b, p, end)
                if after < 0:
                    return -after, outer, p
                p = after + length
                if node >= 0:
                    if not is_utf8(b, after, p):
                        return INVALID_UTF8, outer, after
                    to = nodes[node + 1, BASE] + 2 * e
                    words[to] = after
                    words[to + 1] = length
                    valid[nodes[node + 1, FLAG] + e] = 1
            op = places[ops[outer, FIRST]]
            break


@loop
def read_records(
    b: Octets,
    starts: Numbers,
    lengths: Numbers,
    roots: Numbers,
    first: int,
    plan: Plan,
    memory: Memory,
    scratch: Scratch,
    wrong: Octets,
    where: Numbers,
) -> tuple[int, int]:
    """Read records, starting at index `first`.

    Returns the index of the first record that was not read, and the domain that needs more room for it. If all were
    read, the index is the number of records.

    `roots` has the first operation of each record, or -1 to skip the record. For each record, `wrong` receives the
    error code, and `where` the operation and the position of the error.
    """
    domains = memory.domains
    for i in range(first, len(starts)):
        wrong[i] = NOT_READ
        if roots[i] < 0:
            continue
        for d in range(len(domains)):
            domains[d, BEFORE] = domains[d, USED]
        start, end = starts[i], starts[i] + lengths[i]
        found, op, p = read_record(b, start, end, roots[i], plan, memory, scratch)
        if found == VALID:
            wrong[i] = VALID
            domains[0, USED] += 1
            continue
        for d in range(len(domains)):
            domains[d, USED] = domains[d, BEFORE]
        if found >= NO_ROOM:
            return i, found - NO_ROOM
        wrong[i] = found
        where[i, 0] = op
        where[i, 1] = p - start
    return len(starts), 0
