"""Reads Avro records into columns (`json.words`), in compiled code: one loop, controlled by a table of operations.

A record that fails leaves no values. Lengths and counts beyond the record's bytes are rejected, so small records never
cause much work.
"""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, PLR1714 - compiled code follows the encoding, and each call and container costs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from frazil.ingest.compiled import load32, load64
from frazil.ingest.formats.avro import operations as code
from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.rows import set_null
from frazil.ingest.formats.json.scalars import parse_date, parse_time, parse_timestamp, times_ten
from frazil.ingest.formats.json.scan import Octets, find_invalid_utf8, loop
from frazil.ingest.formats.json.words import BEFORE, ROOM, USED, Memory, find_duplicate_key, parse_uuid

NO_ROOM = 64
"""Result NO_ROOM + d: entry set d is full. If d is the number of entry sets, the hash table of map keys is full."""
NOT_READ = 255
QUOTE, LETTER_Z = 34, 90
MAX_MOMENT_LENGTH = 64
YEAR_1 = -719162
"""The days from 1970 to 0001-01-01."""
SPAN_BITS = 32
"""Number of low bits of a SPAN's second word, which hold its length. The high bits hold its operation."""
MAX_EMPTY_ELEMENTS = 64
"""Maximum number of elements without bytes (such as nulls) in one record: each takes memory."""

_0, _1 = np.uint64(0), np.uint64(1)


class Plan(NamedTuple):
    """The operations that read the records, and `operands`: lists of numbers for the operations."""

    ops: Numbers
    operands: Numbers


class Scratch(NamedTuple):
    """Working memory of the loop: a frame per nesting level, a hash table of map keys, and its seed."""

    frames: Numbers
    slots: Numbers
    seed: int


@loop
def read_bits(b: Octets, p: int, end: int) -> tuple[int, Any]:
    """Read a varint. Returns the position after it (or a negative error code), and its bits."""
    if p >= end:
        return -code.ENDS_EARLY, 0
    c = np.int64(b[p])
    if c < 128:
        return p + 1, c
    value = np.uint64(c & 127)
    for k in range(1, 10):
        if p + k >= end:
            return -code.ENDS_EARLY, 0
        c = np.int64(b[p + k])
        value |= np.uint64(c & 127) << np.uint64(7 * k)
        if c < 128:
            if k == 9 and c > 1:
                return -code.LONG_VARINT, 0
            return p + k + 1, np.int64(value)
    return -code.LONG_VARINT, 0


@loop
def read_varint(b: Octets, p: int, end: int) -> tuple[int, Any]:
    """Read a zigzag varint. Returns the position after it (or a negative error code), and its value."""
    p, bits = read_bits(b, p, end)
    return p, np.int64(np.uint64(bits) >> _1) ^ -(bits & 1)


@loop
def read_span(b: Octets, p: int, end: int) -> tuple[int, int]:
    """Read a length prefix. Returns the value's start (or a negative error code), and its length."""
    p, length = read_varint(b, p, end)
    if p < 0:
        return p, 0
    if length < 0:
        return -code.NO_LENGTH, 0
    if length > end - p:
        return -code.ENDS_EARLY, 0
    return p, length


@loop
def parse_moment(b: Octets, p: int, end: int, kind: int, slot: int, words: Numbers, text: Any) -> bool:
    """Parse an ISO 8601 date, time or timestamp, and write it as one word. Returns False if invalid."""
    length = end - p
    if length > MAX_MOMENT_LENGTH:
        return False
    for i in range(length):
        text[i] = b[p + i]
    text[length : 2 * MAX_MOMENT_LENGTH] = QUOTE  # the parser reads some characters ahead
    day = 0 if kind == tree.TIME else parse_date(text, 0)
    if day < YEAR_1:  # or invalid
        return False
    if kind == tree.DATE:
        after, words[slot] = 10, day
    elif kind == tree.TIME:
        after, words[slot] = parse_time(text, 0)
    else:
        after, words[slot] = parse_timestamp(text, 0)
    if (kind == tree.DATE or kind == tree.TIME) and after >= 0 and text[after] == LETTER_Z:
        after += 1
    return after == length


