"""Reads Protobuf messages into columns (`json.words`), in compiled code: one loop, controlled by a table of operations.
A record that fails leaves no values. Lengths, and the number of values for absent fields, are limited by the record's
size. If a field occurs again, its value is replaced, or its nested message or list continues.
"""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, PLR1714 - compiled code follows the encoding, and each call and container costs

from __future__ import annotations

from typing import Any

import numpy as np

from frazil.ingest.compiled import load32, load64
from frazil.ingest.formats.avro import loop as avro
from frazil.ingest.formats.avro.loop import read_bits as read_varint
from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.rows import set_null
from frazil.ingest.formats.json.scan import Octets, find_invalid_utf8, loop
from frazil.ingest.formats.json.words import BEFORE, ROOM, USED, Memory, find_duplicate_key, parse_uuid
from frazil.ingest.formats.protobuf import operations as code

BASE_CELLS, CELLS_PER_BYTE = 65_536, 8
"""Limit for the values of a record's absent fields: a fixed number, plus a number per byte of the record."""

_0, _1 = np.uint64(0), np.uint64(1)
_MIN_SECOND, _MAX_SECOND = -62_135_596_800, 253_402_300_799


@loop
def read_span(b: Octets, p: int, end: int) -> tuple[int, int]:
    """Read a length prefix. Returns the value's start (or a negative error code), and its length."""
    p, length = read_varint(b, p, end)
    if p < 0:
        return p, 0
    if length < 0 or length > end - p:
        return -code.ENDS_EARLY, 0
    return p, length


@loop
def read_tag(b: Octets, p: int, end: int) -> tuple[int, int]:
    """Read a tag. Returns the position after it (or a negative error code), and the tag."""
    p, tag = read_varint(b, p, end)
    if p >= 0 and (tag < 8 or tag >= 2**32):
        return -code.NO_FIELD, 0
    return p, tag


@loop
def skip_value(b: Octets, p: int, end: int, tag: int, frames: Numbers, depth: int) -> int:
    """Skip the value that follows `tag`, or a whole group. Returns the position after it, or a negative error code."""
    wire, outer = tag & 7, depth
    while True:
        if wire == code.VARINT:
            p, _ = read_varint(b, p, end)
        elif wire == code.BLOB:
            p, length = read_span(b, p, end)
            if p >= 0:
                p += length
        elif wire == code.EIGHT_BYTES or wire == code.FOUR_BYTES:
            p += 8 if wire == code.EIGHT_BYTES else 4
            if p > end:
                return -code.ENDS_EARLY
        elif wire == code.GROUP:
            if depth == len(frames):
                return -code.TOO_DEEP
            frames[depth, 4] = tag >> 3
            depth += 1
        elif wire == code.GROUP_END:
            if depth == outer or frames[depth - 1, 4] != tag >> 3:
                return -code.NO_GROUP
            depth -= 1
        else:
            return -code.NO_WIRE_TYPE
        if p < 0 or depth == outer:
            return p
        p, tag = read_tag(b, p, end)
        if p < 0:
            return p
        wire = tag & 7


@loop
def find_row(operands: Numbers, first: int, count: int, width: int, number: Any) -> int:
    """Return the index of the row that begins with `number` among `count` sorted rows from `first`; -1 if missing."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if operands[first + width * middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < count and operands[first + width * low] == number else -1


@loop
def clear_entry(node: int, e: int, nodes: Numbers, words: Numbers, valid: Octets, entry_counts: Numbers) -> None:
    """Write null to the last entry e of a node, and remove the elements of its lists and maps."""
    for k in range(node, nodes[node, tree.AFTER]):
        if nodes[k, tree.KIND] == tree.LIST or nodes[k, tree.KIND] == tree.MAP:
            entry_set = nodes[k, tree.ENTRY_SET]
            index = e if entry_set == nodes[node, tree.ENTRY_SET] else entry_counts[entry_set, USED]
            entry_counts[nodes[k, tree.INNER], USED] = words[nodes[k, tree.BASE] + index - 1] if index else 0
    set_null(node, e, nodes, words, valid, entry_counts)


@loop
def begin_message(op: int, e: int, plan: avro.Plan, memory: Memory) -> None:
    """Write the values of an empty message to entry e, before the message's fields are read."""
    ops, operands = plan
    nodes, words, valid, entry_counts = memory
    begin = ops[op, code.BEGIN]
    for _ in range(ops[op, code.BEGUN]):
        node = operands[begin]
        if operands[begin + 1] == 0:
            set_null(node, e, nodes, words, valid, entry_counts)
        else:
            kind, base = nodes[node, tree.KIND], nodes[node, tree.BASE]
            valid[nodes[node, tree.FLAG] + e] = 1
            if kind == tree.LIST or kind == tree.MAP:
                words[base + e] = entry_counts[nodes[node, tree.INNER], USED]
            elif kind == tree.STRING or kind == tree.DECIMAL or (kind >= tree.UUID and kind < tree.STRUCT):
                words[base + 2 * e] = operands[begin + 2]
                words[base + 2 * e + 1] = operands[begin + 3]
            elif kind != tree.STRUCT:
                words[base + e] = operands[begin + 2]
        begin += 4


