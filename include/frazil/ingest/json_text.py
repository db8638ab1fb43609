"""The bytes of JSON messages, made safe to parse many at once.

Messages are joined by newlines and parsed as one text. Row i is message i provided that every message starts with
`{`, ends with `}` and holds no newline, and that there are as many rows as messages: a message then cannot end inside
another (a newline inside a string is an error, and after a nested `}` a `{` is), and one that holds two objects makes
a row too many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

WHITE_SPACE = b" \t\r\n"
_NEWLINE, _OPEN, _CLOSE = b"\n{}"


def join_if_safe(values: Sequence[bytes | None]) -> bytes | None:
    """The messages joined by newlines, or None where any of them needs the slower look of `normalise`."""
    try:
        text = b"\n".join(values)  # type: ignore[arg-type]  # a tombstone is the TypeError
    except TypeError:
        return None
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return None
    octets = np.frombuffer(text, np.uint8)
    newlines = np.flatnonzero(octets == _NEWLINE)
    alone = len(newlines) == len(values) - 1
    if not (alone and (octets[newlines - 1] == _CLOSE).all() and (octets[newlines + 1] == _OPEN).all()):
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


def normalise(value: bytes | None) -> bytes | tuple[str, str]:
    """One message in the form that can be joined and means the same, or (error class, text).

    White space around it goes, and newlines inside become carriage returns: between tokens both are white space, and
    inside a string both are errors.
    """
    if value is None:
        return "Tombstone", "the message has no value"
    text = value.strip(WHITE_SPACE)
    if not text:
        return "Empty", "the message's value is empty"
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return "NotAnObject", "a JSON object is needed: the value does not start with { and end with }"
    if not is_utf8(text):
        return "InvalidUtf8", "the value is not UTF-8"
    return text.replace(b"\n", b"\r")
