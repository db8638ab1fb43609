"""Decoding in a child process, so that a record that kills the process is found and set aside.

A native crash inside a decoder (a bug in a parser, reached by one record) takes the whole worker with it; retried as it
was, the task would die for ever. So later attempts decode here: when the child dies, the chunk is halved until the
killing record is alone, and that one is rejected as `DecoderCrashed`. Everything else lands.

The child is a fresh interpreter, not a fork: the worker has librdkafka's threads. It gets pickled frames on its
standard input (first the function that makes the decoder, then chunks) and answers on its standard output.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from frazil.ingest.decode import Decoded, Decoder, Rejection, joined

_LENGTH = struct.Struct("<Q")


class IsolatedDecoder:
    """A decoder whose work is done by a child, made anew whenever it dies. `close` ends it."""

    def __init__(self, make: Callable[[], Decoder]) -> None:
        """`make` must pickle; it is called in the child, and here once for an empty chunk's form."""
        self._make = make
        self._nothing = make()([])
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, values: Sequence[bytes | None]) -> Decoded:
        """As the decoder itself. Raises what the decoder raises."""
        answer = self._ask(values)
        if isinstance(answer, Decoded):
            return answer
        if isinstance(answer, BaseException):
            raise answer
        if len(values) == 1:
            reason = f"decoding this record ended the process (exit code {answer})"
            return Decoded(self._nothing.rows, self._nothing.kept, [Rejection(0, "DecoderCrashed", reason)])
        middle = len(values) // 2
        return joined(
            [
                self(values[:middle]).moved(np.arange(middle)),
                self(values[middle:]).moved(np.arange(middle, len(values))),
            ]
        )

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def _ask(self, values: Sequence[bytes | None]) -> Decoded | BaseException | int | None:
        """The child's answer, or its exit code when it died of the question."""
        child = self._child or self._start()
        try:
            _send(child.stdin, values)
            answer: Decoded | BaseException = _receive(child.stdout)
        except (EOFError, BrokenPipeError):
            return self._reap(child)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "frazil.ingest.isolate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        _send(self._child.stdin, self._make)
        return self._child

    def _reap(self, child: subprocess.Popen[bytes]) -> int:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._child = None
        return child.wait()


def _send(pipe: Any, value: object) -> None:
    data = pickle.dumps(value, protocol=5)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> Any:
    """The next frame. Raises EOFError when the other side ended."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """The child's loop: until its standard input ends."""
    decode: Decoder = _receive(questions)()
    while True:
        try:
            values = _receive(questions)
        except EOFError:
            return
        try:
            answer: object = decode(values)
        except Exception as error:  # raised on the other side
            answer = error
        _send(answers, answer)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get among the answers
    serve(sys.stdin.buffer, answers)
