"""Saves the last overview in a file on this host, so that a restarted API server can show it first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from frazil.host.json_file import read_json, replace_json
from frazil.status.state import StreamState

MAX_AGE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class SavedStatus:
    """The last status of a stream, with the fingerprint of its declaration at that time."""

    stream: str
    fingerprint: str
    at_ms: int
    status: StreamState


def save_statuses(file: Path, known: Iterable[SavedStatus], *, now_ms: int) -> None:
    """Merge these statuses into the file. Raises OSError."""
    streams = {one.stream: one for one in (*load_statuses(file, now_ms=now_ms), *known)}
    replace_json(file, msgspec.to_builtins(list(streams.values())))


def load_statuses(file: Path, *, now_ms: int) -> list[SavedStatus]:
    """Return the saved statuses of the last day; empty if another version wrote the file. Raises OSError."""
    try:
        known = msgspec.convert(read_json(file) or [], list[SavedStatus])
    except (ValueError, msgspec.ValidationError):
        return []
    return [one for one in known if 0 <= now_ms - one.at_ms < MAX_AGE_MS]
