"""Collects a record's pieces for its `rest` column, and samples records with unknown keys, in compiled code."""

# ruff: noqa: PLR0913, PLR0917, PLR1714 - compiled code: each container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.compiled import memcpy
from frazil.ingest.formats.json.nodes import BASE, FLAG, HIDDEN, HIDING, Numbers
from frazil.ingest.formats.json.scan import Octets, loop, skip_white_space
from frazil.ingest.formats.json.words import MIN_MEMCPY_BYTES, ROOM, USED

COUNT, MEMBERS, FILLED_COLUMNS, FIRST_PIECE = range(4)
"""Positions in the memory: the number of pieces, the number of pieces after the last member was added, and the number
of columns that the record's fields fill. The pieces follow: start, length and kind.
"""
MEMBER, OPEN, CLOSE, NOTHING = range(4)
"""Kinds of pieces: members of an object; key and opening bracket; a closing bracket, whose byte is `start`; null."""
KEPT, OMITTED = 1, 2
"""Bytes before the quotation mark of a key in a rewritten record: whether `rest` keeps the key or omits it. Valid JSON
has such bytes nowhere.
"""
NULL = np.frombuffer(b"null", np.uint8)


@loop
def add_piece(start: int, length: int, kind: int, pieces: Numbers) -> bool:
    """Add a slice of the record, or a constant. Returns False if there is no room."""
    count = pieces[COUNT]
    at = FIRST_PIECE + 3 * count
    if at + 3 > len(pieces):
        return False
    pieces[at] = start
    pieces[at + 1] = length
    pieces[at + 2] = kind
    pieces[COUNT] = count + 1
    return True


@loop
def add_member(b: Octets, start: int, end: int, pieces: Numbers) -> bool:
    """Add the member `[start, end)` of an object. Returns False if there is no room."""
    last = FIRST_PIECE + 3 * (pieces[COUNT] - 1)
    if pieces[COUNT] and pieces[last + 2] == MEMBER:
        after = pieces[last] + pieces[last + 1]
        if after + 1 == start and b[after] == 44:
            pieces[last + 1] = end - pieces[last]
            return True
    if not add_piece(start, end - start, MEMBER, pieces):
        return False
    pieces[MEMBERS] = pieces[COUNT]
    return True


@loop
def end_container(begin: int, last: int, in_list: bool, pieces: Numbers) -> bool:
    """End the object or array that began at piece `begin`. `last` is its closing bracket.

    A container without members is removed; inside an array, it becomes null. Returns False if there is no room.
    """
    if pieces[MEMBERS] > begin + 1:
        return add_piece(last, 1, CLOSE, pieces)
    pieces[COUNT] = begin
    return not in_list or add_piece(0, 4, NOTHING, pieces)


@loop
def is_hidden_key(b: Octets, p: int, end: int, k: int, nodes: Numbers, lists: Numbers, names: Octets) -> int:
    """Return 1 if the `rest` column omits the key `[p, end)`, 0 if not, and -1 if a lower-case form is uncertain."""
    if KEPT <= b[p - 2] <= OMITTED:
        return int(b[p - 2]) - KEPT
    first = nodes[k, HIDDEN]
    for i in range(nodes[k, HIDING]):
        name, length = lists[first + 2 * i], lists[first + 2 * i + 1]
        if length == end - p:
            q = 0
            while q < length:
                c = b[p + q]
                if (c + 32 if 65 <= c <= 90 else c) != names[name + q]:
                    break
                q += 1
            if q == length:
                return 1
    for q in range(p, end):
        if b[q] == 92 or b[q] >= 128:
            return -1
    return 0


