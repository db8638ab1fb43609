"""Makes text from users and producers safe to show in terminals, pipes, logs, JSON, HTML and messages."""

from __future__ import annotations

import re

MAX_REASON_CHARACTERS = 1000
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters; ESC begins a terminal's commands
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that reorder text
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible characters
    "\u2028\u2029"  # line ends of JavaScript
    "\ud800-\udfff]"  # halves of surrogate pairs, which UTF-8 cannot encode
)


def escape_unsafe(text: str, *, lines: bool = True) -> str:
    r"""Escape characters that are invisible, such as `\x1b`, or not UTF-8. With `lines`, keep tabs and line feeds."""
    return _UNSAFE.sub(lambda match: _escape(match[0], lines=lines), text)


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text. A shortened text ends with `…`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def reason_problem(text: str) -> str | None:
    """Return why a text cannot be stored as a user's reason for an action; None if it can."""
    if len(text) > MAX_REASON_CHARACTERS:
        return f"has {len(text):,} characters; write at most {MAX_REASON_CHARACTERS:,}"
    if match := _UNSAFE.search(text):
        return f"has the character {_escape(match[0], lines=False)}, which cannot be shown; remove it"
    return None


def _escape(character: str, *, lines: bool) -> str:
    return character if lines and character in "\t\n" else character.encode("unicode_escape").decode()
