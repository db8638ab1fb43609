"""Compiled: records to the words of columns, each record sure or not at all.

One loop reads records of any schema: it is driven by the table of nodes, and compiled once. Where a record is anything
but a row of the schema beyond doubt, it leaves no trace but its mark, and the reader of single records says what it is.

A value of node k at entry e is at `words[base[k] + width * e]`, where e counts the entries of the node's domain:

- a number, date, time or boolean: one word, a double's as its bits
- a string, or bytes: where they begin, and their length; a beginning of -1 - x is x in `text`, not in the records
- a decimal or UUID: two words in the order of Arrow's
- a list or map: where its elements end, in the elements' domain

and whether it is there is at `valid[flag[k] + e]`.
"""

# ruff: noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917, PLR1714, SIM109 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.compiled import load64
from frazil.ingest.formats.json.moments import NEVER, clock, days, timestamp
from frazil.ingest.formats.json.nodes import (
    AFTER,
    BASE,
    BINARY,
    BOOLEAN,
    CHILDREN,
    DATE,
    DECIMAL,
    FIELDS,
    FIXED,
    FLAG,
    FLOAT,
    FOLLOWING,
    INNER,
    INT,
    KEY,
    KIND,
    LENGTH,
    LIST,
    LONGEST,
    MAP,
    MASK,
    MILLISECONDS,
    NAME,
    NANOSECONDS,
    OPENING,
    PLAIN,
    PRECISION,
    REQUIRED,
    SCALE,
    SECONDS,
    SEEN,
    SLOTS,
    STRING,
    STRUCT,
    TIMESTAMP,
    UUID,
    Numbers,
)
from frazil.ingest.formats.json.numbers import decimal, double, integer, seconds
from frazil.ingest.formats.json.scan import HEX, NO, Bytes, literal_end, loop, string_end, unescape, value_end, white

SURE, UNSURE, FULL = 0, 1, 2
"""What became of a record; it is to be read again once there is more room."""

_base64 = np.full(256, -1, np.int64)
for _value, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _base64[_letter] = _value
BASE64 = _base64
FIRST = np.array([(1 << 8 * count) - 1 for count in range(8)])
"""So many of a word's bytes."""
_FEW = 16
"""So many keys of a map are compared each with each; of more, a table is made."""

# Columns of the table of domains; behind the last domain is a row for the bytes in `text`.
USED, ROOM, BEFORE = range(3)
"""Entries so far, how many there may be, and how many there were before the record that is read."""


@loop
def read_records(
    b: Bytes,
    starts: Numbers,
    lengths: Numbers,
    first: int,
    nodes: Numbers,
    lists: Numbers,
    names: Bytes,
    words: Numbers,
    valid: Bytes,
    text: Bytes,
    domains: Numbers,
    frames: Numbers,
    scratch: Bytes,
    slots: Numbers,
    unsure: Bytes,
) -> tuple[int, int]:
    """Read records from the first on. Returns how many were read in all, and the domain that lacked room for more."""
    for i in range(first, len(starts)):
        start, end = starts[i], starts[i] + lengths[i]
        unsure[i] = 1
        # Where the newline behind a record is not as promised, nothing is read.
        if lengths[i] < 2 or start < 0 or end >= len(b) or b[end] != 10:
            continue
        for d in range(len(domains)):
            domains[d, BEFORE] = domains[d, USED]
        found = _record(b, start, end, nodes, lists, names, words, valid, text, domains, frames, scratch, slots)
        if found == SURE:
            unsure[i] = 0
            domains[0, USED] += 1
            continue
        for d in range(len(domains)):
            domains[d, USED] = domains[d, BEFORE]
        if found != UNSURE:
            return i, found - FULL
    return len(starts), 0


