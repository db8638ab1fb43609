"""Finds the file that declares a stream, for hundreds of supervisors in one process, each of which would otherwise read
the whole folder every few seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import SpecError
from frazil.spec.load import list_stream_files
from frazil.spec.yaml_file import read_mapping

MAX_LISTING_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Listing:
    at_s: float
    files: Mapping[str, Path | None]
    """The file that declares each stream; None for a stream that several files declare."""


class FolderIndex:
    """Finds files by stream. Lists each folder at most once per `MAX_LISTING_AGE_S`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listings: dict[Path, _Listing] = {}
        self._one_at_a_time = threading.Lock()

    def find_file(self, folder: Path, stream: str) -> Path | None:
        """Return the file that declares the stream; None if no readable file does, or several do."""
        with self._one_at_a_time:
            listing = self._listings.get(folder)
            if listing is None or self._clock() - listing.at_s >= MAX_LISTING_AGE_S:
                listing = self._listings[folder] = _Listing(self._clock(), _map_files(folder))
        return listing.files.get(stream)


def _map_files(folder: Path) -> dict[str, Path | None]:
    found: dict[str, Path | None] = {}
    try:
        os.listdir(folder)  # noqa: PTH208 - glob() returns nothing for an unreadable folder
        paths = list_stream_files(folder)
    except OSError:
        return {}
    for path in paths:
        try:
            name = str(read_mapping(path).get("name"))
        except SpecError:
            continue
        found[name] = None if name in found else path
    return found


FOLDER_INDEX = FolderIndex()
"""The index that all supervisors of the process share."""
