"""Decodes in a child process, so that a record that kills the process is found and rejected.

One record may trigger a bug in a native parser, whose crash kills the whole worker, and again at every retry. After a
failed attempt, a task therefore decodes in a child process. When the child dies, the chunk is halved until the record
that kills it is alone; that record is rejected as `DecoderCrashed`. All other records are decoded.

A child may also die because of its host (memory, disk, a kill). Each new child therefore first decodes a harmless
record. A record is rejected only if it kills a child that has just decoded a harmless record of the same length. If no
child can decode the harmless record, the host is at fault.

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
from frazil.ingest.decode import Decoded, Decoder, Rejection, joined

_LENGTH = struct.Struct("<Q")


class IsolatedDecoder:
    """A decoder that works in a child process, and starts a new child if one dies. `close` ends the child."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        """`make` creates the decoder and must be picklable. It is called in the child, and once here to decode empty
        chunks.
        """
        self._make = make
        self._here = make()
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, chunk: Chunk) -> Decoded:
        """Decode a chunk. Raises what the decoder raises, and EnvironmentUnusable if no child can decode."""
        answer = self._ask(chunk)
        if isinstance(answer, int) and len(chunk) == 1:
            self._prove(self._child or self._start(), known_record(len(chunk.values[0] or b"")))
            answer = self._ask(chunk)
        if isinstance(answer, Decoded):
            return answer
        if isinstance(answer, BaseException):
            raise answer
        if len(chunk) == 1:
            reason = f"decoding this record ended the process (exit code {answer})"
            nothing = self._here(chunk.piece(0, 0))
            return Decoded(nothing.rows, nothing.kept, [Rejection(0, "DecoderCrashed", reason)])
        middle = len(chunk) // 2
        return joined(
            [
                self(chunk.piece(0, middle)).moved(np.arange(middle)),
                self(chunk.piece(middle, len(chunk))).moved(np.arange(middle, len(chunk))),
            ]
        )

    def close(self) -> None:
        """End the child process, if one runs."""
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def _ask(self, chunk: Chunk) -> Decoded | BaseException | int:
        """Return the child's answer, or the child's exit code if the chunk killed it."""
        child = self._child or self._start()
        try:
            _send(child.stdin, chunk)
            answer: Decoded | BaseException = _receive(child.stdout)
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
        self._prove(child, self._make, known_record())
        return child

    def _prove(self, child: subprocess.Popen[bytes], *frames: Any) -> None:
        """Check that the child can decode a harmless record. The result of decoding does not matter."""
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
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._child = None
        return child.wait()


def known_record(size: int = 0) -> bytes:
    """Return a harmless record of about this size: every decoder decodes or rejects it."""
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
        except Exception as error:  # raised on the other side
            answer = error
        _send(answers, answer)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not mix with the answers
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:  # the parent was killed: nothing reads the answers or a traceback
        os._exit(1)  # an orderly exit would try to flush again, and complain
