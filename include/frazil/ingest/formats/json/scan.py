"""Scans JSON tokens in compiled code, as strictly as RFC 8259. Functions return `NO` if the bytes do not match.

Scanning stops at the newline after a record. Functions that skip white space get the end of the record.
"""

# ruff: noqa: PLR0911, PLR0912 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from frazil.ingest.compiled import compiled, load64
from frazil.ingest.formats.json.text import MAX_DEPTH

Octets = NDArray[np.uint8]

loop = partial(compiled, allocates=False)

NO = -1

_ordinary = np.zeros(256, np.bool_)
_ordinary[32:127] = True
_ordinary[[34, 92]] = False
_ordinary[127] = True
_ONES, _SPACES, _QUOTES, _BACKSLASHES, _HIGHEST = (
    np.frombuffer(bytes([octet]) * 8, np.int64)[0] for octet in b'\x01 "\\\x80'
)
ORDINARY = _ordinary
"""Bytes that a string may contain without an escape: ASCII except `"`, backslash and control characters."""
_hex = np.full(256, -1, np.int64)
for _digit in b"0123456789abcdefABCDEF":
    _hex[_digit] = int(chr(_digit), 16)
HEX = _hex
_escapes = np.full(256, -1, np.int64)
for _letter, _meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _escapes[_letter] = _meaning
ESCAPES = _escapes
"""The character for each letter after a backslash, except `u`."""


@loop
def skip_white_space(b: Octets, p: int, end: int) -> int:
    while b[p] <= 32 and p < end and (b[p] == 32 or b[p] == 10 or b[p] == 13 or b[p] == 9):
        p += 1
    return p


@loop
def is_digit(c: int) -> bool:
    return 48 <= c <= 57


@loop
def literal_end(b: Octets, p: int) -> int:
    c = b[p]
    if c == 116:
        return p + 4 if b[p + 1] == 114 and b[p + 2] == 117 and b[p + 3] == 101 else NO
    if c == 110:
        return p + 4 if b[p + 1] == 117 and b[p + 2] == 108 and b[p + 3] == 108 else NO
    if c == 102 and b[p + 1] == 97 and b[p + 2] == 108 and b[p + 3] == 115 and b[p + 4] == 101:
        return p + 5
    return NO


@loop
def special_number_end(b: Octets, p: int) -> int:
    if b[p] == 78:
        return p + 3 if b[p + 1] == 97 and b[p + 2] == 78 else NO
    if not (b[p] == 73 and b[p + 1] == 110 and b[p + 2] == 102):
        return NO
    long = b[p + 3] == 105 and b[p + 4] == 110 and b[p + 5] == 105 and b[p + 6] == 116 and b[p + 7] == 121
    return p + 8 if long else p + 3


@loop
def number_end(b: Octets, p: int) -> int:
    if b[p] == 45:
        p += 1
    if b[p] == 78 or b[p] == 73:
        return special_number_end(b, p)
    if b[p] == 48:
        p += 1
    elif is_digit(b[p]):
        while is_digit(b[p]):
            p += 1
    else:
        return NO
    if b[p] == 46:
        p += 1
        if not is_digit(b[p]):
            return NO
        while is_digit(b[p]):
            p += 1
    if b[p] | 32 == 101:
        p += 1
        if b[p] == 43 or b[p] == 45:
            p += 1
        if not is_digit(b[p]):
            return NO
        while is_digit(b[p]):
            p += 1
    return p


@loop
def read_hex4(b: Octets, p: int) -> int:
    value = 0
    for q in range(p, p + 4):
        digit = HEX[b[q]]
        if digit < 0:
            return NO
        value = value * 16 + digit
    return value


@loop
def utf8_length(b: Octets, p: int) -> int:
    """Return the length of the non-ASCII character that begins at `p`; 0 if invalid (Unicode standard, table 3-7)."""
    first, second = b[p], b[p + 1]
    if 0xC2 <= first <= 0xDF:
        return 2 if 0x80 <= second <= 0xBF else 0
    if 0xE0 <= first <= 0xEF:
        lowest = 0xA0 if first == 0xE0 else 0x80
        highest = 0x9F if first == 0xED else 0xBF
        return 3 if lowest <= second <= highest and 0x80 <= b[p + 2] <= 0xBF else 0
    if 0xF0 <= first <= 0xF4:
        lowest = 0x90 if first == 0xF0 else 0x80
        highest = 0x8F if first == 0xF4 else 0xBF
        valid = lowest <= second <= highest and 0x80 <= b[p + 2] <= 0xBF and 0x80 <= b[p + 3] <= 0xBF
        return 4 if valid else 0
    return 0


