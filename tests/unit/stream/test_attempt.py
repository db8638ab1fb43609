"""An attempt at a task ends when its executor no longer waits for it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import IO

import pytest

from frazil.stream import attempt
from frazil.stream.attempt import AttemptAbandoned, check_not_abandoned, wrap_worker_main


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The executor's end of the connection of a worker, which this process is."""
    monkeypatch.setattr(attempt, "_connection", None)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    theirs, ours = socket.socketpair()
    with theirs, ours, ours.makefile("wb") as outfile:
        wrap_worker_main(lambda _, __: None)(None, outfile)
        yield theirs
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_open_connection_with_unread_data_keeps_the_attempt_running(executor: socket.socket) -> None:
    check_not_abandoned()
    executor.send(b"plan")
    check_not_abandoned()


def test_a_closed_connection_ends_the_attempt_even_with_unread_data(executor: socket.socket) -> None:
    executor.send(b"plan")
    executor.close()
    with pytest.raises(AttemptAbandoned):
        check_not_abandoned()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.usefixtures("executor")
def test_a_terminated_executor_abandons_its_attempts(number: signal.Signals) -> None:
    with pytest.raises(AttemptAbandoned):
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("executor")
def test_an_abandoned_attempt_leaves_no_buffered_output_that_spark_fails_to_send() -> None:
    """Its daemon flushes the connection after the attempt, and logs a page of traces if that fails."""

    def fail(_: object, outfile: IO[bytes]) -> None:
        outfile.write(b"the trace of Abandoned")
        raise SystemExit(-1)

    theirs, ours = socket.socketpair()
    with ours, os.fdopen(os.dup(ours.fileno()), "wb") as outfile:  # as Spark's daemon opens it
        theirs.close()
        with pytest.raises(SystemExit):
            wrap_worker_main(fail)(None, outfile)
        outfile.flush()


def test_a_process_without_an_executor_is_never_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "_connection", None)
    check_not_abandoned()
