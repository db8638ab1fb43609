"""What a person at the terminal sees of a writer: a line a batch, a line that lives while it waits, and how it ended.

The writer is another process, whose own output (its log, Spark's, the JVM's) goes to `writer.log`. What it has to say
to the person comes through a pipe, and this process alone writes on the terminal.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frazil import clock
from frazil.host.exchange import open_exchange
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.timetext import ago

if TYPE_CHECKING:
    from frazil.events import BatchCommitted
    from frazil.spec.model import StreamSpec

LIVE_EVERY_S = 0.5
CLEAR = "\r\x1b[K"


class Voice(logging.Handler):
    """The writer's end of the pipe. As a log handler it passes on our own warnings, and nothing of Spark's."""

    def __init__(self, fd: int) -> None:
        super().__init__(logging.WARNING)
        self._fd = fd

    def say(self, line: str) -> None:
        self._write("say", line)

    def complain(self, line: str) -> None:
        self._write("complain", line)

    def emit(self, record: logging.LogRecord) -> None:
        self._write("warn", f"warning: {record.getMessage()}")

    def _write(self, kind: str, line: str) -> None:
        with suppress(OSError):  # whoever listened is gone, and the writer goes on
            os.write(self._fd, f"{json.dumps([kind, line])}\n".encode())


class Terminal:
    """The listener's end."""

    def __init__(self, folder: Path) -> None:
        self._exchange = open_exchange(folder)
        self._live = sys.stdout.isatty()
        self._notes: list[str] = []
        self.complained = False

    def note(self, line: str) -> None:
        """Show a line soon; for signal handlers, which may come in the middle of another line."""
        self._notes.append(line)

    def listen(self, fd: int, *, writer: int) -> None:
        """Show what the writer says until it says no more."""
        rest = b""
        while True:
            ready, _, _ = select.select([fd], [], [], LIVE_EVERY_S)
            while self._notes:
                self.say(self._notes.pop(0))
            if not ready:
                self._show_live(writer)
                continue
            data = os.read(fd, 65_536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                kind, text = json.loads(line)
                {"complain": self.complain, "warn": self.warn}.get(kind, self.say)(text)
        self._clear()

    def say(self, line: str) -> None:
        self._clear()
        print(line, flush=True)

    def warn(self, line: str) -> None:
        self._clear()
        print(line, file=sys.stderr, flush=True)

    def complain(self, line: str) -> None:
        """Say why the writer ended."""
        self.complained = True
        self.warn(line)

    def _clear(self) -> None:
        if self._live:
            print(CLEAR, end="", flush=True)

    def _show_live(self, writer: int) -> None:
        if not self._live:
            return
        beat = Heartbeat.read(self._exchange)
        words = live_words(beat if beat and beat.pid == writer else None, now_ms=clock.now_ms())
        print(CLEAR + words[: shutil.get_terminal_size().columns - 1], end="", flush=True)


def live_words(beat: Heartbeat | None, *, now_ms: int) -> str:
    """What a writer does at this moment, and for how long it has."""
    if beat is None:
        return "starting"
    batch = f"batch {beat.epoch}-{beat.batch}"
    words = {
        Phase.STARTING: "starting Spark",
        Phase.TAKING_OVER: "taking over, and starting Spark",
        Phase.WAITING: f"{beat.lag:,} records wait for their batch" if beat.lag else "waiting for records",
        Phase.STAGING: f"{batch}: {beat.batch_records:,} records read",
        Phase.JOURNALING: f"{batch}: committing",
        Phase.COMMITTING: f"{batch}: committing",
        Phase.STOPPING: "ending",
        Phase.ENDED: "ending",
    }[beat.phase]
    return f"{words} ({ago(now_ms - beat.advanced_at_ms)})"


class Totals:
    """What one run landed."""

    def __init__(self, spec: StreamSpec) -> None:
        self._table, self._dead_letters = spec.table.identifier, spec.dead_letter_table
        self.records = self.rejected = 0

    def add(self, batch: BatchCommitted) -> str:
        """The line of one batch."""
        self.records += batch.records
        self.rejected += batch.rejected
        if not batch.records and not batch.rejected:
            return f"batch {batch.key}: no records, the watermark was looked at"
        files = count(batch.files, "file")
        took_s = batch.stage_s + batch.commit_s
        return f"batch {batch.key}: {self._words(batch.records, batch.rejected)} in {files}, {took_s:.1f} s"

    def end(self, *, stopped: bool) -> str:
        """The last line of a run that ended well."""
        how = "stopped" if stopped else "caught up"
        if not self.records and not self.rejected:
            return f"{how}: nothing new for {self._table}"
        rows = f"{count(self.records, 'row')} in {self._table}"
        if not self.rejected:
            return f"{how}: {rows}"
        return (
            f"{how}: {rows}, {count(self.rejected, 'dead letter')} (see table {self._dead_letters}: the column `error` "
            "says why)"
        )

    @staticmethod
    def _words(records: int, rejected: int) -> str:
        return count(records, "row") + (f", {count(rejected, 'dead letter')}" if rejected else "")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
