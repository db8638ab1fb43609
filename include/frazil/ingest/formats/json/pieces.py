"""Collects the parts of a record for its `rest` column (`json.rest`), and writes them as one JSON object, in compiled
code. A piece is a slice of the record, or a constant.
"""

# ruff: noqa: PLR0913, PLR0917 - compiled code: each container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.compiled import memcpy
from frazil.ingest.formats.json.nodes import BASE, FLAG, HIDDEN, HIDING, Numbers
from frazil.ingest.formats.json.scan import Octets, loop
from frazil.ingest.formats.json.words import MIN_MEMCPY_BYTES, ROOM, USED

COUNT, MEMBERS, FILLED_COLUMNS, FIRST_PIECE = range(4)
"""Positions in the memory: the number of pieces, the number of pieces after the last member was added, and the number
of columns that the record's fields fill. The pieces follow: start, length and kind.
"""
MAX_PIECES = 4096
"""Maximum number of pieces per record. Larger records are read one by one."""
MEMBER, OPEN, CLOSE, NOTHING = range(4)
"""Kinds of pieces: members of an object; the key and opening bracket of an object or array; a closing bracket, whose
byte is the piece's start; null.
"""
NULL = np.frombuffer(b"null", np.uint8)


@loop
def add_piece(start: int, length: int, kind: int, pieces: Numbers) -> bool:
    """Add a slice of the record, or a constant. Returns False if there is no room."""
    count = pieces[COUNT]
    if count == MAX_PIECES:
        return False
    at = FIRST_PIECE + 3 * count
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
    """Return 1 if the `rest` column omits the key `[p, end)`, 0 if not, and -1 if uncertain."""
    for q in range(p, end):
        if b[q] == 92 or b[q] >= 128:
            return -1
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
    return 0


@loop
def write_rest(
    b: Octets,
    node: int,
    e: int,
    nodes: Numbers,
    words: Numbers,
    valid: Octets,
    text: Octets,
    entry_counts: Numbers,
    pieces: Numbers,
) -> bool:
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