@loop
def _record(
    b: Bytes,
    p: int,
    end: int,
    nodes: Numbers,
    lists: Numbers,
    names: Bytes,
    words: Numbers,
    valid: Bytes,
    text: Bytes,
    domains: Numbers,
    frames: Numbers,
    scratch: Bytes,
    slots: Numbers,
) -> int:
    """SURE, UNSURE, or FULL + d where domain d lacks room."""
    p = white(b, p, end)
    if b[p] != 123:
        return UNSURE
    p = white(b, p + 1, end)
    nodes[0, SEEN] += 1
    stamp = nodes[0, SEEN]
    k, e, last, found, depth = 0, domains[0, USED], -1, 0, 0
    kind = STRUCT
    opened = True
    while True:
        # At a member of container k, or at the end of one that is empty.
        if not (opened and b[p] == (93 if kind == LIST else 125)):
            opened = False
            at = e
            if kind == STRUCT:
                if b[p] != 34:
                    return UNSURE
                p, node = _field(b, p + 1, k, last, nodes, lists, names, scratch)
                if p < 0:
                    return UNSURE
                if node >= 0:
                    if nodes[node, SEEN] == stamp:
                        return UNSURE
                    nodes[node, SEEN] = stamp
                    found += 1
                    last = node
            else:
                inner = nodes[k, INNER]
                at = domains[inner, USED]
                if at >= domains[inner, ROOM]:
                    return FULL + int(inner)
                domains[inner, USED] += 1
                node = k + 1
                if kind == MAP:
                    if b[p] != 34:
                        return UNSURE
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return UNSURE
                    if not _keep(b, first, p, escaped, nodes[node, BASE] + 2 * at, words, text, domains):
                        return FULL + len(domains) - 1
                    valid[nodes[node, FLAG] + at] = 1
                    node = k + 2
            if kind != LIST:
                p = white(b, p + 1, end)
                if b[p] != 58:
                    return UNSURE
                p = white(b, p + 1, end)
            if node < 0:
                p = value_end(b, p, end, depth + 1, scratch)
                if p < 0:
                    return UNSURE
            elif b[p] == 110:
                if b[p + 1] != 117 or b[p + 2] != 108 or b[p + 3] != 108 or nodes[node, REQUIRED]:
                    return UNSURE
                p += 4
                _set_null(node, at, nodes, words, valid, domains)
            else:
                of = nodes[node, KIND]
                to = nodes[node, BASE] + at
                if of >= STRUCT:
                    if b[p] != (91 if of == LIST else 123):
                        return UNSURE
                    valid[nodes[node, FLAG] + at] = 1
                    frames[depth, 0], frames[depth, 1], frames[depth, 2] = k, e, last
                    frames[depth, 3], frames[depth, 4] = found, stamp
                    depth += 1
                    nodes[0, SEEN] += 1
                    stamp = nodes[0, SEEN]
                    k, kind, e, last, found, opened = node, of, at, -1, 0, True
                    p = white(b, p + 1, end)
                    continue
                if of == STRING:
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
                    elif not _keep(b, first, p, escaped, to, words, text, domains):
                        return FULL + len(domains) - 1
                    p += 1
                elif of <= INT:
                    p, value = integer(b, p)
                    if of == INT and not -(2**31) <= value < 2**31:
                        return UNSURE
                    words[to] = value
                elif of <= FLOAT:
                    p, number = double(b, p)
                    if of == FLOAT and np.isinf(np.float32(number)) and not np.isinf(number):
                        return UNSURE
                    words[to] = np.float64(number).view(np.int64)
                elif of == TIMESTAMP:
                    if b[p] != 34:
                        return UNSURE
                    p, value = timestamp(b, p + 1)
                    if p < 0 or b[p] != 34:
                        return UNSURE
                    words[to] = value
                    p += 1
                elif of == DECIMAL or of == UUID:
                    p = _two_words(b, p, of, nodes[node, PRECISION], nodes[node, SCALE], to + at, words)
                elif of == BINARY or of == FIXED:
                    if b[p] != 34:
                        return UNSURE
                    first = p + 1
                    p, escaped = string_end(b, first)
                    if p < 0:
                        return UNSURE
                    if not _keep_octets(b, first, p, escaped, to + at, words, text, domains):
                        return FULL + len(domains) - 1
                    length = words[to + at + 1]
                    if length < 0 or (of == FIXED and length != nodes[node, PRECISION]):
                        return UNSURE
                    p += 1
                else:
                    p, words[to] = _one_word(b, p, of)
                if p < 0:
                    return UNSURE
                valid[nodes[node, FLAG] + at] = 1
        # Behind a member, or at the end of a container.
        while True:
            p = white(b, p, end)
            c = b[p]
            if c == 44 and not opened:
                p = white(b, p + 1, end)
                break
            if c != (93 if kind == LIST else 125):
                return UNSURE
            p += 1
            if kind == STRUCT:
                if found < nodes[k, FIELDS] and not _complete(k, e, stamp, nodes, lists, words, valid, domains):
                    return UNSURE
            else:
                inner = domains[nodes[k, INNER], USED]
                if kind == MAP and _repeats(
                    b, text, nodes[k + 1, BASE], words[nodes[k, BASE] + e - 1] if e else 0, inner, words, slots
                ):
                    return UNSURE
                words[nodes[k, BASE] + e] = inner
            if depth == 0:
                return SURE if white(b, p, end) == end else UNSURE
            depth -= 1
            k, e, last = frames[depth, 0], frames[depth, 1], frames[depth, 2]
            found, stamp = frames[depth, 3], frames[depth, 4]
            kind = nodes[k, KIND]
            opened = False


