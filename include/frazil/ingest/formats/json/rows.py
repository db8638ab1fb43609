"""Reads JSON records into columns, in compiled code: one loop, controlled by a table of nodes.

A record with an error leaves no values. Module `reasons` writes the error's text. The loop cannot decide about some
values, such as numbers with many digits. Module `reasons` rewrites them, and the record is read again.
"""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, PLR1714 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

from typing import Any

import numpy as np

from frazil.ingest.compiled import load64
from frazil.ingest.formats.json import nodes as tree
from frazil.ingest.formats.json import unknown_keys as parts
from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scalars import parse_double, parse_integer
from frazil.ingest.formats.json.scan import (
    NO,
    Octets,
    is_digit,
    loop,
    skip_white_space,
    string_end,
    unescape,
    value_end,
)
from frazil.ingest.formats.json.unknown_keys import FLAGGED, ON, SAMPLED, check_key
from frazil.ingest.formats.json.words import (
    BEFORE,
    ROOM,
    USED,
    find_duplicate_key,
    write_decoded_base64,
    write_string,
    write_value,
)

READ, INVALID, FULL = 0, 1, 2
"""Result of a record: it is JSON, or it is not. FULL + d: entry set d is full, and the record must be read again."""
PIECES, SLOTS, ERRORS = range(3)
"""Other memory that may need more room, numbered from the number of entry sets on."""
BAD, NEW, SAMPLE, UNKNOWN = 1, 2, 4, 8
"""Flags of a record: it has no row; it has unknown keys; it is one of their samples; it has only unknown keys."""

COUNT, MAX_COUNT, RECORD, FIRST_ERROR = range(4)
"""Positions in the memory for errors: their number, its maximum, and the index of the current record. Each error
follows, as its record, node and code, and the start and end of the text.
"""
ERROR_WIDTH = 5
MAX_ERRORS = 64
"""Maximum number of errors that are stored for a record when it is read for the first time."""
DUPLICATE, MISSING, WRONG, HIDDEN_KEY = range(4)
"""Codes of errors. DUPLICATE: a node is given twice; the text of a map's key has the form of its words. MISSING: a
required value is null or missing. WRONG: a value does not fit, or is uncertain. HIDDEN_KEY: the loop cannot decide
whether `rest` omits an unknown key of this node.
"""

FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(8)])
"""Mask n selects the first n bytes of a word."""


@loop
def read_records(
    b: Octets, starts: Numbers, lengths: Numbers, first: int,
    nodes: Numbers, lists: Numbers, names: Octets, words: Numbers, valid: Octets, text: Octets, entry_counts: Numbers,
    frames: Numbers, scratch: Octets, slots: Numbers, seed: int, pieces: Numbers, new_keys: Numbers, is_again: bool,
    errors: Numbers, flags: Octets,
) -> tuple[int, int]:  # fmt: skip
    """Read records, from index `first` on, until a record needs more room.

    Returns the index of that record, and the entry set (the rows, or the elements of one list or map column) that needs
    more room. If all records were read, returns their number and 0. `flags` receives flags: NEW and SAMPLE only if
    `new_keys` is on. `is_again`: whether module `reasons` has rewritten the records.
    """
    schema: Any = (nodes, lists, names)
    memory: Any = (words, valid, text, entry_counts)
    working: Any = (frames, scratch, slots, seed, pieces, new_keys, is_again, errors)
    for i in range(first, len(starts)):
        start, end = starts[i], starts[i] + lengths[i]
        flags[i] = BAD
        # A record that is not followed by a newline is not read.
        if lengths[i] < 2 or start < 0 or end >= len(b) or b[end] != 10:
            continue
        for d in range(len(entry_counts)):
            entry_counts[d, BEFORE] = entry_counts[d, USED]
        parts.begin_record(new_keys)
        known, errors[RECORD] = errors[COUNT], i
        errors[MAX_COUNT] = known + (len(errors) if is_again else MAX_ERRORS)
        found = _read_record(b, start, end, *schema, *memory, *working)
        if found == READ:
            unknown = 0 if pieces[parts.FILLED_COLUMNS] else UNKNOWN
            if errors[COUNT] == known:
                flags[i] = NEW * new_keys[FLAGGED] + SAMPLE * new_keys[SAMPLED] + unknown
                entry_counts[0, USED] += 1
                continue
            flags[i] = BAD + unknown
        else:
            errors[COUNT] = known
        parts.discard_sample(new_keys)
        for d in range(len(entry_counts) - (found == READ)):  # an error may have its text in `text`
            entry_counts[d, USED] = entry_counts[d, BEFORE]
        if found >= FULL:
            return i, found - FULL
    return len(starts), 0


