"""What is declared of one stream now: a spec, a file that cannot be read, or nothing any more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from frazil.errors import SpecError
from frazil.spec.last_sound import EMPTY_MS, STREAMS, recall
from frazil.spec.load import find_stream, stream_files
from frazil.spec.model import StreamSpec
from frazil.spec.yaml_file import read_mapping
from frazil.supervise.observed import Declared, Removed, Unreadable


class Declaration:
    """Reads one stream's declaration again and again, and remembers the last that was sound."""

    def __init__(self, stream: str, folder: Path, *, clock: Callable[[], int]) -> None:
        self.spec: StreamSpec | None = None
        """The last sound declaration; None until there was one."""
        self._stream, self._folder, self._clock = stream, folder, clock
        self._missing_since_ms: int | None = None

    def read(self) -> Declared | Unreadable | Removed:
        """What the folder says now. A folder or a file that cannot be read is not a removed stream."""
        try:
            os.listdir(self._folder)  # noqa: PTH208 - glob() answers with nothing for a folder that cannot be read
        except OSError as error:
            return Unreadable(f"{self._folder} cannot be read: {error.strerror}")
        try:
            self.spec = find_stream(self._folder, self._stream)
        except SpecError as error:
            self.spec = self.spec or recall(self._folder, self._stream, STREAMS)
            if not self._is_missing():
                return Unreadable(str(error))
            now_ms = self._clock()
            self._missing_since_ms = min(self._missing_since_ms or now_ms, now_ms)
            if not stream_files(self._folder) and now_ms - self._missing_since_ms < EMPTY_MS:
                said = f"all streams are taken for removed after {EMPTY_MS // 1000} s"
                return Unreadable(f"{self._folder} is empty, as a volume that is not mounted; {said}")
            return Removed(self._missing_since_ms)
        self._missing_since_ms = None
        return Declared(self.spec.fingerprint())

    def _is_missing(self) -> bool:
        """Whether no file declares the stream, and none is so broken that it might."""
        try:
            return all(read_mapping(path).get("name") != self._stream for path in stream_files(self._folder))
        except SpecError:
            return False