@loop
def read_timestamp(b: Octets, p: int, end: int, node: int, e: int, memory: Memory, frames: Numbers) -> int:
    """Read a Timestamp message into entry e of a node, as microseconds. Returns VALID or an error code."""
    nodes, words, valid, _ = memory
    seconds, nanos = np.int64(0), np.int64(0)
    slot = nodes[node, tree.BASE] + e
    if valid[nodes[node, tree.FLAG] + e]:  # continue the earlier timestamp
        seconds = words[slot] // 1_000_000
        nanos = (words[slot] - seconds * 1_000_000) * 1000
    while p < end:
        p, tag = read_tag(b, p, end)
        if p < 0:
            return -p
        if tag == 8 or tag == 16:
            p, value = read_varint(b, p, end)
            if p < 0:
                return -p
            if tag == 8:
                seconds = np.int64(value)
            else:
                nanos = np.int64(np.int32(value))
        else:
            p = skip_value(b, p, end, tag, frames, 0)
            if p < 0:
                return -p
    if not (0 <= nanos < 1_000_000_000 and _MIN_SECOND <= seconds <= _MAX_SECOND):
        return code.NO_TIMESTAMP
    words[slot] = seconds * 1_000_000 + nanos // 1000
    valid[nodes[node, tree.FLAG] + e] = 1
    return code.VALID


@loop
def decode_integer(value: Any, bits: int) -> Any:
    """Convert a varint's bits to an integer with the encoding `bits`. A UINT64 above 2^63 - 1 becomes negative."""
    if bits == code.INT32:
        return np.int64(np.int32(value))
    if bits == code.UINT32:
        return value & 0xFFFFFFFF
    if bits == code.SINT32:
        value &= 0xFFFFFFFF
        return np.int64(np.int32((value >> 1) ^ -(value & 1)))
    if bits == code.SINT64:
        return np.int64(np.uint64(value) >> _1) ^ -(value & 1)
    return value


@loop
def read_value(
    b: Octets, p: int, end: int, op: int, e: int, plan: avro.Plan, memory: Memory, scratch: avro.Scratch
) -> int:
    """Read a scalar into entry e of its node. Returns the position after it, or a negative error code."""
    ops, operands = plan
    nodes, words, valid, _ = memory
    kind, node, wire = ops[op, code.OPERATION], ops[op, code.NODE], ops[op, code.WIRE]
    flag, slot = nodes[node, tree.FLAG] + e, nodes[node, tree.BASE] + e
    if wire == code.BLOB:
        p, length = read_span(b, p, end)
        if p < 0:
            return p
        if kind == code.TIMESTAMP:
            error = read_timestamp(b, p, p + length, node, e, memory, scratch.frames)
            return p + length if error == code.VALID else -error
        valid[flag] = 1
        if kind == code.TEXT_AS_UUID:
            return p + length if parse_uuid(b, p, p + length, slot + e, words) == p + length else -code.NO_UUID
        if kind == code.TEXT_AS_MOMENT:
            fits = avro.parse_moment(b, p, p + length, nodes[node, tree.KIND], slot, words, scratch.slots)
            return p + length if fits else -code.NO_MOMENT
        if kind == code.TEXT and find_invalid_utf8(b, p, p + length) >= 0:
            return -code.INVALID_UTF8
        if kind == code.BYTES_AS_FIXED and length != ops[op, code.SIZE]:
            return -code.OTHER_LENGTH
        words[slot + e] = p
        words[slot + e + 1] = length
        return p + length
    if wire == code.VARINT:
        p, value = read_varint(b, p, end)
        if p < 0:
            return p
    elif wire == code.EIGHT_BYTES:
        if end - p < 8:
            return -code.ENDS_EARLY
        value = load64(np.int64(b.ctypes.data) + p)
        p += 8
    else:
        if end - p < 4:
            return -code.ENDS_EARLY
        value = np.int64(load32(np.int64(b.ctypes.data) + p))
        p += 4
    valid[flag] = 1
    if kind == code.DOUBLE:
        if nodes[node, tree.KIND] == tree.FLOAT:
            number = np.int64(value).view(np.float64)
            if np.isinf(np.float32(number)) and not np.isinf(number):
                return -code.NOT_HELD
        words[slot] = value
        return p
    if kind == code.FLOAT:
        words[slot] = np.float64(np.int32(value).view(np.float32)).view(np.int64)
        return p
    if kind == code.BOOLEAN:
        words[slot] = 1 if value != 0 else 0
        return p
    bits = ops[op, code.BITS]
    value = decode_integer(value, bits)
    if kind == code.INTEGER:
        if (bits == code.UINT64 and value < 0) or not ops[op, code.MIN_VALUE] <= value <= ops[op, code.MAX_VALUE]:
            return -code.NOT_HELD
        factor = ops[op, code.FACTOR]
        if factor < 0:
            words[slot] = value // -factor
        else:
            words[slot] = value * factor
        return p
    if kind == code.INTEGER_AS_FLOAT:
        if bits == code.UINT64:
            words[slot] = np.float64(np.uint64(value)).view(np.int64)
        else:
            words[slot] = np.float64(value).view(np.int64)
        return p
    if kind == code.INTEGER_AS_DECIMAL:
        negative = bits != code.UINT64 and value < 0
        amount = _0 - np.uint64(value) if negative else np.uint64(value)
        return p if avro.write_decimal(negative, _0, amount, op, ops, slot + e, words) else -code.NOT_HELD
    # SYMBOL
    symbol_row = find_row(operands, ops[op, code.SYMBOLS], ops[op, code.KNOWN], 3, value)
    if symbol_row < 0:
        return -code.NO_SYMBOL
    words[slot + e] = -1 - operands[ops[op, code.SYMBOLS] + 3 * symbol_row + 1]
    words[slot + e + 1] = operands[ops[op, code.SYMBOLS] + 3 * symbol_row + 2]
    return p