@loop
def write_decimal(
    is_negative: bool, high: np.uint64, low: np.uint64, op: int, ops: Numbers, slot: int, words: Numbers
) -> bool:
    """Write a decimal in the column's scale. `high` and `low` are the absolute value. Returns False if too big."""
    limit = np.uint64(ops[op, code.LIMIT_HIGH])
    if high > limit or (high == limit and low >= np.uint64(ops[op, code.LIMIT_LOW])):
        return False
    for _ in range(ops[op, code.TENS]):
        high, low = times_ten(high, low, _0)
    if is_negative:
        high, low = ~high + (_1 if low == _0 else _0), ~low + _1
    words[slot] = np.int64(low)
    words[slot + 1] = np.int64(high)
    return True


@loop
def write_decimal_bytes(b: Octets, p: int, end: int, op: int, ops: Numbers, slot: int, words: Numbers) -> int:
    """Write a decimal with a big-endian two's complement as unscaled number. Returns VALID or an error code."""
    if p == end:
        return code.NO_DECIMAL
    negative = b[p] >= 128
    sign = np.uint64(255 if negative else 0)
    while end - p > 16:
        if b[p] != sign or (b[p + 1] >= 128) != negative:
            return code.NOT_HELD
        p += 1
    high = _0 - _1 if negative else _0
    low = high
    for q in range(p, end):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(b[q])
    if negative:
        high, low = ~high + (_1 if low == _0 else _0), ~low + _1
    return code.VALID if write_decimal(negative, high, low, op, ops, slot, words) else code.NOT_HELD


@loop
def read_value(b: Octets, p: int, end: int, op: int, e: int, plan: Plan, memory: Memory, slots: Numbers) -> int:
    """Read a scalar into entry e of its node. Returns the position after it, or a negative error code."""
    ops, operands = plan
    nodes, words, valid, entry_counts = memory
    kind, node = ops[op, code.OPERATION], ops[op, code.NODE]
    if kind <= code.BLOB:
        if kind == code.BLOB:
            p, length = read_span(b, p, end)
            return p + length if p >= 0 else p
        if kind == code.VARINT:
            p, _ = read_varint(b, p, end)
            return p
        length = ops[op, code.SIZE] if kind == code.FIXED_BYTES else 0
        return p + length if length <= end - p else -code.ENDS_EARLY
    if kind == code.NULL:
        set_null(node, e, nodes, words, valid, entry_counts)
        return p
    valid[nodes[node, tree.FLAG] + e] = 1
    slot = nodes[node, tree.BASE] + e
    if kind == code.INTEGER or kind == code.INTEGER_AS_FLOAT or kind == code.INTEGER_AS_DECIMAL:
        p, value = read_varint(b, p, end)
        if p < 0:
            return p
        if ops[op, code.BITS] == 32 and not -(2**31) <= value < 2**31:
            return -code.WIDE_INT
        if kind == code.INTEGER_AS_FLOAT:
            words[slot] = np.float64(value).view(np.int64)
            return p
        if kind == code.INTEGER_AS_DECIMAL:
            amount = np.uint64(value) if value >= 0 else _0 - np.uint64(value)
            return p if write_decimal(value < 0, _0, amount, op, ops, slot + e, words) else -code.NOT_HELD
        if not ops[op, code.MIN_VALUE] <= value <= ops[op, code.MAX_VALUE]:
            return -code.NOT_HELD
        factor = ops[op, code.FACTOR]
        if factor < 0:
            words[slot] = value // -factor
        else:
            words[slot] = value * factor
        return p
    if kind == code.TEXT or kind == code.BYTES:
        p, length = read_span(b, p, end)
        if p < 0:
            return p
        if kind == code.TEXT and find_invalid_utf8(b, p, p + length) >= 0:
            return -code.INVALID_UTF8
        words[slot + e] = p
        words[slot + e + 1] = length
        return p + length
    if kind == code.DOUBLE:
        if end - p < 8:
            return -code.ENDS_EARLY
        bits = load64(np.int64(b.ctypes.data) + p)
        if nodes[node, tree.KIND] == tree.FLOAT:
            number = np.int64(bits).view(np.float64)
            if np.isinf(np.float32(number)) and not np.isinf(number):
                return -code.NOT_HELD
        words[slot] = bits
        return p + 8
    if kind == code.FLOAT:
        if end - p < 4:
            return -code.ENDS_EARLY
        words[slot] = np.float64(np.int32(load32(np.int64(b.ctypes.data) + p)).view(np.float32)).view(np.int64)
        return p + 4
    if kind == code.BOOLEAN:
        if p >= end:
            return -code.ENDS_EARLY
        if b[p] > 1:
            return -code.NO_BOOLEAN
        words[slot] = b[p]
        return p + 1
    if kind == code.ENUM:
        p, symbol = read_varint(b, p, end)
        if p < 0:
            return p
        if not 0 <= symbol < ops[op, code.COUNT]:
            return -code.NO_SYMBOL
        first = ops[op, code.FIRST] + 2 * symbol
        words[slot + e] = -1 - operands[first]
        words[slot + e + 1] = operands[first + 1]
        return p
    if kind == code.FIXED or kind == code.FIXED_AS_UUID or kind == code.FIXED_AS_DECIMAL:
        length = ops[op, code.SIZE]
        if length > end - p:
            return -code.ENDS_EARLY
    else:
        p, length = read_span(b, p, end)
        if p < 0:
            return p
        if kind == code.BYTES_AS_FIXED and length != ops[op, code.SIZE]:
            return -code.OTHER_LENGTH
    if kind == code.FIXED_AS_UUID:
        words[slot + e] = load64(np.int64(b.ctypes.data) + p)
        words[slot + e + 1] = load64(np.int64(b.ctypes.data) + p + 8)
    elif kind == code.TEXT_AS_UUID:
        if parse_uuid(b, p, p + length, slot + e, words) != p + length:
            return -code.NO_UUID
    elif kind == code.TEXT_AS_MOMENT:
        if not parse_moment(b, p, p + length, nodes[node, tree.KIND], slot, words, slots):
            return -code.NO_MOMENT
    elif kind == code.BYTES_AS_DECIMAL or kind == code.FIXED_AS_DECIMAL:
        error = write_decimal_bytes(b, p, p + length, op, ops, slot + e, words)
        if error != code.VALID:
            return -error
    else:
        words[slot + e] = p
        words[slot + e + 1] = length
    return p + length