@loop
def _add_error(node: int, code: int, start: int, end: int, errors: Numbers) -> bool:
    """Add an error of the current record, unless it has the maximum number. Returns False if there is no room."""
    if errors[COUNT] == errors[MAX_COUNT]:
        return True
    at = FIRST_ERROR + ERROR_WIDTH * errors[COUNT]
    if at + ERROR_WIDTH > len(errors):
        return False
    errors[at], errors[at + 1], errors[at + 2] = errors[RECORD], node, code
    errors[at + 3], errors[at + 4] = start, end
    errors[COUNT] += 1
    return True


@loop
def _read_record(
    b: Octets, p: int, end: int,
    nodes: Numbers, lists: Numbers, names: Octets, words: Numbers, valid: Octets, text: Octets, entry_counts: Numbers,
    frames: Numbers, scratch: Octets, slots: Numbers, seed: int, pieces: Numbers, new_keys: Numbers, is_again: bool,
    errors: Numbers,
) -> int:  # fmt: skip
    """Read one record. Returns READ, INVALID, or FULL + d if entry set d needs more room."""
    sets, known = len(entry_counts), errors[COUNT]
    p = skip_white_space(b, p, end)
    if b[p] != 123:
        return INVALID
    p = skip_white_space(b, p + 1, end)
    nodes[0, tree.SEEN] += 1
    stamp = nodes[0, tree.SEEN]
    pieces[parts.COUNT] = pieces[parts.MEMBERS] = 0
    k, e, last, found, depth = 0, entry_counts[0, USED], -1, 0, 0
    kind, close = tree.STRUCT, 125
    opened = True
    while True:
        # At a member of container k, or at the end of an empty one.
        if not (opened and b[p] == close):
            opened = False
            at = e
            key = key_end = p
            if kind == tree.STRUCT:
                if b[p] != 34:
                    if not is_again or b[p + 1] != 34 or not parts.KEPT <= b[p] <= parts.OMITTED:
                        return INVALID
                    p += 1
                key = p + 1
                p, node = _read_key(b, p + 1, k, last, nodes, lists, names, scratch)
                if p < 0:
                    return INVALID
                if node >= 0:
                    if nodes[node, tree.SEEN] == stamp and not _add_error(node, DUPLICATE, key, p, errors):
                        return FULL + sets + ERRORS
                    nodes[node, tree.SEEN] = stamp
                    found += 1
                    last = node
            elif kind == tree.LISTED:
                last += 1
                node = int(lists[nodes[k, tree.SLOTS] + last]) if last <= nodes[k, tree.MASK] else -1
                if node >= 0:
                    nodes[node, tree.SEEN] = stamp
                    found += 1
            else:
                inner = nodes[k, tree.INNER]
                at = entry_counts[inner, USED]
                if at >= entry_counts[inner, ROOM]:
                    return FULL + int(inner)
                entry_counts[inner, USED] += 1
                node = k + 1
                if kind == tree.MAP:
                    if b[p] != 34:
                        return INVALID
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return INVALID
                    if not write_string(
                        b, first, p, escaped, nodes[node, tree.BASE] + 2 * at, words, text, entry_counts
                    ):
                        return FULL + sets - 1
                    valid[nodes[node, tree.FLAG] + at] = 1
                    node = k + 2
            if kind == tree.STRUCT or kind == tree.MAP:
                key_end = p
                p = skip_white_space(b, p + 1, end)
                if b[p] != 58:
                    return INVALID
                p = skip_white_space(b, p + 1, end)
            if node < 0:
                if new_keys[ON] and nodes[k, tree.WATCHED] and errors[COUNT] == known:
                    check_key(b, key, key_end, k, p, end, new_keys)
                p = value_end(b, p, end, depth + 1, scratch)
                if p < 0:
                    return INVALID
                if nodes[k, tree.KEEPS]:
                    hidden = (
                        parts.is_hidden_key(b, key, key_end, k, nodes, lists, names) if nodes[k, tree.HIDING] else 0
                    )
                    if hidden < 0 and not _add_error(k, HIDDEN_KEY, key - 1, key_end + 1, errors):
                        return FULL + sets + ERRORS
                    if hidden <= 0 and not parts.add_member(b, key - 1, p, pieces):
                        return FULL + sets + PIECES
            elif b[p] == 110:
                if b[p + 1] != 117 or b[p + 2] != 108 or b[p + 3] != 108:
                    return INVALID
                if nodes[node, tree.REQUIRED] and not _add_error(node, MISSING, p, p, errors):
                    return FULL + sets + ERRORS
                p += 4
                set_null(node, at, nodes, words, valid, entry_counts)
                if kind == tree.LIST and nodes[k, tree.KEEPS] and not parts.add_piece(0, 4, parts.NOTHING, pieces):
                    return FULL + sets + PIECES
            else:
                own_kind = nodes[node, tree.KIND]
                to = nodes[node, tree.BASE] + at
                value = p
                opening = 91 if own_kind == tree.LIST or own_kind == tree.LISTED else 123
                if own_kind >= tree.STRUCT and b[p] == opening:
                    close = opening + 2
                    valid[nodes[node, tree.FLAG] + at] = 1
                    frames[depth, 0], frames[depth, 1], frames[depth, 2] = k, e, last
                    frames[depth, 3], frames[depth, 4] = found, stamp
                    frames[depth, 5] = -1
                    if nodes[k, tree.KEEPS] and nodes[node, tree.KEEPS]:
                        frames[depth, 5] = pieces[parts.COUNT]
                        first = key - 1 if kind == tree.STRUCT else key
                        if not parts.add_piece(first, p + 1 - first, parts.OPEN, pieces):
                            return FULL + sets + PIECES
                    depth += 1
                    nodes[0, tree.SEEN] += 1
                    stamp = nodes[0, tree.SEEN]
                    k, kind, e, last, found, opened = node, own_kind, at, -1, 0, True
                    p = skip_white_space(b, p + 1, end)
                    continue
                may_cast = nodes[node, tree.CAST] == 1
                quoted = 1 if may_cast and b[p] == 34 and own_kind != tree.STRING else 0
                cast = quoted
                p += quoted
                if own_kind >= tree.STRUCT:
                    p = NO
                elif own_kind == tree.STRING and may_cast and b[p] != 34:
                    if is_digit(b[p]) or (b[p] == 45 and is_digit(b[p + 1])) or b[p] == 116 or b[p] == 102:
                        words[to + at] = p
                        p = value_end(b, p, end, depth + 1, scratch)
                        words[to + at + 1] = p - words[to + at]
                        cast = 1
                    else:
                        p = NO
                elif own_kind == tree.STRING:
                    if b[value] == 34:
                        p, escaped = string_end(b, value + 1)
                        if p < 0:
                            return INVALID
                        to += at
                        if not escaped:
                            words[to] = value + 1
                            words[to + 1] = p - value - 1
                        elif not write_string(b, value + 1, p, escaped, to, words, text, entry_counts):
                            return FULL + sets - 1
                        p += 1
                    else:
                        p = NO
                elif own_kind <= tree.INT:
                    p, integer = parse_integer(b, p)
                    is_too_big = own_kind == tree.INT and not -(2**31) <= integer < 2**31
                    if p >= 0 and (is_too_big or b[p] == 46 or b[p] | 32 == 101):
                        p = NO
                    words[to] = integer
                elif own_kind <= tree.FLOAT:
                    p, number = parse_double(b, p)
                    if own_kind == tree.FLOAT and np.isinf(np.float32(number)) and not np.isinf(number):
                        p = NO
                    if quoted and not np.isfinite(number):
                        p = NO
                    words[to] = np.float64(number).view(np.int64)
                elif own_kind == tree.BOOLEAN and may_cast and (b[p] == 48 or b[p] == 49):
                    words[to] = b[p] - 48
                    p += 1
                    cast = 1
                elif own_kind == tree.BINARY or own_kind == tree.FIXED:
                    p, escaped = string_end(b, value + 1) if b[value] == 34 else (NO, False)
                    if p >= 0:
                        if not write_decoded_base64(b, value + 1, p, escaped, to + at, words, text, entry_counts):
                            return FULL + sets - 1
                        length = words[to + at + 1]
                        is_valid = length >= 0 and (own_kind == tree.BINARY or length == nodes[node, tree.PRECISION])
                        p = p + 1 if is_valid else NO
                elif own_kind == tree.JSON or own_kind == tree.JSON_TEXT:
                    to += at
                    if own_kind == tree.JSON_TEXT and b[p] == 34:
                        p, escaped = string_end(b, value + 1)
                        if p < 0:
                            return INVALID
                        if not write_string(b, value + 1, p, escaped, to, words, text, entry_counts):
                            return FULL + sets - 1
                        p += 1
                    else:
                        p = value_end(b, p, end, depth + 1, scratch)
                        words[to] = value
                        words[to + 1] = p - value
                else:
                    if own_kind == tree.DECIMAL or own_kind == tree.UUID:
                        to += at
                    p = write_value(b, value, own_kind, nodes[node, tree.PRECISION], nodes[node, tree.SCALE], to, words)
                    if p < 0 and b[value] == 34:
                        q, escaped = string_end(b, value + 1)
                        if q >= 0 and escaped and q - value <= len(scratch) - 2:
                            # Put quotation marks around the unescaped value, as in the record. If another one inside
                            # ends the value early, the positions differ.
                            scratch[0] = 34
                            after = unescape(b, value + 1, q, scratch, 1)
                            scratch[after] = 34
                            if after + 1 == write_value(
                                scratch, 0, own_kind, nodes[node, tree.PRECISION], nodes[node, tree.SCALE], to, words
                            ):
                                p = q + 1
                    elif p >= 0 and (b[p] == 46 or b[p] | 32 == 101):  # a number since the epoch that is not whole
                        p = NO
                if p < 0 or (quoted and b[p] != 34):
                    p = _skip_wrong(b, value, end, depth, scratch, node, at, nodes, words, valid, entry_counts, errors)
                    if p < 0:
                        return INVALID if p == NO else FULL + sets + ERRORS
                else:
                    p += quoted
                    valid[nodes[node, tree.FLAG] + at] = 1 + cast
        # After a member, or at the end of a container.
        while True:
            p = skip_white_space(b, p, end)
            c = b[p]
            if c == 44 and not opened:
                p = skip_white_space(b, p + 1, end)
                break
            if c != close:
                return INVALID
            p += 1
            if kind <= tree.LISTED:
                if depth == 0:
                    pieces[parts.FILLED_COLUMNS] = found
                if nodes[k, tree.LEFT]:
                    node = nodes[k, tree.LEFT]
                    if pieces[parts.COUNT] == 0:
                        set_null(node, e, nodes, words, valid, entry_counts)
                    elif not parts.write_rest(b, node, e, nodes, words, valid, text, entry_counts, pieces):
                        return FULL + sets - 1
                    pieces[parts.COUNT] = pieces[parts.MEMBERS] = 0
                    nodes[node, tree.SEEN] = stamp
                    found += 1
                if found < nodes[k, tree.FIELDS] and not _fill_missing(
                    k, e, stamp, nodes, lists, words, valid, entry_counts, errors
                ):
                    return FULL + sets + ERRORS
            else:
                inner = entry_counts[nodes[k, tree.INNER], USED]
                to = nodes[k, tree.BASE] + e
                if kind == tree.MAP:
                    first = words[to - 1] if e else 0
                    keys = nodes[k + 1, tree.BASE]
                    if 4 * (inner - first) > len(slots):
                        return FULL + sets + SLOTS
                    again = find_duplicate_key(b, text, keys, first, inner, words, slots, seed)
                    if again >= 0:
                        start = words[keys + 2 * again]
                        length = words[keys + 2 * again + 1]
                        if not _add_error(k + 1, DUPLICATE, start, start + length, errors):
                            return FULL + sets + ERRORS
                words[to] = inner
            if depth == 0:
                return READ if skip_white_space(b, p, end) == end else INVALID
            depth -= 1
            if frames[depth, 5] >= 0:
                in_list = nodes[frames[depth, 0], tree.KIND] == tree.LIST
                if not parts.end_container(frames[depth, 5], c, in_list, pieces):
                    return FULL + sets + PIECES
            k, e, last = frames[depth, 0], frames[depth, 1], frames[depth, 2]
            found, stamp = frames[depth, 3], frames[depth, 4]
            kind = nodes[k, tree.KIND]
            close = 93 if kind == tree.LIST or kind == tree.LISTED else 125
            opened = False


