"""Finds the parts of a JSON record that fill no column, and keeps their text: the oracle of the compiled loop."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from frazil.ingest.formats.json.rest import Entries, FilledPart
from frazil.ingest.formats.json.text import STRING

_TOKEN = re.compile(STRING.pattern + rb"|[\[\]{}]", re.DOTALL)
_ATOM = re.compile(rb"[^ \t\r\n,\]}]+")
_WHITE = re.compile(rb"[ \t\r\n]*")
_decode_name = msgspec.json.Decoder(str).decode


def rest_of(text: bytes, part: FilledPart) -> str | None:
    """Return the `rest` text of an object; None if no field is left."""
    left = _write_rest(text, _skip_white_space(text, 0), part)
    return None if left is None else left.decode()


def _write_rest(text: bytes, at: int, part: FilledPart) -> bytes | None:
    if text.startswith(b"null", at):
        return None
    if isinstance(part, Entries) and not part.is_map:
        parts = [_write_rest(text, value, part.each) for value, _ in _elements(text, at)]
        return b"[" + b",".join(one or b"null" for one in parts) + b"]" if any(parts) else None
    members = []
    for start, name, value, end in _members(text, at):
        if isinstance(part, Entries):
            inside: FilledPart | None = part.each
        elif name in part.taken:
            inside = part.taken[name]
        else:
            if name.lower() not in part.hidden:
                members.append(text[start:end])
            continue
        if inside is not None and (left := _write_rest(text, value, inside)) is not None:
            members.append(text[start:value] + left)
    return b"{" + b",".join(members) + b"}" if members else None


def _members(text: bytes, at: int) -> Iterator[tuple[int, str, int, int]]:
    at = _skip_white_space(text, at + 1)
    while text[at] != ord("}"):
        key = STRING.match(text, at)
        assert key is not None
        value = _skip_white_space(text, _skip_white_space(text, key.end()) + 1)
        end = _find_value_end(text, value)
        yield at, _decode_name(key[0]), value, end
        at = _skip_comma(text, end)


def _elements(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    at = _skip_white_space(text, at + 1)
    while text[at] != ord("]"):
        end = _find_value_end(text, at)
        yield at, end
        at = _skip_comma(text, end)


def _skip_comma(text: bytes, end: int) -> int:
    end = _skip_white_space(text, end)
    return _skip_white_space(text, end + 1) if text[end] == ord(",") else end


def _skip_white_space(text: bytes, at: int) -> int:
    found = _WHITE.match(text, at)
    assert found is not None
    return found.end()


def _find_value_end(text: bytes, at: int) -> int:
    if text[at] in b"[{":
        depth = 0
        for token in _TOKEN.finditer(text, at):
            depth += (token[0] in (b"[", b"{")) - (token[0] in (b"]", b"}"))
            if depth == 0:
                return token.end()
    found = STRING.match(text, at) or _ATOM.match(text, at)
    assert found is not None
    return found.end()