@loop
def find_invalid_utf8(b: Octets, p: int, end: int) -> int:
    """Return the position of the first invalid UTF-8 byte in `[p, end)`, or NO. Reads up to three bytes after `end`."""
    address = np.int64(b.ctypes.data)
    while p < end:
        while p + 8 <= end and load64(address + p) & _HIGHEST == 0:
            p += 8
        if p < end:
            if b[p] < 128:
                p += 1
            else:
                length = utf8_length(b, p)
                if length == 0 or p + length > end:
                    return p
                p += length
    return NO


@loop
def _all_ordinary(eight: int) -> bool:
    quotes, backslashes = (eight ^ _QUOTES) - _ONES, (eight ^ _BACKSLASHES) - _ONES
    return bool((eight | eight - _SPACES | quotes | backslashes) & _HIGHEST == 0)


@loop
def string_end(b: Octets, p: int) -> tuple[int, bool]:
    """Return where a string's content at `p` ends (NO if invalid), and whether it has escapes."""
    escaped = False
    last = len(b) - 8
    address = np.int64(b.ctypes.data)
    while True:
        while p <= last and _all_ordinary(load64(address + p)):
            p += 8
        while ORDINARY[b[p]]:
            p += 1
        c = b[p]
        if c == 34:
            return p, escaped
        if c >= 0x80:
            length = utf8_length(b, p)
            if length == 0:
                return NO, escaped
            p += length
            continue
        if c != 92:
            return NO, escaped
        escaped = True
        if b[p + 1] != 117:
            if ESCAPES[b[p + 1]] < 0:
                return NO, escaped
            p += 2
            continue
        unit = read_hex4(b, p + 2)
        if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
            return NO, escaped
        p += 6
        if 0xD800 <= unit <= 0xDBFF:
            if b[p] != 92 or b[p + 1] != 117 or not 0xDC00 <= read_hex4(b, p + 2) <= 0xDFFF:
                return NO, escaped
            p += 6


@loop
def unescape(b: Octets, p: int, end: int, to: Octets, at: int) -> int:
    """Unescape a string's content `[p, end)`, which `string_end` accepted. Returns the position after it in `to`."""
    while p < end:
        c = b[p]
        if c != 92:
            to[at] = c
            at += 1
            p += 1
            continue
        if b[p + 1] != 117:
            to[at] = ESCAPES[b[p + 1]]
            at += 1
            p += 2
            continue
        code = read_hex4(b, p + 2)
        p += 6
        if code < 0x80:
            to[at] = code
            at += 1
            continue
        if code < 0x800:
            to[at] = 0xC0 | code >> 6
            at += 1
        else:
            if 0xD800 <= code <= 0xDBFF:
                code = 0x10000 + ((code - 0xD800) << 10) + read_hex4(b, p + 2) - 0xDC00
                p += 6
                to[at] = 0xF0 | code >> 18
                to[at + 1] = 0x80 | code >> 12 & 0x3F
                at += 2
            else:
                to[at] = 0xE0 | code >> 12
                at += 1
            to[at] = 0x80 | code >> 6 & 0x3F
            at += 1
        to[at] = 0x80 | code & 0x3F
        at += 1
    return at


@loop
def _skip_key(b: Octets, p: int, end: int) -> int:
    """Skip the key that begins at `p`, and its colon. Returns where the value starts."""
    if b[p] != 34:
        return NO
    p, _ = string_end(b, p + 1)
    if p < 0:
        return NO
    p = skip_white_space(b, p + 1, end)
    return skip_white_space(b, p + 1, end) if b[p] == 58 else NO


@loop
def value_end(b: Octets, p: int, end: int, depth: int, opened: Octets) -> int:
    """Return the end of the value at `p`, which `depth` values enclose. `opened` is scratch memory."""
    enclosing = depth
    while True:
        c = b[p]
        if c == 34:
            p, _ = string_end(b, p + 1)
            if p < 0:
                return NO
            p += 1
        elif c in (91, 123):
            if depth >= MAX_DEPTH:
                return NO
            opened[depth] = c
            depth += 1
            p = skip_white_space(b, p + 1, end)
            if b[p] != c + 2:
                if c == 123:
                    p = _skip_key(b, p, end)
                    if p < 0:
                        return NO
                continue
        else:
            p = literal_end(b, p) if c in (116, 102, 110) else number_end(b, p)
            if p < 0:
                return NO
        while True:
            if depth == enclosing:
                return p
            p = skip_white_space(b, p, end)
            c = b[p]
            p += 1
            if c == 44:
                p = skip_white_space(b, p, end)
                if opened[depth - 1] == 123:
                    p = _skip_key(b, p, end)
                    if p < 0:
                        return NO
                break
            if c != opened[depth - 1] + 2:
                return NO
            depth -= 1