@loop
def _skip_wrong(
    b: Octets, p: int, end: int, depth: int, scratch: Octets,
    node: int, e: int, nodes: Numbers, words: Numbers, valid: Octets, entry_counts: Numbers, errors: Numbers,
) -> int:  # fmt: skip
    """Write null instead of the value at `p`. Returns its end; NO if it is not JSON, NO - 1 without room."""
    q = value_end(b, p, end, depth + 1, scratch)
    if q < 0:
        return NO
    set_null(node, e, nodes, words, valid, entry_counts)
    return q if _add_error(node, WRONG, p, q, errors) else NO - 1


@loop
def _read_key(
    b: Octets, p: int, k: int, last: int, nodes: Numbers, lists: Numbers, names: Octets, scratch: Octets
) -> tuple[int, int]:
    """Read the key at `p`. Returns its end (NO if invalid), and its node in struct k (-1 if unknown)."""
    guess = nodes[k, tree.OPENING] if last < 0 else nodes[last, tree.FOLLOWING]
    if guess >= 0 and nodes[guess, tree.PLAIN]:
        after, key = p + nodes[guess, tree.LENGTH] + 1, nodes[guess, tree.KEY]
        if after + 8 <= len(b):
            address = np.int64(b.ctypes.data)
            q = p
            while q + 8 <= after and load64(address + q) == lists[key]:
                q += 8
                key += 1
            if q == after or (after - q < 8 and (load64(address + q) ^ lists[key]) & FIRST_BYTES[after - q] == 0):
                return after - 1, guess
    q, escaped = string_end(b, p)
    if q < 0:
        return NO, -1
    if not escaped:
        node = _find_field(b, p, q - p, k, nodes, lists, names)
    elif q - p <= len(scratch):
        node = _find_field(scratch, 0, unescape(b, p, q, scratch, 0), k, nodes, lists, names)
    else:
        return q, -1  # longer than any name
    if node >= 0:
        if last < 0:
            nodes[k, tree.OPENING] = node
        else:
            nodes[last, tree.FOLLOWING] = node
    return q, node