@loop
def _field(
    b: Bytes, p: int, k: int, last: int, nodes: Numbers, lists: Numbers, names: Bytes, scratch: Bytes
) -> tuple[int, int]:
    """Where a key ends that begins here, and which of the struct's fields it names; -1 is none of them."""
    guess = nodes[k, OPENING] if last < 0 else nodes[last, FOLLOWING]
    if guess >= 0 and nodes[guess, PLAIN]:
        after, key = p + nodes[guess, LENGTH] + 1, nodes[guess, KEY]
        if after + 8 <= len(b):
            address = np.int64(b.ctypes.data)
            q = p
            while q + 8 <= after and load64(address + q) == lists[key]:
                q += 8
                key += 1
            if q == after or (after - q < 8 and (load64(address + q) ^ lists[key]) & FIRST[after - q] == 0):
                return after - 1, guess
    q, escaped = string_end(b, p)
    if q < 0:
        return NO, -1
    if not escaped:
        node = _named(b, p, q - p, k, nodes, lists, names)
    elif q - p <= len(scratch):
        node = _named(scratch, 0, unescape(b, p, q, scratch, 0), k, nodes, lists, names)
    else:
        return NO, -1
    if node >= 0:
        if last < 0:
            nodes[k, OPENING] = node
        else:
            nodes[last, FOLLOWING] = node
    return q, node


@loop
def _named(b: Bytes, p: int, length: int, k: int, nodes: Numbers, lists: Numbers, names: Bytes) -> int:
    """The field of a struct that has this name; -1 if none has."""
    if length > nodes[k, LONGEST]:
        return -1
    value = length
    for q in range(p, p + length):
        value = (value * 31 + b[q]) & 0xFFFFFFFF
    mask, slots = nodes[k, MASK], nodes[k, SLOTS]
    slot = value & mask
    while lists[slots + slot] >= 0:
        node = int(lists[slots + slot])
        if nodes[node, LENGTH] == length:
            name, q = nodes[node, NAME], 0
            while q < length and b[p + q] == names[name + q]:
                q += 1
            if q == length:
                return node
        slot = (slot + 1) & mask
    return -1


@loop
def _set_null(node: int, e: int, nodes: Numbers, words: Numbers, valid: Bytes, domains: Numbers) -> None:
    """Nothing at this entry of a node, and of what it encloses."""
    k, after = node, nodes[node, AFTER]
    while k < after:
        kind, base = nodes[k, KIND], nodes[k, BASE]
        valid[nodes[k, FLAG] + e] = 0
        if kind == LIST or kind == MAP:
            words[base + e] = domains[nodes[k, INNER], USED]
            k = nodes[k, AFTER]
            continue
        if kind == STRING or kind == BINARY or kind == FIXED or kind == DECIMAL or kind == UUID:
            words[base + 2 * e] = 0
            words[base + 2 * e + 1] = 0
        elif kind != STRUCT:
            words[base + e] = 0
        k += 1


@loop
def _complete(
    k: int, e: int, stamp: int, nodes: Numbers, lists: Numbers, words: Numbers, valid: Bytes, domains: Numbers
) -> bool:
    """Nothing for the fields that an object lacks; False where one of them is required."""
    first = nodes[k, CHILDREN]
    for c in range(first, first + nodes[k, FIELDS]):
        node = lists[c]
        if nodes[node, SEEN] != stamp:
            if nodes[node, REQUIRED]:
                return False
            _set_null(node, e, nodes, words, valid, domains)
    return True


@loop
def _one_word(b: Bytes, p: int, kind: int) -> tuple[int, int]:
    """Where a boolean, date, time or number since the epoch ends, and what it is."""
    if kind == BOOLEAN:
        return (literal_end(b, p) if b[p] == 116 or b[p] == 102 else NO), 1 if b[p] == 116 else 0
    if kind == SECONDS:
        text = b[p] == 34
        p, value = seconds(b, p + text)
        if p < 0 or not text:
            return p, value
        return p + 1 if b[p] == 34 else NO, value
    if kind >= MILLISECONDS:
        p, value = integer(b, p)
        if kind == MILLISECONDS:
            return p if -(2**63) // 1000 < value < 2**63 // 1000 else NO, value * 1000
        if kind == NANOSECONDS:
            return p if value != NEVER else NO, value // 1000 if value >= 0 else -(-value // 1000)
        return p, value
    if b[p] != 34:
        return NO, 0
    if kind == DATE:
        value = days(b, p + 1)
        return p + 12 if value != NEVER and b[p + 11] == 34 else NO, value
    p, value = clock(b, p + 1)
    return p + 1 if p >= 0 and b[p] == 34 else NO, value


