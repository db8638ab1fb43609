"""An output file that counts its own length, so that each manifest takes one storage request less."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyiceberg.io import InputFile, OutputFile, OutputStream


class CountedOutput(OutputFile):
    """Wraps an output file, and counts the bytes written to it."""

    def __init__(self, inner: OutputFile) -> None:
        super().__init__(inner.location)
        self._inner, self._bytes = inner, 0

    def __len__(self) -> int:
        return self._bytes

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> InputFile:
        return self._inner.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        self._bytes = 0
        return _CountedStream(self._inner.create(overwrite), self)


class _CountedStream(OutputStream):
    def __init__(self, inner: OutputStream, file: CountedOutput) -> None:
        self._inner, self._file = inner, file

    def write(self, b: bytes) -> int:
        self._file._bytes += len(b)
        return self._inner.write(b)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()
