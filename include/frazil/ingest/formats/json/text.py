"""Checks and reads individual JSON messages outside of the compiled loop. Replaces NaN and infinities with numbers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

WHITE_SPACE = b" \t\r\n"
STRING = re.compile(rb'"[^"\\]*+(?:\\.?+[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
"""Pattern of a string. A string without a closing quotation mark extends to the end of the text."""
MAX_DEPTH = 500
"""Maximum nesting of objects and arrays, even in ignored fields."""

_DEPTH_CHANGES = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))
_STRINGS = re.compile(b"(" + STRING.pattern + b")", re.DOTALL)
_ENCODED = f"1e999{secrets.randbelow(10**12):012}"
"""The beginning of the numbers in `SPECIALS`: random, so that no record contains it."""
_SPECIAL_NUMBERS = {"NaN": f"{_ENCODED}1", "Infinity": f"{_ENCODED}2", "Inf": f"{_ENCODED}3"}
SPECIALS = {f"{sign}{name}": f"{sign}{text}".encode() for name, text in _SPECIAL_NUMBERS.items() for sign in ("", "-")}
"""Numbers that replace NaN and infinities, which strict JSON does not have."""
_SPECIAL_PATTERN = re.compile(rb"-?(?:NaN|Inf(?:inity)?)")
_ENCODED_PATTERN = re.compile(rf" ?(-?{_ENCODED}[123])(?![0-9]) ?".encode())
_SPECIAL_NAMES = {number: name.encode() for name, number in SPECIALS.items()}

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_UTF_32 = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff", b"{\x00\x00\x00", b"\x00\x00\x00{\x00\x00\x00")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{\x00")
"""First bytes of a JSON object in UTF-16. UTF-32 can begin with the same bytes."""
_decode_string = msgspec.json.Decoder(str).decode
decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BYTE = re.compile(r"(?<=\(byte )[0-9]+")
_TRAILING = re.compile(r"JSON is malformed: trailing characters \(byte ([0-9]+)\)")
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F]..)|.)", re.DOTALL)
"""Pattern of escapes. The group matches an unpaired surrogate."""


class RecordError(Exception):
    def __init__(self, error_class: str, error: str) -> None:
        self.error_class, self.error = error_class, error


def strip_message(value: bytes | None) -> bytes:
    """Remove surrounding white space. Raises RecordError if the value does not look like a JSON object in UTF-8."""
    if value is None:
        raise RecordError("Tombstone", "the message has no value")
    text = value.strip(WHITE_SPACE)
    if not text:
        raise RecordError("Empty", "the message's value is empty")
    if not text.startswith(b"{") or text.startswith(b"{\x00"):
        raise RecordError("NotAnObject", _not_an_object_text(text))
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise RecordError("InvalidUtf8", f"the value is not UTF-8 (byte {error.start})") from None
    if is_too_deep(text):
        raise RecordError("TooDeep", f"objects and arrays are nested more than {MAX_DEPTH} deep")
    return text


def _not_an_object_text(text: bytes) -> str:
    if text.startswith(_BYTE_ORDER_MARK):
        return "the value begins with a byte order mark: write UTF-8 without one"
    for magic, name in _COMPRESSIONS.items():
        if text.startswith(magic):
            return (
                f"the value is compressed with {name} (it begins with {magic.hex(' ')}): write plain JSON, and let the "
                "producer's compression.type compress it"
            )
    if text.startswith(_UTF_32):
        return "the value is UTF-32: write UTF-8"
    if text.startswith(_UTF_16):
        return "the value is UTF-16: write UTF-8"
    if text.startswith(b"\x00") and len(text) > 5:
        return (
            f"the value begins with a 0 byte, as in Confluent's wire format (schema id {int.from_bytes(text[1:5])}): "
            "declare source.format: {type: json, framing: confluent}, or write JSON without a schema registry"
        )
    return "expected a JSON object: the value does not start with {"


def is_too_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Return whether objects and arrays are nested deeper than the limit. Ignores brackets inside strings."""
    if len(text) <= limit or text.count(b"[") + text.count(b"{") <= limit:
        return False
    outside = STRING.sub(b"", text) if b'\\"' in text else b"".join(text.split(b'"')[::2])
    steps = np.frombuffer(outside.translate(_DEPTH_CHANGES, _NO_BRACKET), np.int8)
    return len(steps) > limit and int(np.cumsum(steps, dtype=np.int32).max()) > limit