@loop
def read_record(
    b: Octets, p: int, end: int, root: int, plan: Plan, memory: Memory, scratch: Scratch
) -> tuple[int, int, int]:
    """Read one record. Returns VALID, an error code, or NO_ROOM + d; also the operation and position of the error."""
    ops, operands = plan
    nodes, words, valid, entry_counts = memory
    frames, slots, seed = scratch
    op, depth, e, empty = root, -1, entry_counts[0, USED], MAX_EMPTY_ELEMENTS
    while True:
        kind, node = ops[op, code.OPERATION], ops[op, code.NODE]
        if kind < code.REFUSED:
            value_end = read_value(b, p, end, op, e, plan, memory, slots)
            if value_end < 0:
                return -value_end, op, p
            p = value_end
        elif kind == code.UNION:
            value_end, branch = read_varint(b, p, end)
            if value_end < 0:
                return -value_end, op, p
            if not 0 <= branch < ops[op, code.COUNT]:
                return code.NO_BRANCH, op, p
            p = value_end
            op = operands[ops[op, code.FIRST] + branch]
            continue
        elif kind == code.REFUSED:
            return code.UNFIT, op, p
        else:
            depth += 1
            if depth == len(frames):
                return code.TOO_DEEP, op, p
            frames[depth, 0], frames[depth, 2] = op, e
            if node >= 0:
                valid[nodes[node, tree.FLAG] + e] = 1
            frames[depth, 1] = -1 if kind == code.RECORD else 0
            if kind == code.SPAN:
                words[nodes[node, tree.BASE] + 2 * e] = p
                op = operands[ops[op, code.FIRST]]
                continue
            if kind == code.RECORD:
                for k in range(ops[op, code.FIRST_UNFILLED], ops[op, code.FIRST_UNFILLED] + ops[op, code.UNFILLED]):
                    set_null(operands[k], e, nodes, words, valid, entry_counts)
        # Advance to the next value.
        while True:
            if depth < 0:
                return (code.VALID if p == end else code.TRAILING_BYTES), root, p
            outer, e = frames[depth, 0], frames[depth, 2]
            if ops[outer, code.OPERATION] == code.RECORD:
                frames[depth, 1] += 1
                if frames[depth, 1] < ops[outer, code.COUNT]:
                    op = operands[ops[outer, code.FIRST] + frames[depth, 1]]
                    break
                depth -= 1
                continue
            node = ops[outer, code.NODE]
            if ops[outer, code.OPERATION] == code.SPAN:
                to = nodes[node, tree.BASE] + 2 * e
                words[to + 1] = outer << SPAN_BITS | p - words[to]
                depth -= 1
                continue
            is_map = ops[outer, code.OPERATION] == code.MAP
            if frames[depth, 1] == 0:
                value_end, count = read_varint(b, p, end)
                if value_end < 0:
                    return -value_end, outer, p
                octets = -1
                if count < 0:
                    value_end, octets = read_span(b, value_end, end)
                    if value_end < 0:
                        return -value_end, outer, p
                    count = -count
                if ops[outer, code.EMPTY]:
                    empty -= min(max(count, -1), MAX_EMPTY_ELEMENTS + 1)
                    if count < 0 or empty < 0:
                        return code.NO_COUNT, outer, p
                elif count < 0 or count > end - value_end:
                    return code.NO_COUNT, outer, p
                p = value_end
                if count == 0:
                    if node >= 0:
                        inner = nodes[node, tree.INNER]
                        used = entry_counts[inner, USED]
                        to = nodes[node, tree.BASE] + e
                        if is_map:
                            first = words[to - 1] if e else 0
                            if 4 * (used - first) > len(slots):
                                return NO_ROOM + len(entry_counts), outer, p
                            keys = nodes[node + 1, tree.BASE]
                            if find_duplicate_key(b, b, keys, first, used, words, slots, seed) >= 0:
                                return code.REPEATED_KEY, outer, p
                        words[to] = used
                    depth -= 1
                    continue
                if node < 0 and octets >= 0:
                    p += octets
                    continue
                frames[depth, 1] = count
            frames[depth, 1] -= 1
            if node >= 0:
                inner = nodes[node, tree.INNER]
                e = entry_counts[inner, USED]
                if e >= entry_counts[inner, ROOM]:
                    return NO_ROOM + inner, outer, p
                entry_counts[inner, USED] += 1
            if is_map:
                value_end, length = read_span(b, p, end)
                if value_end < 0:
                    return -value_end, outer, p
                p = value_end + length
                if node >= 0:
                    if find_invalid_utf8(b, value_end, p) >= 0:
                        return code.INVALID_UTF8, outer, value_end
                    to = nodes[node + 1, tree.BASE] + 2 * e
                    words[to] = value_end
                    words[to + 1] = length
                    valid[nodes[node + 1, tree.FLAG] + e] = 1
            op = operands[ops[outer, code.FIRST]]
            break


