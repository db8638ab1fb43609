"""`frazil run`: one stream's writer in the foreground, through the same code path that Airflow launches.

The writer is a child in a session of its own. A terminal sends Ctrl-C to every process of its foreground group, and
Spark's Python workers would die of it in the middle of a batch; so this process takes the signal, asks the writer to
end after the batch at hand, shows what it says (`frazil.cli.foreground`), and hands on its exit code.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from frazil.cli.foreground import Terminal, Totals, Voice
from frazil.cli.light import allow_pandas
from frazil.cli.options import streams_option
from frazil.errors import FrazilError
from frazil.extras import extras_named
from frazil.home import run_folder
from frazil.host.lock import WriterLock
from frazil.host.processes import end_group
from frazil.host.writer_log import LOG_FILE, redirect, rotate
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec

CRASHED = 1
GROUP_ENDS_WITHIN_S = 10.0
"""How long the writer's JVM may take to follow it."""
WORDS_MOST = 300
"""Characters of a crash's words at the terminal: some are pages."""


@click.command()
@click.argument("stream")
@streams_option
@click.option("--until-caught-up", is_flag=True, help="End when all that is in Kafka now is committed.")
def run(stream: str, streams_folder: Path, until_caught_up: bool) -> None:
    """Write STREAM into its table, in the foreground.

    Ctrl-C lets the batch at hand commit and exits with 0; a second Ctrl-C ends the writer at once, and the next start
    goes on where the table stands. A line a batch is shown; the log, with Spark's, is writer.log in the stream's run
    folder. Exits as the writer does (see docs/reference/cli.md), and with 9 where another writer of the stream runs on
    this host.

    \b
    Example:
      frazil run flights --until-caught-up
    """
    spec = find_stream(streams_folder, stream)
    folder = run_folder(spec.name)
    hear, tell = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # Before the fork: a Ctrl-C in between must find the handlers, not Python's own.
    follower = Follower(Terminal(folder))
    follower.listen()
    writer = os.fork()
    if writer == 0:
        os.close(hear)
        _be_the_writer(spec, Voice(tell), until_caught_up=until_caught_up)
    os.close(tell)
    code = follower.follow(writer, hear)
    if code and not follower.terminal.complained:
        how = f"by signal {code - 128}" if code > 128 else f"with exit code {code}"
        follower.terminal.complain(f"the writer ended {how}; what it said last is in {folder / LOG_FILE}")
    raise SystemExit(code)


class Follower:
    """Passes people's signals on to the writer, and waits for its end."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._writer: int | None = None
        self._asked = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._pass_on)

    def follow(self, writer: int, hear: int) -> int:
        """Wait for the writer and all of its group, and show what it says; its exit code, as the shell counts."""
        self._writer = writer
        if self._asked:
            os.kill(writer, signal.SIGTERM)
        self.terminal.listen(hear, writer=writer)
        _, status = os.waitpid(writer, 0)
        end_group(writer, within_s=GROUP_ENDS_WITHIN_S)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        again, self._asked = self._asked, True
        if self._writer is None:
            return
        if again and number == signal.SIGINT:
            self.terminal.note("Ended at once; the next start goes on where the table stands.")
            end_group(self._writer, within_s=0)
        else:
            self.terminal.note("The batch at hand commits, then the writer ends. Ctrl-C again ends it at once.")
            os.kill(self._writer, signal.SIGTERM)


def _be_the_writer(spec: StreamSpec, voice: Voice, *, until_caught_up: bool) -> NoReturn:
    """In the child: write, and end with the writer's exit code whatever happens."""
    code = CRASHED
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A stop that arrives before the writer listens: nothing is at hand yet.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with extras_named():
            _write(spec, voice, until_caught_up=until_caught_up)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else CRASHED
    except FrazilError as error:
        voice.complain(f"{type(error).__name__}: {error}")
        code = error.exit_code
    except BaseException as error:
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())[:WORDS_MOST]
        voice.complain(f"the writer crashed: {said}; the whole trace is in {run_folder(spec.name) / LOG_FILE}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _write(spec: StreamSpec, voice: Voice, *, until_caught_up: bool) -> None:
    allow_pandas()
    folder = run_folder(spec.name)
    with WriterLock(folder, streams=(spec.name,)):
        rotate(folder)
        redirect(folder / LOG_FILE)
        voice.say(f"{spec.name}: {', '.join(spec.source.topics)} to {spec.table.identifier}; log: {folder / LOG_FILE}")
        from frazil.events import BatchCommitted, Event  # noqa: PLC0415
        from frazil.stream.main import write  # noqa: PLC0415 - seconds of imports, which only the writer needs

        logging.getLogger("frazil").addHandler(voice)
        totals = Totals(spec)

        def say_batch(event: Event) -> None:
            if isinstance(event.what, BatchCommitted):
                voice.say(totals.add(event.what))

        try:
            stopped = write(spec, say_batch, until_caught_up=until_caught_up)
        except FrazilError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)  # the last line of the log as well
            raise
        voice.say(totals.end(stopped=stopped))