@loop
def write_rest(
    b: Octets, node: int, e: int, nodes: Numbers, words: Numbers, valid: Octets, text: Octets, entry_counts: Numbers,
    pieces: Numbers,
) -> bool:  # fmt: skip
    """Write the pieces as the JSON text of entry e of the node. Returns False if `text` is full."""
    size = 2
    for i in range(pieces[COUNT]):
        size += 1 + pieces[FIRST_PIECE + 3 * i + 1]
    used = entry_counts[len(entry_counts) - 1, USED]
    if used + size > entry_counts[len(entry_counts) - 1, ROOM]:
        return False
    at = used
    text[at] = 123
    at += 1
    opened = True
    for i in range(pieces[COUNT]):
        start, length = pieces[FIRST_PIECE + 3 * i], pieces[FIRST_PIECE + 3 * i + 1]
        kind = pieces[FIRST_PIECE + 3 * i + 2]
        if not opened and kind != CLOSE:
            text[at] = 44
            at += 1
        opened = kind == OPEN
        if kind == CLOSE:
            text[at] = start
        elif kind == NOTHING:
            for q in range(4):
                text[at + q] = NULL[q]
        elif length >= MIN_MEMCPY_BYTES:
            memcpy(np.int64(text.ctypes.data) + at, np.int64(b.ctypes.data) + start, length)
        else:
            for q in range(length):
                text[at + q] = b[start + q]
        at += length
    text[at] = 125
    at += 1
    to = nodes[node, BASE] + 2 * e
    words[to] = -1 - used
    words[to + 1] = at - used
    valid[nodes[node, FLAG] + e] = 1
    entry_counts[len(entry_counts) - 1, USED] = at
    return True


ON, FLAGGED, SAMPLED, KEYS, RECORD, FIRST_KEY = range(6)
"""Positions in the memory: whether to search, whether the current record has a new key, and whether it is a sample.
Then the number of distinct keys, and the number of the current record. A hash table follows: each key's hash (not 0),
its number of samples, and the number of its last sample.
"""
SLOTS = 4096
MAX_KEYS = SLOTS // 2
MAX_SAMPLES = 256
"""Maximum number of samples per key; `MAX_NESTED_SAMPLES` for objects and arrays."""
MAX_NESTED_SAMPLES = 4096


def allocate_memory(*, is_on: bool) -> Numbers:
    memory = np.zeros(FIRST_KEY + 3 * SLOTS if is_on else FIRST_KEY, np.int64)
    memory[ON] = is_on
    return memory


@loop
def begin_record(memory: Numbers) -> None:
    memory[FLAGGED] = memory[SAMPLED] = 0
    memory[RECORD] += 1


@loop
def discard_sample(memory: Numbers) -> None:
    """Do not count the current record as a sample, because it has no row, or will be read again."""
    if memory[SAMPLED]:
        for at in range(FIRST_KEY, len(memory), 3):
            if memory[at + 2] == memory[RECORD]:
                memory[at + 1] -= 1


@loop
def check_key(b: Octets, key: int, end: int, k: int, value: int, behind: int, memory: Numbers) -> None:
    """Check the unknown key `[key, end)` in container k, and decide whether its record is sampled.

    The key's value begins at `value`; the record ends at `behind`.
    """
    first = b[value]
    if first == 110:
        return  # null has no type
    nested = first == 123 or first == 91
    if nested:
        p = skip_white_space(b, value + 1, behind)
        if b[p] == 125 or b[p] == 93:
            return
    memory[FLAGGED] = 1
    hashed = np.int64(1469598103934665603) ^ np.int64(k)
    for q in range(key, end):
        hashed = (hashed ^ np.int64(b[q])) * np.int64(1099511628211)
    if hashed == 0:
        hashed = np.int64(1)
    slot = (hashed ^ (hashed >> 29)) & (SLOTS - 1)
    while memory[FIRST_KEY + 3 * slot] != hashed:
        if memory[FIRST_KEY + 3 * slot] == 0:
            if memory[KEYS] >= MAX_KEYS:
                return
            memory[KEYS] += 1
            memory[FIRST_KEY + 3 * slot] = hashed
            break
        slot = (slot + 1) & (SLOTS - 1)
    at = FIRST_KEY + 3 * slot
    if memory[at + 1] < (MAX_NESTED_SAMPLES if nested else MAX_SAMPLES) and memory[at + 2] != memory[RECORD]:
        memory[at + 1] += 1
        memory[at + 2] = memory[RECORD]
        memory[SAMPLED] = 1