@loop
def _find_field(b: Octets, p: int, length: int, k: int, nodes: Numbers, lists: Numbers, names: Octets) -> int:
    if length > nodes[k, tree.LONGEST]:
        return -1
    value = length
    for q in range(p, p + length):
        value = (value * 31 + b[q]) & 0xFFFFFFFF
    mask, slots = nodes[k, tree.MASK], nodes[k, tree.SLOTS]
    slot = value & mask
    while lists[slots + slot] >= 0:
        node = int(lists[slots + slot])
        if nodes[node, tree.LENGTH] == length:
            name, q = nodes[node, tree.NAME], 0
            while q < length and b[p + q] == names[name + q]:
                q += 1
            if q == length:
                return node
        slot = (slot + 1) & mask
    return -1


@loop
def set_null(node: int, e: int, nodes: Numbers, words: Numbers, valid: Octets, entry_counts: Numbers) -> None:
    """Write null to entry e of a node, and to the nodes inside it."""
    k, after = node, nodes[node, tree.AFTER]
    while k < after:
        kind, base = nodes[k, tree.KIND], nodes[k, tree.BASE]
        valid[nodes[k, tree.FLAG] + e] = 0
        if kind == tree.LIST or kind == tree.MAP:
            words[base + e] = entry_counts[nodes[k, tree.INNER], USED]
            k = nodes[k, tree.AFTER]
            continue
        if kind == tree.STRING or kind == tree.DECIMAL or (kind >= tree.UUID and kind <= tree.REST):
            words[base + 2 * e] = 0
            words[base + 2 * e + 1] = 0
        elif kind != tree.STRUCT and kind != tree.LISTED:
            words[base + e] = 0
        k += 1


@loop
def _fill_missing(
    k: int, e: int, stamp: int, nodes: Numbers, lists: Numbers, words: Numbers, valid: Octets, entry_counts: Numbers,
    errors: Numbers,
) -> bool:  # fmt: skip
    """Write null to the fields that an object does not have. Returns False if there is no room for an error."""
    first = nodes[k, tree.CHILDREN]
    for c in range(first, first + nodes[k, tree.FIELDS]):
        node = lists[c]
        if nodes[node, tree.SEEN] != stamp:
            if nodes[node, tree.REQUIRED] and not _add_error(node, MISSING, 0, 0, errors):
                return False
            set_null(node, e, nodes, words, valid, entry_counts)
    return True