def explain_invalid(value: bytes | None) -> tuple[str, str] | None:
    """Return the error class and text of a value that is not a JSON object; None if it is one."""
    try:
        text = strip_message(value)
        plain = encode_special_numbers(text)
        try:
            decode_members(plain)
        except RecursionError:
            # Python adds the parser's depth to the caller's frames. A new thread has no frames yet.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(decode_members, plain).result()
    except RecordError as error:
        return error.error_class, error.error
    except msgspec.DecodeError as error:
        message = _BYTE.sub(lambda at: str(len(decode_special_numbers(plain[: int(at[0])]))), str(error))
        return "InvalidJson", _malformed_text(text, message)
    return None


def _malformed_text(text: bytes, message: str) -> str:
    if "surrogate" in message or "hex escape" in message or "truncated" in message:
        for escape in _ESCAPES.finditer(text):
            if escape[1] is not None:
                half = f"\\u{escape[1].decode('ascii', 'replace')}"
                return f"JSON is malformed: {half} is half of a surrogate pair (byte {escape.start()})"
    match = _TRAILING.fullmatch(message)
    if message == "Input data was truncated" or (match is None and message.endswith(f"(byte {len(text)})")):
        return "the record is truncated: an object, array or string in it does not end"
    if match and text[int(match[1]) - 1 :].lstrip(WHITE_SPACE).startswith(b"{"):
        return (
            f"the value has several objects (another begins at byte {match[1]}): write a record for each. If each is "
            "on a line of its own, declare source.format: {type: json, lines: true}"
        )
    return message


def encode_special_numbers(text: bytes) -> bytes:
    return change_outside_strings(text, b"N", b"I", _replace_specials) if b"NaN" in text or b"Inf" in text else text


def change_outside_strings(text: bytes, one: bytes, other: bytes, changed: Callable[[bytes], bytes]) -> bytes:
    """Apply `changed` to each piece of text outside strings that contains `one` or `other`."""
    plain = b'\\"' not in text  # each quotation mark begins or ends a string
    parts = text.split(b'"') if plain else _STRINGS.split(text)
    parts[::2] = [changed(part) if one in part or other in part else part for part in parts[::2]]
    return (b'"' if plain else b"").join(parts)


def decode_special_numbers(text: bytes) -> bytes:
    def restore(part: bytes) -> bytes:
        return _ENCODED_PATTERN.sub(lambda match: _SPECIAL_NAMES[match[1]], part)

    mark = _ENCODED.encode()
    return change_outside_strings(text, mark, mark, restore) if mark in text else text


def _replace_specials(text: bytes) -> bytes:
    return _SPECIAL_PATTERN.sub(lambda match: b" " + SPECIALS[match[0].decode()] + b" ", text)


def describe(text: bytes) -> str:
    """Describe a value's JSON text for a message."""
    match text[:1]:
        case b'"':
            return f"the string {_decode_string(text)[:64]!r}"
        case b"{":
            return "an object"
        case b"[":
            return "an array"
        case b"t" | b"f":
            return "a boolean"
        case b"n":
            return "null"
    return f"the number {text[:64].decode()}"


def quote_value(text: bytes, path: Sequence[str | int]) -> str | None:
    """Return the value at a path in a record, quoted for a message; None if it cannot be quoted."""
    try:
        return describe(decode_special_numbers(_find_value(text, path)))
    except (msgspec.DecodeError, LookupError):
        return None


def field_names_at(text: bytes, path: Sequence[str]) -> Collection[str]:
    return decode_members(_find_value(text, path)).keys()


def _find_value(text: bytes, path: Sequence[str | int]) -> bytes:
    found = encode_special_numbers(text)
    for step in path:
        found = bytes(decode_elements(found)[step] if isinstance(step, int) else decode_members(found)[step])
    return found


def field_names(value: bytes | None) -> Collection[str]:
    """Return the field names of a record; empty if it cannot be parsed."""
    try:
        return decode_members(encode_special_numbers(strip_message(value))).keys()
    except (RecordError, msgspec.DecodeError, RecursionError):
        return ()
