"""Decodes in a child process, and bisects a chunk down to the record that crashes the decoder.

A record is rejected only if the child has just decoded a harmless record of the same length, because the host may also
kill a child.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from frazil.errors import EnvironmentUnusable
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, join_results

CRASHED = "DecoderCrashed"
_LENGTH = struct.Struct("<Q")


class IsolatedDecoder:
    """Runs a decoder in a child process. If the child dies, a new one is started."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        """`make` must be picklable. It creates a decoder in each child, and in this process, for empty chunks."""
        self._make = make
        self._here = make()
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        """Decode a chunk. A record that crashes the child is rejected.

        Raises the decoder's errors, and EnvironmentUnusable if a new child cannot decode a harmless record.
        """
        answer = self._request(chunk)
        if isinstance(answer, int) and len(chunk) == 1:
            self._check_child(self._child or self._start(), harmless_record(len(chunk.values[0] or b"")))
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
            self._reap(self._child)

    def _request(self, chunk: RecordChunk) -> DecodedChunk | BaseException | int:
        """Return the child's result or exception, or the child's exit code if it died."""
        child = self._child or self._start()
        try:
            _send(child.stdin, chunk)
            answer: DecodedChunk | BaseException = _receive(child.stdout)
        except (EOFError, BrokenPipeError):
            return self._reap(child)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command, pipe = [sys.executable, "-m", "frazil.ingest.isolate"], subprocess.PIPE
        child = self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self._check_child(child, self._make, harmless_record())
        return child

    def _check_child(self, child: subprocess.Popen[bytes], *frames: Any) -> None:
        """Send `frames`, and wait until the last one, a harmless record, is decoded. Raises EnvironmentUnusable."""
        *first_frames, value = frames
        try:
            for frame in first_frames:
                _send(child.stdin, frame)
            _send(child.stdin, RecordChunk.of_values([value]))
            _receive(child.stdout)
        except (EOFError, BrokenPipeError):
            raise EnvironmentUnusable(
                f"a new process for decoding died before any record reached it (exit code {self._reap(child)}). Its "
                "last output is above. Check memory, disk space and the limit of processes"
            ) from None

    def _reap(self, child: subprocess.Popen[bytes]) -> int:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._child = None
        return child.wait()


def harmless_record(size: int = 0) -> bytes:
    """Return a record of about `size` bytes, which every decoder can decode or reject."""
    return b"{" + b" " * (size - 2) + b"}"


def _send(pipe: Any, value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    decode: Decoder = _receive(questions)()
    while True:
        try:
            chunk = _receive(questions)
        except EOFError:
            return
        try:
            answer: object = decode(chunk)
        except Exception as error:  # raised in the parent process
            answer = error
        _send(answers, answer)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not mix with the answers
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:  # the parent was killed, so nothing reads the answers or a traceback
        os._exit(1)  # a normal exit would flush again and print an error