@loop
def is_unknown_symbol(b: Octets, p: int, end: int, op: int, plan: avro.Plan) -> bool:
    """Return whether the number at `p` is readable, but not defined by the enum."""
    ops, operands = plan
    stop, value = read_varint(b, p, end)
    return (
        stop >= 0 and find_row(operands, ops[op, code.SYMBOLS], ops[op, code.KNOWN], 3, np.int64(np.int32(value))) < 0
    )


@loop
def check_message(b: Octets, op: int, e: int, plan: avro.Plan, memory: Memory, scratch: avro.Scratch) -> int:
    """Check a message after its last field. Returns VALID, an error code, or NO_ROOM + d for a full hash table."""
    ops, operands = plan
    nodes, words, valid, entry_counts = memory
    _, slots, seed = scratch
    for k in range(ops[op, code.NEEDS], ops[op, code.NEEDS] + ops[op, code.NEEDED]):
        if not valid[nodes[operands[k], tree.FLAG] + e]:
            return code.MISSING
    for k in range(ops[op, code.MAPS], ops[op, code.MAPS] + ops[op, code.MAPPED]):
        node = operands[k]
        to = nodes[node, tree.BASE] + e
        first = words[to - 1] if e else 0
        if words[to] - first > 1:
            if 4 * (words[to] - first) > len(slots):
                return avro.NO_ROOM + len(entry_counts)
            keys = nodes[node + 1, tree.BASE]
            if find_duplicate_key(b, b, keys, first, words[to], words, slots, seed) >= 0:
                return code.REPEATED_KEY
    return code.VALID


