"""The bytes of JSON messages: what is refused before any parser sees it, and what can be parsed many at once.

Messages are joined by newlines and parsed as one text. Row i is message i provided that every message starts with
`{`, ends with `}` and holds no newline and no NUL (which ends the text for Arrow's reader), and that there are as many
rows as messages: a message then cannot end inside another (a newline inside a string is an error, and after a nested
`}` a `{` is), and one that holds two objects makes a row too many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

WHITE_SPACE = b" \t\r\n"
STRING = re.compile(rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
"""One that does not end goes to the end of the text: else each quote in it would be tried as a beginning."""
MAX_DEPTH = 500
"""Deeper objects and arrays are refused, ignored ones too: parsers that recurse have an end somewhere."""

_NEWLINE, _OPEN, _CLOSE = b"\n{}"
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))
STRINGS = re.compile(b"(" + STRING.pattern + b")", re.DOTALL)


class Refused(Exception):
    """One record that makes no row, and why."""

    def __init__(self, error_class: str, error: str) -> None:
        self.error_class, self.error = error_class, error


def stripped(value: bytes | None) -> bytes:
    """One message without the white space around it: an object of UTF-8, to all appearance. Raises Refused."""
    if value is None:
        raise Refused("Tombstone", "the message has no value")
    text = value.strip(WHITE_SPACE)
    if not text:
        raise Refused("Empty", "the message's value is empty")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise Refused("NotAnObject", "a JSON object is needed: the value does not start with { and end with }")
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise Refused("InvalidUtf8", f"the value is not UTF-8 (byte {error.start})") from None
    if too_deep(text):
        raise Refused("TooDeep", f"objects and arrays are nested more than {MAX_DEPTH} deep")
    return text


def too_deep(text: bytes) -> bool:
    """Whether objects and arrays are nested more than MAX_DEPTH deep, strings apart."""
    if len(text) <= MAX_DEPTH or text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    outside = STRING.sub(b"", text) if b'\\"' in text else b"".join(text.split(b'"')[::2])
    steps = np.frombuffer(outside.translate(_STEPS, _NO_BRACKET), np.int8)
    return len(steps) > MAX_DEPTH and int(np.cumsum(steps, dtype=np.int32).max()) > MAX_DEPTH


def join_if_safe(values: Sequence[bytes | None]) -> bytes | None:
    """The messages joined by newlines, or None where any of them needs a look of its own."""
    try:
        text = b"\n".join(values)  # type: ignore[arg-type]  # a tombstone is the TypeError
    except TypeError:
        return None
    if not (text.startswith(b"{") and text.endswith(b"}")) or b"\x00" in text:
        return None
    octets = np.frombuffer(text, np.uint8)
    newlines = np.flatnonzero(octets == _NEWLINE)
    alone = len(newlines) == len(values) - 1
    if not (alone and (octets[newlines - 1] == _CLOSE).all() and (octets[newlines + 1] == _OPEN).all()):
        return None
    lengths = np.diff(newlines, prepend=-1, append=len(text)) - 1
    if any(too_deep(values[i]) for i in np.flatnonzero(lengths > MAX_DEPTH).tolist()):  # type: ignore[arg-type]  # as above
        return None
    return text if is_utf8(text) else None


def is_utf8(text: bytes) -> bool:
    """Whether all of it is UTF-8, by Arrow's validation: no copy, no Python string."""
    offsets = np.array([0, len(text)], np.int64)
    octets = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    try:
        octets.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def joinable(value: bytes | None) -> bytes | None:
    """One message in the form that can be joined and means the same, or None where it has none.

    Newlines inside become carriage returns: between tokens both are white space, and inside a string both are errors.
    """
    try:
        text = stripped(value)
    except Refused:
        return None
    return None if b"\x00" in text else text.replace(b"\n", b"\r")


def without_specials(text: bytes) -> bytes:
    """NaN and the infinities, outside strings, as the numbers that stand for them here."""
    count = text.count(b"NaN") + text.count(b"Inf")
    if not count:
        return text
    plain = b'\\"' not in text  # each quotation mark begins or ends a string
    if count == 1 and plain:
        place = max(text.find(b"NaN"), text.find(b"Inf"))
        return text if text.count(b'"', 0, place) % 2 else _named_numbers(text)
    parts = text.split(b'"') if plain else STRINGS.split(text)
    parts[::2] = [_named_numbers(part) if b"N" in part or b"I" in part else part for part in parts[::2]]
    return (b'"' if plain else b"").join(parts)


def _named_numbers(text: bytes) -> bytes:
    text = text.replace(b"-NaN", b"NaN").replace(b"NaN", b" 1e9990001 ").replace(b"Infinity", b"Inf")
    return text.replace(b"-Inf", b" -1e9990002 ").replace(b"Inf", b" 1e9990002 ")
