"""Reads the current declaration of one stream: a spec, an unreadable file, or a removed stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from frazil.errors import SpecError
from frazil.spec.folder_index import FOLDERS
from frazil.spec.last_valid import EMPTY_MS, STREAMS, recall
from frazil.spec.load import find_stream, load_stream, stream_files
from frazil.spec.model import StreamSpec
from frazil.spec.yaml_file import read_mapping
from frazil.supervise.observed import Declared, Removed, Unreadable


class DeclarationReader(Protocol):
    @property
    def spec(self) -> StreamSpec | None:
        """The last valid declaration; None before the first."""

    def read(self) -> Declared | Unreadable | Removed: ...


class Declaration:
    """Reads one stream's declaration repeatedly, and keeps the last valid declaration."""

    def __init__(self, stream: str, folder: Path, *, clock: Callable[[], int]) -> None:
        self.spec: StreamSpec | None = None
        """The last valid declaration; None before the first."""
        self._stream, self._folder, self._clock = stream, folder, clock
        self._missing_since_ms: int | None = None

    def read(self) -> Declared | Unreadable | Removed:
        """Read the current declaration. If the folder or a file is unreadable, the stream does not count as removed."""
        if (known := self._read_own_file()) is not None:
            self.spec, self._missing_since_ms = known, None
            return Declared(known.fingerprint())
        try:
            os.listdir(self._folder)  # noqa: PTH208 - glob() returns nothing for an unreadable folder
        except OSError as error:
            return Unreadable(f"cannot read {self._folder}: {error.strerror}")
        try:
            self.spec = find_stream(self._folder, self._stream)
        except SpecError as error:
            self.spec = self.spec or recall(self._folder, self._stream, STREAMS)
            if not self._is_missing():
                return Unreadable(str(error))
            now_ms = self._clock()
            self._missing_since_ms = min(self._missing_since_ms or now_ms, now_ms)
            if not stream_files(self._folder) and now_ms - self._missing_since_ms < EMPTY_MS:
                removed = f"its streams count as removed after {EMPTY_MS // 1000} s"
                return Unreadable(f"{self._folder} is empty (an unmounted volume?); {removed}")
            return Removed(self._missing_since_ms)
        self._missing_since_ms = None
        return Declared(self.spec.fingerprint())

    def _read_own_file(self) -> StreamSpec | None:
        """Read the stream's file; None unless it is valid and the only one that declares the stream.

        After None, the caller reads the whole folder to find the cause. A new second declaration is detected at the
        next listing of the folder.
        """
        path = FOLDERS.only_file(self._folder, self._stream)
        try:
            spec = load_stream(path) if path is not None else None
        except SpecError:
            return None
        return spec if spec is not None and spec.name == self._stream else None

    def _is_missing(self) -> bool:
        """Whether no file declares the stream; False while an unreadable file may declare it."""
        try:
            return all(read_mapping(path).get("name") != self._stream for path in stream_files(self._folder))
        except SpecError:
            return False
