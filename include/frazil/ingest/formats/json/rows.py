"""Reads JSON records into columns, in compiled code: one loop, controlled by a table of nodes. A record that fails
leaves no values. Records of uncertain validity are read by module `record`.
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
    HASH_FACTOR,
    ROOM,
    USED,
    has_duplicate_key,
    write_decoded_base64,
    write_string,
    write_value,
)

SURE, UNSURE, FULL = 0, 1, 2
"""Result of a record. FULL + d: entry set d needs more room, and the record must be read again."""
NEW, SAMPLE, UNKNOWN = 2, 4, 8
"""Flags of a record with the result SURE: it has unknown keys; it is one of their samples; it has only unknown keys."""

FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(8)])
"""Mask n selects the first n bytes of a word."""


@loop
def read_records(
    b: Octets, starts: Numbers, lengths: Numbers, first: int,
    nodes: Numbers, lists: Numbers, names: Octets, words: Numbers, valid: Octets, text: Octets, entry_counts: Numbers,
    frames: Numbers, scratch: Octets, slots: Numbers, pieces: Numbers, new_keys: Numbers, unsure: Octets,
) -> tuple[int, int]:  # fmt: skip
    """Read records, from index `first` on, until a record needs more room.

    Returns the index of that record, and the entry set (the rows, or the elements of one list or map column) that needs
    more room. If all records were read, returns their number and 0. `unsure` receives 1 for each record that must be
    read one by one, and flags for other records: UNKNOWN and, if `new_keys` is on, NEW and SAMPLE.
    """
    schema: Any = (nodes, lists, names)
    memory: Any = (words, valid, text, entry_counts)
    working: Any = (frames, scratch, slots, pieces, new_keys)
    for i in range(first, len(starts)):
        start, end = starts[i], starts[i] + lengths[i]
        unsure[i] = 1
        # A record that is not followed by a newline is left undecided.
        if lengths[i] < 2 or start < 0 or end >= len(b) or b[end] != 10:
            continue
        for d in range(len(entry_counts)):
            entry_counts[d, BEFORE] = entry_counts[d, USED]
        parts.begin_record(new_keys)
        found = _read_record(b, start, end, *schema, *memory, *working)
        if found == SURE:
            unsure[i] = (
                NEW * new_keys[FLAGGED] + SAMPLE * new_keys[SAMPLED] + (0 if pieces[parts.FILLED_COLUMNS] else UNKNOWN)
            )
            entry_counts[0, USED] += 1
            continue
        parts.discard_sample(new_keys)
        for d in range(len(entry_counts)):
            entry_counts[d, USED] = entry_counts[d, BEFORE]
        if found != UNSURE:
            return i, found - FULL
    return len(starts), 0


@loop
def _read_record(
    b: Octets, p: int, end: int,
    nodes: Numbers, lists: Numbers, names: Octets, words: Numbers, valid: Octets, text: Octets, entry_counts: Numbers,
    frames: Numbers, scratch: Octets, slots: Numbers, pieces: Numbers, new_keys: Numbers,
) -> int:  # fmt: skip
    """Read one record. Returns SURE, UNSURE, or FULL + d if entry set d needs more room."""
    p = skip_white_space(b, p, end)
    if b[p] != 123:
        return UNSURE
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
                    return UNSURE
                key = p + 1
                p, node = _read_key(b, p + 1, k, last, nodes, lists, names, scratch)
                if p < 0:
                    return UNSURE
                if node >= 0:
                    if nodes[node, tree.SEEN] == stamp:
                        return UNSURE
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
                        return UNSURE
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return UNSURE
                    if not write_string(
                        b, first, p, escaped, nodes[node, tree.BASE] + 2 * at, words, text, entry_counts
                    ):
                        return FULL + len(entry_counts) - 1
                    valid[nodes[node, tree.FLAG] + at] = 1
                    node = k + 2
            if kind == tree.STRUCT or kind == tree.MAP:
                key_end = p
                p = skip_white_space(b, p + 1, end)
                if b[p] != 58:
                    return UNSURE
                p = skip_white_space(b, p + 1, end)
            if node < 0:
                if new_keys[ON] and nodes[k, tree.WATCHED]:
                    check_key(b, key, key_end, k, p, end, new_keys)
                p = value_end(b, p, end, depth + 1, scratch)
                if p < 0:
                    return UNSURE
                if nodes[k, tree.KEEPS]:
                    hidden = (
                        parts.is_hidden_key(b, key, key_end, k, nodes, lists, names) if nodes[k, tree.HIDING] else 0
                    )
                    if hidden < 0 or (hidden == 0 and not parts.add_member(b, key - 1, p, pieces)):
                        return UNSURE
            elif b[p] == 110:
                if b[p + 1] != 117 or b[p + 2] != 108 or b[p + 3] != 108 or nodes[node, tree.REQUIRED]:
                    return UNSURE
                p += 4
                set_null(node, at, nodes, words, valid, entry_counts)
                if kind == tree.LIST and nodes[k, tree.KEEPS] and not parts.add_piece(0, 4, parts.NOTHING, pieces):
                    return UNSURE
            else:
                own_kind = nodes[node, tree.KIND]
                to = nodes[node, tree.BASE] + at
                if own_kind >= tree.STRUCT:
                    close = 93 if own_kind == tree.LIST or own_kind == tree.LISTED else 125
                    if b[p] != close - 2:
                        return UNSURE
                    valid[nodes[node, tree.FLAG] + at] = 1
                    frames[depth, 0], frames[depth, 1], frames[depth, 2] = k, e, last
                    frames[depth, 3], frames[depth, 4] = found, stamp
                    frames[depth, 5] = -1
                    if nodes[k, tree.KEEPS] and nodes[node, tree.KEEPS]:
                        frames[depth, 5] = pieces[parts.COUNT]
                        first = key - 1 if kind == tree.STRUCT else key
                        if not parts.add_piece(first, p + 1 - first, parts.OPEN, pieces):
                            return UNSURE
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
                if own_kind == tree.STRING and may_cast and b[p] != 34:
                    if not (is_digit(b[p]) or (b[p] == 45 and is_digit(b[p + 1])) or b[p] == 116 or b[p] == 102):
                        return UNSURE
                    words[to + at] = p
                    p = value_end(b, p, end, depth + 1, scratch)
                    words[to + at + 1] = p - words[to + at]
                    cast = 1
                elif own_kind == tree.STRING:
                    if b[p] != 34:
                        return UNSURE
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return UNSURE
                    to += at
                    if not escaped:
                        words[to] = first
                        words[to + 1] = p - first
                    elif not write_string(b, first, p, escaped, to, words, text, entry_counts):
                        return FULL + len(entry_counts) - 1
                    p += 1
                elif own_kind <= tree.INT:
                    p, value = parse_integer(b, p)
                    if own_kind == tree.INT and not -(2**31) <= value < 2**31:
                        return UNSURE
                    words[to] = value
                elif own_kind <= tree.FLOAT:
                    p, number = parse_double(b, p)
                    if own_kind == tree.FLOAT and np.isinf(np.float32(number)) and not np.isinf(number):
                        return UNSURE
                    if quoted and not np.isfinite(number):
                        return UNSURE
                    words[to] = np.float64(number).view(np.int64)
                elif own_kind == tree.BOOLEAN and may_cast and (b[p] == 48 or b[p] == 49):
                    words[to] = b[p] - 48
                    p += 1
                    cast = 1
                elif own_kind == tree.BINARY or own_kind == tree.FIXED:
                    if b[p] != 34:
                        return UNSURE
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return UNSURE
                    if not write_decoded_base64(b, first, p, escaped, to + at, words, text, entry_counts):
                        return FULL + len(entry_counts) - 1
                    length = words[to + at + 1]
                    if length < 0 or (own_kind == tree.FIXED and length != nodes[node, tree.PRECISION]):
                        return UNSURE
                    p += 1
                elif own_kind == tree.JSON or own_kind == tree.JSON_TEXT:
                    first = p
                    to += at
                    if own_kind == tree.JSON_TEXT and b[p] == 34:
                        p, escaped = string_end(b, first + 1)
                        if p < 0:
                            return UNSURE
                        if not write_string(b, first + 1, p, escaped, to, words, text, entry_counts):
                            return FULL + len(entry_counts) - 1
                        p += 1
                    else:
                        p = value_end(b, p, end, depth + 1, scratch)
                        words[to] = first
                        words[to + 1] = p - first
                else:
                    if own_kind == tree.DECIMAL or own_kind == tree.UUID:
                        to += at
                    first = p
                    p = write_value(b, first, own_kind, nodes[node, tree.PRECISION], nodes[node, tree.SCALE], to, words)
                    if p < 0 and b[first] == 34:
                        q, escaped = string_end(b, first + 1)
                        if not escaped or q - first > len(scratch) - 2:
                            return UNSURE
                        # Put quotation marks around the unescaped value, as in the record. If another one inside
                        # ends the value early, the positions differ.
                        scratch[0] = 34
                        after = unescape(b, first + 1, q, scratch, 1)
                        scratch[after] = 34
                        if after + 1 != write_value(
                            scratch, 0, own_kind, nodes[node, tree.PRECISION], nodes[node, tree.SCALE], to, words
                        ):
                            return UNSURE
                        p = q + 1
                if p < 0 or (quoted and b[p] != 34):
                    return UNSURE
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
                return UNSURE
            p += 1
            if kind <= tree.LISTED:
                if depth == 0:
                    pieces[parts.FILLED_COLUMNS] = found
                if nodes[k, tree.LEFT]:
                    node = nodes[k, tree.LEFT]
                    if pieces[parts.COUNT] == 0:
                        set_null(node, e, nodes, words, valid, entry_counts)
                    elif not parts.write_rest(b, node, e, nodes, words, valid, text, entry_counts, pieces):
                        return FULL + len(entry_counts) - 1
                    pieces[parts.COUNT] = pieces[parts.MEMBERS] = 0
                    nodes[node, tree.SEEN] = stamp
                    found += 1
                if found < nodes[k, tree.FIELDS] and not _fill_missing(
                    k, e, stamp, nodes, lists, words, valid, entry_counts
                ):
                    return UNSURE
            else:
                inner = entry_counts[nodes[k, tree.INNER], USED]
                to = nodes[k, tree.BASE] + e
                if kind == tree.MAP:
                    first = words[to - 1] if e else 0
                    keys = nodes[k + 1, tree.BASE]
                    if has_duplicate_key(b, text, keys, first, inner, words, slots, HASH_FACTOR):
                        return UNSURE
                words[to] = inner
            if depth == 0:
                return SURE if skip_white_space(b, p, end) == end else UNSURE
            depth -= 1
            if frames[depth, 5] >= 0:
                in_list = nodes[frames[depth, 0], tree.KIND] == tree.LIST
                if not parts.end_container(frames[depth, 5], c, in_list, pieces):
                    return UNSURE
            k, e, last = frames[depth, 0], frames[depth, 1], frames[depth, 2]
            found, stamp = frames[depth, 3], frames[depth, 4]
            kind = nodes[k, tree.KIND]
            close = 93 if kind == tree.LIST or kind == tree.LISTED else 125
            opened = False


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
        return NO, -1
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
    k: int, e: int, stamp: int, nodes: Numbers, lists: Numbers, words: Numbers, valid: Octets, entry_counts: Numbers
) -> bool:
    """Write null to the fields that an object does not have. Returns False if a required field is missing."""
    first = nodes[k, tree.CHILDREN]
    for c in range(first, first + nodes[k, tree.FIELDS]):
        node = lists[c]
        if nodes[node, tree.SEEN] != stamp:
            if nodes[node, tree.REQUIRED]:
                return False
            set_null(node, e, nodes, words, valid, entry_counts)
    return True