@loop
def _two_words(b: Bytes, p: int, kind: int, precision: int, scale: int, at: int, words: Numbers) -> int:
    """Where a decimal or a UUID ends, whose words are written."""
    text = b[p] == 34
    if kind == DECIMAL:
        p, high, low = decimal(b, p + text, precision, scale, text)
        words[at] = np.int64(low)
        words[at + 1] = np.int64(high)
        if p < 0 or not text:
            return p
        return p + 1 if b[p] == 34 else NO
    return _uuid(b, p + 1, at, words) if text else NO


@loop
def _uuid(b: Bytes, p: int, at: int, words: Numbers) -> int:
    """32 hexadecimal digits with hyphens anywhere; the first byte is the lowest of the first word."""
    digits = 0
    words[at] = 0
    words[at + 1] = 0
    while b[p] != 34:
        if b[p] != 45:
            digit = HEX[b[p]]
            if digit < 0 or digits == 32:
                return NO
            words[at + digits // 16] |= digit << (digits % 16 // 2 * 8 + (4 if digits % 2 == 0 else 0))
            digits += 1
        p += 1
    return p + 1 if digits == 32 else NO


@loop
def _keep(b: Bytes, p: int, end: int, escaped: bool, at: int, words: Numbers, text: Bytes, domains: Numbers) -> bool:
    """Say at these words where a string is; one with escapes is first written into `text`. False where that is full."""
    if not escaped:
        words[at] = p
        words[at + 1] = end - p
        return True
    last = len(domains) - 1
    used = domains[last, USED]
    if used + end - p > domains[last, ROOM]:
        return False
    after = unescape(b, p, end, text, used)
    words[at] = -1 - used
    words[at + 1] = after - used
    domains[last, USED] = after
    return True


@loop
def _keep_octets(
    b: Bytes, p: int, end: int, escaped: bool, at: int, words: Numbers, text: Bytes, domains: Numbers
) -> bool:
    """The same of a string of base64, whose bytes are written into `text`; a length of -1 says that it is none.

    Some libraries write a slash, or a plus, as an escape.
    """
    last = len(domains) - 1
    used = domains[last, USED]
    if used + end - p > domains[last, ROOM]:
        return False
    if escaped:
        length = _octets(text, used, unescape(b, p, end, text, used), text, used)
    else:
        length = _octets(b, p, end, text, used)
    words[at] = -1 - used
    words[at + 1] = length
    domains[last, USED] = used + max(length, 0)
    return True


@loop
def _octets(b: Bytes, p: int, end: int, to: Bytes, at: int) -> int:
    """Base64 with padding, written from `at`, which may be where it is read: how many bytes; -1 if it is none."""
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
def _repeats(b: Bytes, text: Bytes, base: int, first: int, end: int, words: Numbers, slots: Numbers) -> bool:
    """Whether a map, whose entries these are, may have a key twice."""
    if end - first <= _FEW:
        for i in range(first, end):
            for j in range(first, i):
                if _same(b, text, base + 2 * i, base + 2 * j, words):
                    return True
        return False
    size = 1
    while size < 2 * (end - first):
        size *= 2
    if size > len(slots):
        return True
    slots[:size] = -1
    for i in range(first, end):
        start, length = words[base + 2 * i], words[base + 2 * i + 1]
        value = length
        for q in range(length):
            octet = b[start + q] if start >= 0 else text[q - start - 1]
            value = (value * 31 + octet) & 0xFFFFFFFF
        slot = value & (size - 1)
        while slots[slot] >= 0:
            if _same(b, text, base + 2 * i, base + 2 * slots[slot], words):
                return True
            slot = (slot + 1) & (size - 1)
        slots[slot] = i
    return False


@loop
def _same(b: Bytes, text: Bytes, one: int, other: int, words: Numbers) -> bool:
    length = words[one + 1]
    if length != words[other + 1]:
        return False
    s, t = words[one], words[other]
    for q in range(length):
        x = b[s + q] if s >= 0 else text[q - s - 1]
        y = b[t + q] if t >= 0 else text[q - t - 1]
        if x != y:
            return False
    return True


@loop
def gathered(b: Bytes, text: Bytes, spans: Numbers, offsets: Numbers, to: Bytes) -> None:
    """Copy strings of (start, length) pairs one behind the other."""
    at = 0
    for i in range(len(offsets) - 1):
        start, length = spans[2 * i], spans[2 * i + 1]
        if start >= 0:
            for q in range(length):
                to[at + q] = b[start + q]
        else:
            start = -1 - start
            for q in range(length):
                to[at + q] = text[start + q]
        at += length
        offsets[i + 1] = at
