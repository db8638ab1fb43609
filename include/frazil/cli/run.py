"""`frazil run`: runs one stream's writer in the foreground, with the same code that Airflow launches.

The writer is a child in its own session. Ctrl-C therefore reaches only this process, which asks the writer to end after
the current batch. Otherwise, Ctrl-C would kill Spark's Python workers in the middle of a batch.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from frazil import clock
from frazil.cli.foreground import RunTotals, Terminal, WaitReporter, WriterPipe, batch_document
from frazil.cli.options import stream_options
from frazil.errors import Failure, FrazilError
from frazil.extras import report_missing_extras
from frazil.fast_imports import allow_pandas
from frazil.home import full_disk_message, run_folder
from frazil.host.exits import KILLED_BY_OTHERS, record_exit
from frazil.host.heartbeat import Phase
from frazil.host.lock import WriterLock, read_launch
from frazil.host.processes import AGENT_KILLED, GROUP_END_TIMEOUT_S, end_group, identify_process, is_agent
from frazil.host.writer_log import LOG_FILE, redirect_output, rotate_log
from frazil.safe_text import escape_unsafe
from frazil.signals import read_pins
from frazil.spark_apps import DRIVE_STREAM
from frazil.spec.application import Application, find_application
from frazil.spec.last_valid import find_and_remember
from frazil.spec.load import check_other_streams
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.timetext import format_utc

if TYPE_CHECKING:
    from frazil.events import Event

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
CRASH_EXIT_CODE = 1
MAX_ERROR_CHARACTERS = 300


@click.command()
@stream_options
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="End once all records that Kafka has now are committed. With a route, also wait until the routed tables have "
    "their rows, for at most route.lag.",
)
def run(stream: str, streams_folder: Path, *, until_caught_up: bool, as_json: bool) -> None:
    """Write STREAM into its table, in the foreground.

    The name of a shared application selects all of its streams.

    Ctrl-C lets the current batch commit and exits with 0. A second Ctrl-C ends the writer at once, and the next start
    continues from the table. Prints a line per batch. The log, with Spark's log, is writer.log in the stream's run
    folder. Returns the writer's exit code (see docs/reference/exit-codes.md), and 9 if another writer of the stream
    runs on this host. `frazil status` shows the exit code later.

    With --json, prints one JSON document per line: one for each batch, and one for a stream's end.

    \b
    Example:
      frazil run flights --until-caught-up
    """
    write: Callable[[WriterPipe], None]
    if application := find_application(streams_folder, stream):
        write = partial(_write_application, application, streams_folder, until_caught_up=until_caught_up)
        names = tuple(spec.name for spec in application.streams)
        for spec in application.streams:
            check_other_streams(streams_folder, spec)
        raise SystemExit(run_in_foreground(stream, write, streams=names, as_json=as_json))
    spec = find_and_remember(streams_folder, stream)  # so that status and pause work if its file becomes invalid
    check_other_streams(streams_folder, spec)
    write = partial(_write_stream, spec, until_caught_up=until_caught_up)
    if spec.resources.driver_in_cluster:
        write = partial(_run_cluster_agent, spec, streams_folder, until_caught_up=until_caught_up)
    raise SystemExit(run_in_foreground(spec.name, write, as_json=as_json))


def run_in_foreground(
    stream: str, write: Callable[[WriterPipe], None], *, streams: tuple[str, ...] = (), as_json: bool = False
) -> int:
    """Run `write` in a child process, as the only writer of a stream on this host, and record how it ends.

    `stream` may also be an application shared by `streams`. Returns the exit code as a shell reports it. Raises
    WriterBusy.
    """
    folder = run_folder(stream)
    lock = WriterLock(folder, streams=streams or (stream,))
    lock.acquire()
    rotate_log(folder)
    read_end, write_end = os.pipe()
    lifeline, life = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # Set these before the fork: a Ctrl-C in between then reaches our handlers, not Python's.
    follower = ForegroundWriter(folder, streams or (stream,), as_json=as_json)
    follower.listen()
    writer = os.fork()
    if writer == 0:
        os.close(read_end)
        os.close(life)
        _run_writer(lock, folder, WriterPipe(write_end), write, lifeline=lifeline)
    os.close(write_end)
    os.close(lifeline)
    code = follower.follow(writer, read_end)
    if launch := read_launch(folder):
        cause = Failure(follower.ended_by) if follower.ended_by else None
        try:
            record_exit(folder, launch, code=code, ended_at_ms=clock.now_ms(), cause=cause)
        except OSError as error:  # the writer's exit code is reported anyway
            follower.terminal.print_error(f"{folder} cannot be written, so `frazil status` will not show this: {error}")
    lock.release()
    # The terminal may block for hours; the writer's end is recorded already.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    follower.terminal.close()
    return code


class ForegroundWriter:
    def __init__(self, folder: Path, streams: Sequence[str], *, as_json: bool = False) -> None:
        self.terminal = Terminal(*map(run_folder, streams), on_gone=self._request_end, as_json=as_json)
        self.ended_by: str | None = None
        """Why the writer ended, if the writer cannot report it; None otherwise."""
        self._folder, self._log = folder, folder / LOG_FILE
        self._writer: int | None = None
        self._end_requested = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._forward_signal)

    def follow(self, writer: int, read_end: int) -> int:
        self._writer = writer
        if self._end_requested:
            self._request_end()
        self.terminal.listen(read_end, writer=writer)
        # Until the child is reaped, no other process gets its id. After that, no signal may be sent to the id.
        while os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(POLL_INTERVAL_S)  # a call that blocks may miss a signal that arrives just before it
        self._writer = None
        end_group(writer, timeout_s=GROUP_END_TIMEOUT_S, ask=True)
        _, status = os.waitpid(writer, 0)
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if code == 128 + signal.SIGKILL:  # the last lines of its log are not the reason
            self.ended_by = self.ended_by or (AGENT_KILLED if is_agent(self._folder, writer) else KILLED_BY_OTHERS)
        if code and not self.terminal.complained:
            ending = f"by signal {code - 128}" if code > 128 else f"with exit code {code}"
            where = full_disk_message(self._folder) or f"its last output is in {self._log}"
            self.terminal.print_error(f"the writer ended {ending}; {where}")
        return code

    def _forward_signal(self, number: int, _frame: FrameType | None) -> None:
        is_repeated, self._end_requested = self._end_requested, True
        if self._writer is None:
            return
        if is_repeated and number == signal.SIGINT:
            self.ended_by = "a user ended it immediately, with a second Ctrl-C"
            if is_agent(self._folder, self._writer):
                follows = "driver in the cluster may continue, and the next start follows it"
                self.terminal.say(f"The agent was ended immediately; the {follows}.")
                self.ended_by = f"{self.ended_by}; its {follows}"
            else:
                self.terminal.say("The writer was ended immediately; the next start continues from the table.")
            end_group(self._writer, timeout_s=0)
        else:
            self.terminal.say("The current batch commits, then the writer ends. Ctrl-C again ends it immediately.")
            self._request_end()

    def _request_end(self) -> None:
        self._end_requested = True
        if (writer := self._writer) is not None:
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGTERM)


def _run_writer(
    lock: WriterLock, folder: Path, pipe: WriterPipe, write: Callable[[WriterPipe], None], *, lifeline: int
) -> NoReturn:
    code = CRASH_EXIT_CODE
    try:
        os.setsid()
        if launch := read_launch(folder):
            lock.record(dataclasses.replace(launch, parent=launch.writer, writer=identify_process(os.getpid())))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Handles a SIGTERM that arrives before the writer handles it: no batch has begun, so exit at once.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        redirect_output(folder / LOG_FILE)
        Thread(target=_end_with_parent, args=(lifeline,), name="lifeline", daemon=True).start()
        with report_missing_extras():
            write(pipe)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else CRASH_EXIT_CODE
    except FrazilError as error:
        print(escape_unsafe(f"{type(error).__name__}: {error}"), file=sys.stderr)  # also the last line of the log
        pipe.print_error(f"{type(error).__name__}: {error}")
        code = error.exit_code
    except BaseException as error:
        traceback.print_exc()
        text = textwrap.shorten(f"{type(error).__name__}: {error}", MAX_ERROR_CHARACTERS, placeholder=" ...")
        pipe.print_error(f"the writer crashed: {text}; the traceback is in {folder / LOG_FILE}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent(lifeline: int) -> None:
    """End this process when its parent ends. Only the parent holds the other end of the pipe `lifeline`."""
    os.read(lifeline, 1)
    log.warning("the process of `frazil run` was killed: the current batch commits, then the writer ends")
    os.kill(os.getpid(), signal.SIGTERM)


class StreamOutput:
    """Shows what the writer of one stream does. `prefix` precedes each line."""

    def __init__(self, spec: StreamSpec, pipe: WriterPipe, prefix: str = "") -> None:
        self.totals, self._waits = RunTotals(spec), WaitReporter()
        self._stream, self._pipe, self._prefix = spec.name, pipe, prefix

    def show(self, event: Event) -> None:
        from frazil import events  # after the JVM's start, as `write`

        match event.payload:
            case events.PhaseBegan(phase=Phase.STAGING):
                self._waits.note_batch_start()
            case events.TablesBehind(names=names) if not names:
                pass
            case events.OutageReported(sentence=sentence) | events.TablesBehind(sentence=sentence):
                if line := self._waits.report(sentence):
                    self._pipe.say(f"{self._prefix}{line}")
            case events.WaitingRowsCommitted(rows=rows):
                self.totals.waited += rows
            case events.BatchCommitted() as batch:
                self._waits.note_commit()
                self._pipe.say(f"{self._prefix}{self.totals.add(batch)}")
                self._pipe.report({"stream": self._stream, **batch_document(batch)})


def _write_stream(spec: StreamSpec, pipe: WriterPipe, *, until_caught_up: bool) -> None:
    allow_pandas()
    log_file = run_folder(spec.name) / LOG_FILE
    pipe.say(f"{spec.name}: {spec.source.topics_text} to {spec.table.identifier}; log: {log_file}")
    from frazil.stream.main import write  # only the writer needs it

    logging.getLogger("frazil").addHandler(pipe)
    output = StreamOutput(spec, pipe)
    totals = output.totals

    def say(event: Event) -> None:
        from frazil.events import EpochBegan  # after the JVM's start, as `write`

        if isinstance(event.payload, EpochBegan):
            _report_pause(spec, pipe)
        output.show(event)

    stopped = write(spec, say, until_caught_up=until_caught_up, read_pins=read_pins)
    waiting, lag = _count_waiting(spec) if stopped else (0, None)
    pipe.say(totals.last_line(is_stopped=stopped, waiting=waiting, lag=lag))
    pipe.report({"stream": spec.name, **totals.document(is_stopped=stopped, waiting=waiting, lag=lag)})


def _count_waiting(spec: StreamSpec) -> tuple[int, int | None]:
    """Return how many rows wait for routed tables, and how many records wait in Kafka; (0, None) if unknown."""
    from frazil.commit.missing_rows import find_lagging_tables  # once the writer has loaded PyIceberg
    from frazil.commit.open_streams import open_read_only
    from frazil.status.stream import fetch_lag

    waiting, lag = 0, None
    try:
        tables = open_read_only(spec).tables
        if marker := tables.marker():
            lag, _ = fetch_lag(spec, marker)
            waiting = (
                sum(each.rows for each in find_lagging_tables(tables, marker)) if spec.sinks.has_routed_tables else 0
            )
    except Exception as error:  # catalogs and storages raise anything, and the writer has ended well
        log.info("cannot determine what waits for the next writer: %r", error)
    return waiting, lag


def _report_pause(spec: StreamSpec, pipe: WriterPipe) -> None:
    from frazil.supervise.decision import DesiredMode
    from frazil.supervise.desired_state import open_desired_store  # once the writer has loaded PyIceberg

    try:
        desired = open_desired_store(spec).read()
    except Exception as error:  # catalogs and storages raise anything, and must not end the writer
        log.info("cannot determine whether the stream is paused: %r", error)
        return
    if desired.mode is DesiredMode.PAUSED:
        reason = f", {desired.reason}" if desired.reason else ""
        pipe.say(
            f"{spec.name} is paused ({desired.by}, {format_utc(desired.at_ms)}{reason}): this run writes anyway; no "
            f"supervisor starts a writer until `frazil resume {spec.name}`"
        )


def _run_cluster_agent(spec: StreamSpec, folder: Path, pipe: WriterPipe, *, until_caught_up: bool) -> None:
    """Run as the local agent of a driver in the cluster. A second Ctrl-C ends only the agent."""
    from frazil.remote.agent import run_agent  # only such a stream needs it

    log_file = run_folder(spec.name) / LOG_FILE
    pipe.say(f"{spec.name}: a driver in {spec.resources.master} writes it, and outlives this process; log: {log_file}")
    if code := run_agent(spec, folder, program=DRIVE_STREAM, until_caught_up=until_caught_up):
        sys.exit(code)


def _write_application(application: Application, folder: Path, pipe: WriterPipe, *, until_caught_up: bool) -> None:
    allow_pandas()
    log_file = run_folder(application.name) / LOG_FILE
    pipe.say(f"{application.name}: {format_count(len(application.streams), 'stream')}; log: {log_file}")
    from frazil.application.main import write_application  # only the writer needs it
    from frazil.table.parallel import run_in_parallel

    logging.getLogger("frazil").addHandler(pipe)
    outputs = {spec.name: StreamOutput(spec, pipe, f"{spec.name}: ") for spec in application.streams}

    def say(event: Event) -> None:
        if (output := outputs.get(event.stream)) is not None:
            output.show(event)

    codes = write_application(application.name, folder, say, until_caught_up=until_caught_up)
    specs = () if until_caught_up else application.streams
    waits = dict(zip([spec.name for spec in specs], run_in_parallel(_count_waiting, specs), strict=True))
    for name, total in ((name, output.totals) for name, output in outputs.items()):
        code, stopped = codes.get(name, 0), not until_caught_up
        waiting, lag = waits.get(name, (0, None))
        ended = total.last_line(is_stopped=stopped, waiting=waiting, lag=lag)
        pipe.say(f"{name}: {f'ended with exit code {code}' if code else ended}")
        pipe.report({"stream": name, **total.document(is_stopped=stopped, waiting=waiting, lag=lag), "exit-code": code})
    if code := next((code for _, code in sorted(codes.items()) if code), 0):
        sys.exit(code)
