"""Converts JSON to declared types, safely in several threads.

msgspec inspects a type at its first use, and crashes the process if another thread uses the type meanwhile.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_described: set[Any] = set()


def convert(value: Any, kind: type[T]) -> T:
    """Convert a parsed JSON value, whose keys are strings. Raises msgspec.ValidationError, a ValueError."""
    _describe(kind)
    return msgspec.convert(value, kind, str_keys=True)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Parse and convert JSON. Raises msgspec.DecodeError, a ValueError."""
    _describe(kind)
    return msgspec.json.decode(data, type=kind)


def _describe(kind: Any) -> None:
    if kind not in _described:
        with _lock:
            msgspec.json.Decoder(kind)
        _described.add(kind)