@loop
def read_records(
    b: Octets, starts: Numbers, lengths: Numbers, roots: Numbers, first: int,
    plan: Plan, memory: Memory, scratch: Scratch, errors: Octets, where: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Read records, from index `first` on, until a record needs more room.

    Returns the index of that record, and the entry set (the rows, or the elements of one list or map column) that needs
    more room. If all records were read, returns their number and 0.

    `roots` has the first operation of each record; -1 skips the record. `errors` receives error codes, and `where` the
    operation and position of each error.
    """
    entry_counts = memory.entry_counts
    for i in range(first, len(starts)):
        errors[i] = NOT_READ
        if roots[i] < 0:
            continue
        for d in range(len(entry_counts)):
            entry_counts[d, BEFORE] = entry_counts[d, USED]
        start, end = starts[i], starts[i] + lengths[i]
        error, op, p = read_record(b, start, end, roots[i], plan, memory, scratch)
        if error == code.VALID:
            errors[i] = code.VALID
            entry_counts[0, USED] += 1
            continue
        for d in range(len(entry_counts)):
            entry_counts[d, USED] = entry_counts[d, BEFORE]
        if error >= NO_ROOM:
            return i, error - NO_ROOM
        errors[i] = error
        where[i, 0] = op
        where[i, 1] = p - start
    return len(starts), 0