@loop
def read_record(
    b: Octets, p: int, end: int, root: int, plan: avro.Plan, memory: Memory, scratch: avro.Scratch
) -> tuple[int, int, int]:
    """Read one record. Returns VALID, an error code, or NO_ROOM + d; also the operation and position of the error."""
    ops, operands = plan
    nodes, words, valid, entry_counts = memory
    frames = scratch.frames
    message, depth, e, next_ = root, 0, entry_counts[0, USED], 0
    cells = BASE_CELLS + CELLS_PER_BYTE * (end - p)
    valid[nodes[0, tree.FLAG] + e] = 1
    begin_message(root, e, plan, memory)
    while True:
        if p == end:
            error = check_message(b, message, e, plan, memory, scratch)
            if error != code.VALID or depth == 0:
                return error, message, p
            depth -= 1
            message, e, end, next_ = frames[depth, 0], frames[depth, 1], frames[depth, 2], frames[depth, 3]
            continue
        start = p
        p, tag = read_tag(b, p, end)
        if p < 0:
            return -p, message, start
        number, wire = tag >> 3, tag & 7
        # Most writers write fields in the order of their numbers.
        first, count = ops[message, code.FIELDS], ops[message, code.COUNT]
        if next_ >= count or operands[first + 2 * next_] != number:
            next_ = find_row(operands, first, count, 2, number)
        if next_ < 0:
            next_ = 0
            p = skip_value(b, p, end, tag, frames, depth)
            if p < 0:
                return -p, message, start
            continue
        op = operands[first + 2 * next_ + 1]
        shape, kind, expected = ops[op, code.SHAPE], ops[op, code.OPERATION], ops[op, code.WIRE]
        if shape == code.SINGLE:
            next_ += 1
        packed = shape != code.SINGLE and wire == code.BLOB and expected != code.BLOB
        if wire != expected and not packed:  # treat as unknown
            p = skip_value(b, p, end, tag, frames, depth)
            if p < 0:
                return -p, message, start
            continue
        if ops[op, code.CLOSED] and not packed and is_unknown_symbol(b, p, end, op, plan):
            p = skip_value(b, p, end, tag, frames, depth)
            continue
        if ops[op, code.OTHER]:
            for k in range(ops[op, code.OTHERS], ops[op, code.OTHERS] + ops[op, code.OTHER]):
                if valid[nodes[operands[k], tree.FLAG] + e]:
                    clear_entry(operands[k], e, nodes, words, valid, entry_counts)
        if kind == code.SKIP:
            p = skip_value(b, p, end, tag, frames, depth)
            if p < 0:
                return -p, message, start
            continue
        if kind == code.REFUSED:
            return code.UNFIT, op, start
        node, outer = ops[op, code.NODE], ops[op, code.OUTER]
        stop = end
        if packed:
            value_end, length = read_span(b, p, end)
            if value_end < 0:
                return -value_end, op, start
            p = value_end
            stop = p + length
        while not packed or p < stop:
            entry = e
            if shape != code.SINGLE:
                if packed and ops[op, code.CLOSED] and is_unknown_symbol(b, p, stop, op, plan):
                    p, _ = read_varint(b, p, stop)
                    continue
                inner = nodes[outer, tree.INNER]
                entry = entry_counts[inner, USED]
                if entry >= entry_counts[inner, ROOM]:
                    return avro.NO_ROOM + inner, op, start
                entry_counts[inner, USED] = entry + 1
                words[nodes[outer, tree.BASE] + e] = entry + 1
                valid[nodes[node, tree.FLAG] + entry] = 0
            if kind == code.MESSAGE:
                value_end, length = read_span(b, p, end)
                if value_end < 0:
                    return -value_end, op, start
                if depth == len(frames) - 1:
                    return code.TOO_DEEP, op, start
                p = value_end
                frames[depth, 0], frames[depth, 1], frames[depth, 2], frames[depth, 3] = message, e, end, next_
                depth += 1
                flag = nodes[node, tree.FLAG] + entry
                if shape == code.MAP_ENTRY or not valid[flag]:
                    cells -= ops[op, code.CELLS]
                    if cells < 0:
                        return code.TOO_MANY, op, start
                    valid[flag] = 1
                    begin_message(op, entry, plan, memory)
                message, e, end, next_ = op, entry, p + length, 0
                break
            value_end = read_value(b, p, stop, op, entry, plan, memory, scratch)
            if value_end < 0:
                return -value_end, op, start
            p = value_end
            if not packed:
                break


@loop
def read_records(
    b: Octets, starts: Numbers, lengths: Numbers, roots: Numbers, first: int,
    plan: avro.Plan, memory: Memory, scratch: avro.Scratch, errors: Octets, where: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Read records. Arguments and results are the same as in Avro's `read_records`."""
    entry_counts = memory.entry_counts
    for i in range(first, len(starts)):
        errors[i] = avro.NOT_READ
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
        if error >= avro.NO_ROOM:
            return i, error - avro.NO_ROOM
        errors[i] = error
        where[i, 0] = op
        where[i, 1] = p - start
    return len(starts), 0


@loop
def read_message_indexes(b: Octets, starts: Numbers, lengths: Numbers, indexes: Numbers, sizes: Numbers) -> None:
    """Read each record's message indexes, which follow the first five bytes of the frame.

    `indexes` receives the bytes of the indexes as one number, and `sizes` the number of these bytes. A size of -1 means
    that the indexes are invalid or take more than four bytes.
    """
    for i in range(len(starts)):
        p, end = starts[i] + 5, starts[i] + lengths[i]
        first = p
        p, count = read_varint(b, p, end)
        count = (count >> 1) if p >= 0 and count & 1 == 0 else 8
        while p >= 0 and 0 < count < 8:
            p, _ = read_varint(b, p, end)
            count -= 1
        sizes[i] = -1
        indexes[i] = 0
        if p >= 0 and count == 0 and p - first <= 4:
            sizes[i] = p - first
            for q in range(first, p):
                indexes[i] |= np.int64(b[q]) << (8 * (3 - (q - first)))
