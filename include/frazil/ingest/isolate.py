"""Decodes in a child process, and bisects a chunk down to the record that crashes the decoder.

A record is rejected only if the child has just decoded a harmless record of the same length, because the host may also
kill a child.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from frazil.errors import EnvironmentUnusable
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, join_results

CRASHED = "DecoderCrashed"


class IsolatedDecoder:
    """Runs a decoder in a child process. If the child dies, a new one is started."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        """`make` must be picklable. It creates a decoder in each child, and in this process, for empty chunks."""
        self._make = make
        self._here = make()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        """The connection to the child."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode a chunk. A record that crashes the child is rejected.

        Raises the decoder's errors, and EnvironmentUnusable if a new child cannot decode a harmless record.
        """
        answer = self._request(chunk)
        if isinstance(answer, int) and len(chunk) == 1:
            self._ensure_child()
            self._check_child(harmless_record(len(chunk.values[0] or b"")))
            answer = self._request(chunk)
        if isinstance(answer, DecodedChunk):
            return answer
        if isinstance(answer, BaseException):
            raise answer
        if len(chunk) == 1:
            reason = f"decoding this record crashed the process (exit code {answer})"
            empty = self._here(chunk.slice(0, 0))
            return DecodedChunk(empty.rows, empty.record_indexes, [Rejection(0, CRASHED, reason)])
        halves = np.array_split(np.arange(len(chunk)), 2)
        return join_results([self(chunk.slice(half[0], half[-1] + 1)).with_indexes(half) for half in halves])

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._reap()

    def _request(self, chunk: RecordChunk) -> DecodedChunk | BaseException | int:
        """Return the child's result or exception, or the child's exit code if it died."""
        self._ensure_child()
        try:
            self._pipe.send(chunk)
            answer: DecodedChunk | BaseException = self._pipe.recv()
        except (EOFError, OSError):
            return self._reap()
        return answer

    def _ensure_child(self) -> None:
        if self._child is not None:
            return
        from multiprocessing import Pipe  # takes 20 ms

        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._pipe, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "frazil.ingest.isolate", str(fd)]
            self._child = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL, env=environment)
        self._check_child(harmless_record(), self._make)

    def _check_child(self, known: bytes, *before: object) -> None:
        """Send objects and a harmless record, and wait until it is decoded. Raises EnvironmentUnusable."""
        try:
            for value in (*before, RecordChunk.of_values([known])):
                self._pipe.send(value)
            self._pipe.recv()
        except (EOFError, OSError):
            raise EnvironmentUnusable(
                f"a new process for decoding died before any record reached it (exit code {self._reap()}). Its "
                "last output is above. Check memory, disk space and the limit of processes"
            ) from None

    def _reap(self) -> int:
        assert self._child is not None
        child, self._child = self._child, None
        self._pipe.close()
        return child.wait()


def harmless_record(size: int = 0) -> bytes:
    """Return a record of about `size` bytes, which every decoder can decode or reject."""
    return b"{" + b" " * (size - 2) + b"}"


def serve(pipe: Any) -> None:
    """Create a decoder, and answer chunks until the parent closes the pipe or is killed."""
    decode: Decoder = pipe.recv()()
    while True:
        try:
            chunk = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: object = decode(chunk)
        except Exception as error:  # raised in the parent process
            answer = error
        with contextlib.suppress(OSError):  # nothing reads the answer of a killed parent
            pipe.send(answer)


if __name__ == "__main__":
    from multiprocessing.connection import Connection

    os.dup2(2, 1)  # the parent's output is not the child's
    serve(Connection(int(sys.argv[1])))
