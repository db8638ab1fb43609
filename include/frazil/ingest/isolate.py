"""Decodes in a child process, so that a record that crashes the decoder can be found and rejected.

A record can trigger a bug in a native parser, which crashes the whole worker, at every retry. After a failed attempt, a
task therefore decodes in a child process. When the child dies, the chunk is bisected until it is the one record that
causes the crash. That record is rejected as `DecoderCrashed`; all other records are decoded.

A child can also die because of its host (memory, disk, a kill). Each new child therefore first decodes a harmless
record. A record is rejected only if it kills a child that has just decoded a harmless record of the same length. If a
new child cannot decode the harmless record, the host is at fault.

The child is a new interpreter, not a fork, because the worker has librdkafka's threads. The child reads pickled frames
from standard input (first the function that makes the decoder, then chunks) and answers on standard output.
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
from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, join_results

_LENGTH = struct.Struct("<Q")


class IsolatedDecoder:
    """Runs a decoder in a child process. If the child dies, a new one is started. `close` ends the child."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        """`make` creates the decoder and must be picklable.

        It is called in each child, and once in this process, which decodes only empty chunks.
        """
        self._make = make
        self._here = make()
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, chunk: Chunk) -> DecodedChunk:
        """Decode a chunk. Raises the decoder's errors, and EnvironmentUnusable if a new child cannot decode."""
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
            nothing = self._here(chunk.slice(0, 0))
            return DecodedChunk(nothing.rows, nothing.kept, [Rejection(0, "DecoderCrashed", reason)])
        middle = len(chunk) // 2
        return join_results(
            [
                self(chunk.slice(0, middle)).with_indexes(np.arange(middle)),
                self(chunk.slice(middle, len(chunk))).with_indexes(np.arange(middle, len(chunk))),
            ]
        )

    def close(self) -> None:
        """End the child process, if one runs."""
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def _request(self, chunk: Chunk) -> DecodedChunk | BaseException | int:
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
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", "frazil.ingest.isolate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._check_child(child, self._make, harmless_record())
        return child

    def _check_child(self, child: subprocess.Popen[bytes], *frames: Any) -> None:
        """Send frames to the child, the last of them a harmless record, and wait until it is decoded.

        Raises EnvironmentUnusable if the child dies.
        """
        *before, known = frames
        try:
            for frame in before:
                _send(child.stdin, frame)
            _send(child.stdin, Chunk.of_values([known]))
            _receive(child.stdout)
        except (EOFError, BrokenPipeError):
            raise EnvironmentUnusable(
                f"a new process for decoding died before any record reached it (exit code {self._reap(child)}). Its "
                "last output is above. Check memory, disk space and the limit of processes"
            ) from None

    def _reap(self, child: subprocess.Popen[bytes]) -> int:
        """Wait until the child has ended, and return its exit code."""
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._child = None
        return child.wait()


def harmless_record(size: int = 0) -> bytes:
    """Return a harmless record of about `size` bytes, which every decoder can decode or reject."""
    return b"{" + b" " * (size - 2) + b"}"


def _send(pipe: Any, value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    """Read the next frame from the pipe. Raises EOFError if the other process has ended."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Run the child's loop: decode chunks until standard input ends."""
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
