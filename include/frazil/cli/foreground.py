"""Shows a user at the terminal what a writer does: a line per batch, a live line while it waits, and how it ended.

The writer's own output goes to `writer.log`. Its messages arrive through a pipe, and only this process writes to the
terminal.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TextIO

from frazil import clock
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.spec.units import format_count, mask_numbers
from frazil.timetext import format_elapsed

if TYPE_CHECKING:
    from frazil.events import BatchCommitted
    from frazil.spec.model import StreamSpec

WAIT_REPORT_INTERVAL_S = 30.0
"""Seconds until a wait is first shown, and between lines about different reasons."""
WAIT_REMINDER_INTERVAL_S = 3_600.0
"""Seconds between lines about the same wait, which differ at most in their numbers."""
MAX_BUFFERED_LINES = 1000
"""Maximum number of lines buffered for a blocked terminal. The writer's last lines may use twice as many."""
CLEAR_LINE = "\r\x1b[K"


class WriterPipe(logging.Handler):
    """The writer's end of the pipe, and a log handler. Lines that the reader does not read are dropped and counted."""

    def __init__(self, fd: int) -> None:
        super().__init__(logging.WARNING)
        os.set_blocking(fd, False)
        self._fd = fd
        self._omitted = 0

    def say(self, line: str) -> None:
        self._write("say", line)

    def report(self, document: Mapping[str, object]) -> None:
        self._write("report", json.dumps(document))

    def print_error(self, line: str) -> None:
        self._write("print_error", line)

    def emit(self, record: logging.LogRecord) -> None:
        self._write("warn", f"warning: {record.getMessage()}")

    def _write(self, kind: str, line: str) -> None:
        if self._omitted and self._try_write("say", omitted_text(self._omitted)):
            self._omitted = 0
        if self._omitted or not self._try_write(kind, line):
            self._omitted += 1

    def _try_write(self, kind: str, line: str) -> bool:
        """Write a line, shortened to fit into one atomic write. Return False if the pipe is full."""
        while len(frame := f"{json.dumps([kind, line])}\n".encode()) > select.PIPE_BUF:
            line = f"{line[: len(line) * 3 // 4]}..."
        try:
            os.write(self._fd, frame)
        except BlockingIOError:
            return False
        except OSError:  # nothing reads any longer, and the writer continues to its end
            pass
        return True


def omitted_text(count: int) -> str:
    return f"... {format_count(count, 'line')} not shown, because the terminal was blocked; the log has them"


class Terminal:
    """The reader's end of the pipe. Prints in a separate thread, so that a blocked terminal blocks nothing else."""

    def __init__(self, *folders: Path, on_gone: Callable[[], None] = lambda: None, as_json: bool = False) -> None:
        """`folders` are the streams' run folders. `on_gone` is called, by any thread, once the terminal is gone.
        With `as_json`, sentences go to stderr.
        """
        self._folders = folders
        self._live = sys.stdout.isatty() and not as_json
        self._as_json, self._text_stream = as_json, sys.stderr if as_json else sys.stdout
        self._lines: SimpleQueue[tuple[TextIO, str] | None] = SimpleQueue()
        self._omitted = 0
        self._on_gone = on_gone
        self._printer: Thread | None = None
        self.complained = False

    def listen(self, fd: int, *, writer: int) -> None:
        self._printer = Thread(target=self._print, args=(writer,), name="terminal", daemon=True)
        self._printer.start()
        partial_line = b""
        while data := self._read(fd):
            *lines, partial_line = (partial_line + data).split(b"\n")
            for line in lines:
                kind, text = json.loads(line)
                {"print_error": self.print_error, "warn": self.warn, "report": self.report}.get(kind, self.say)(text)

    @staticmethod
    def _read(fd: int) -> bytes:
        """Read bytes. Wakes every half second, so that Python can handle signals."""
        while not select.select([fd], [], [], 0.5)[0]:
            pass
        return os.read(fd, 65_536)

    def close(self) -> None:
        if self._omitted:
            self._lines.put((self._text_stream, omitted_text(self._omitted)))
        self._lines.put(None)
        if self._printer:
            self._printer.join()

    def say(self, line: str) -> None:
        """Queue a line for display. Safe in signal handlers."""
        self._queue(self._text_stream, line)

    def report(self, line: str) -> None:
        if self._as_json:
            self._queue(sys.stdout, line)

    def warn(self, line: str) -> None:
        self._queue(sys.stderr, line)

    def print_error(self, line: str) -> None:
        self.complained = True
        self._queue(sys.stderr, line, limit=2 * MAX_BUFFERED_LINES)

    def _queue(self, stream: TextIO, line: str, *, limit: int = MAX_BUFFERED_LINES) -> None:
        if self._lines.qsize() >= limit:
            self._omitted += 1
            return
        if self._omitted:
            self._lines.put((self._text_stream, omitted_text(self._omitted)))
            self._omitted = 0
        self._lines.put((stream, line))

    def _print(self, writer: int) -> None:
        while True:
            try:
                item = self._lines.get(timeout=0.5)
            except Empty:
                self._show_live(writer)
                continue
            if self._live:
                self._show(sys.stdout, CLEAR_LINE)
            if item is None:
                return
            self._show(item[0], f"{item[1]}\n")

    def _show(self, stream: TextIO, text: str) -> None:
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except OSError:  # nothing reads the stream any longer: discard further output
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            self._on_gone()

    def _show_live(self, writer: int) -> None:
        if not self._live:
            return
        read = [*map(Heartbeat.read, self._folders)]
        current = [heartbeat if heartbeat and heartbeat.pid == writer else None for heartbeat in read]
        text = live_text(current[0], now_ms=clock.now_ms()) if len(current) == 1 else live_text_of_many(current)
        self._show(sys.stdout, CLEAR_LINE + text[: shutil.get_terminal_size().columns - 1])


def live_text(heartbeat: Heartbeat | None, *, now_ms: int) -> str:
    if heartbeat is None:
        return "starting"
    batch = f"batch {heartbeat.epoch}-{heartbeat.batch}"
    text = {
        Phase.STARTING: "starting Spark",
        Phase.TAKING_OVER: "taking over, and starting Spark",
        Phase.WAITING: f"{format_count(heartbeat.lag, 'record', 'waits for its|wait for their')} batch"
        if heartbeat.lag
        else "waiting for records",
        Phase.STAGING: f"{batch}: {format_count(heartbeat.batch_records, 'record')} read",
        Phase.JOURNALING: f"{batch}: committing",
        Phase.COMMITTING: f"{batch}: merging, {format_count(heartbeat.merged_rows, 'row')} read"
        if heartbeat.merged_rows
        else f"{batch}: committing",
        Phase.STOPPING: "ending",
        Phase.ENDED: "ending",
    }[heartbeat.phase]
    return f"{text} ({format_elapsed(now_ms - heartbeat.advanced_at_ms)})"


def live_text_of_many(heartbeats: Sequence[Heartbeat | None]) -> str:
    phases = Counter(str(heartbeat.phase if heartbeat else Phase.STARTING) for heartbeat in heartbeats)
    return f"{len(heartbeats):,} streams: {', '.join(f'{count:,} {phase}' for phase, count in sorted(phases.items()))}"


def batch_document(batch: BatchCommitted) -> dict[str, object]:
    counts = {"records": batch.records, "rejected": batch.rejected, "files": batch.files, "bytes": batch.bytes}
    return {"batch": str(batch.key), **counts, "stage-s": batch.stage_s, "commit-s": batch.commit_s}


class WaitReporter:
    """Decides when to show what a writer waits for: after half a minute, at a new reason, and then every hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reported_at: float | None = None
        self._shape = ""
        self._none_since_commit = False

    def report(self, sentence: str) -> str | None:
        """Record a wait of the writer. Return the line to show; None if the wait is new or was just shown."""
        self._none_since_commit = False
        now_s, shape = self._clock(), mask_numbers(sentence)
        if self._reported_at is None:
            self._reported_at, self._shape = now_s, ""
            return None
        interval_s = WAIT_REMINDER_INTERVAL_S if shape == self._shape else WAIT_REPORT_INTERVAL_S
        if now_s - self._reported_at < interval_s:
            return None
        self._reported_at, self._shape = now_s, shape
        return f"waiting: {sentence}"

    def note_commit(self) -> None:
        self._none_since_commit = True

    def note_batch_start(self) -> None:
        if self._none_since_commit:
            self._reported_at = None


class RunTotals:
    def __init__(self, spec: StreamSpec) -> None:
        self._table, self._dead_letters = spec.table.identifier, spec.dead_letter_table
        sinks = spec.sinks
        self._merges, self._drops_repeats = sinks.mode.replaces_rows, sinks.mode.drops_repeats
        self._noun = "record" if spec.has_lines else "row"
        self._dropped: int | None = 0 if self._drops_repeats and not sinks.has_routed_tables else None
        self._stream = spec.name
        self._tables = f"the tables of the route of {spec.name}" if sinks.has_routed_tables else self._table
        self.records = self.rejected = self.filtered = 0
        self.waited = 0
        """Rows of earlier batches that reached their tables in this run."""

    def add(self, batch: BatchCommitted) -> str:
        self.records += batch.records
        self.rejected += batch.rejected
        if self._dropped is not None:  # routed tables do not report their repeats
            self._dropped += batch.changes.get("repeated", 0)
        filtered = batch.changes.get("dropped", 0)
        self.filtered += filtered
        if not batch.records and not batch.rejected and not filtered:
            return f"batch {batch.key}: no new records, only the watermark was updated"
        # Change files are not added to the table.
        where = "" if self._merges else f" in {format_count(batch.files, 'file')}"
        took_s, repeats = batch.stage_s + batch.commit_s, batch.changes.get("repeated", 0)
        rejected = f", {format_count(batch.rejected, 'dead letter')}" if batch.rejected else ""
        drops = f", {format_count(repeats, 'repeat')} dropped" if repeats else ""
        drops += f", {format_count(filtered, 'record')} dropped by the transform" if filtered else ""
        return f"batch {batch.key}: {self._landed(batch.records, repeats)}{rejected}{drops}{where}, {took_s:.1f} s"

    def last_line(self, *, is_stopped: bool, waiting: int = 0, lag: int | None = None) -> str:
        """Return a successful run's last line. `waiting`: rows for routed tables; `lag`: records left in Kafka."""
        ending = "stopped" if is_stopped else "caught up"
        effect = "that had waited reached its table|that had waited reached their tables"
        more_text = f"; {format_count(self.waited, 'row', effect)}" if self.waited else ""
        more_text += f"; {format_count(lag, 'record', 'waits|wait')} in Kafka" if lag else ""
        if waiting:
            rows = format_count(waiting, "row", "waits for its table|wait for their tables")
            return f"{self._end_text(ending, 'for')}{more_text}; {rows}: `frazil route {self._stream}` shows why"
        if is_stopped and lag != 0 and not self._has_records:
            return f"{ending}: no records were committed to {self._tables}{more_text}"
        return self._end_text(ending, "into" if self._merges else "added to") + more_text

    @property
    def _has_records(self) -> bool:
        return bool(self.records or self.rejected or self.filtered)

    def _end_text(self, ending: str, into: str) -> str:
        if not self._has_records:
            return f"{ending}: no new records for {self._tables}"
        row_text = f"{self._landed(self.records, self._dropped or 0)} {into} {self._tables}"
        if self._dropped is not None:
            row_text += f", {format_count(self._dropped, 'repeat')} dropped"
        elif self._drops_repeats:
            row_text = f"{format_count(self.records, 'record')} for {self._tables}, including repeats that were dropped"
        row_text += f", {format_count(self.filtered, 'record')} dropped by the transform" if self.filtered else ""
        if self.rejected:
            row_text += (
                f", {format_count(self.rejected, 'dead letter')} (see the column `error` of table {self._dead_letters})"
            )
        return f"{ending}: {row_text}"

    def document(self, *, is_stopped: bool, waiting: int = 0, lag: int | None = None) -> dict[str, object]:
        waits = {**({"waiting": waiting} if waiting else {}), **({"lag": lag} if lag is not None else {})}
        ending = "stopped" if is_stopped else "caught-up"
        repeated = {} if self._dropped is None else {"repeated": self._dropped}
        other_counts = {"dropped": self.filtered, "waited": self.waited}
        counts = {name: count for name, count in other_counts.items() if count}
        return {"ended": ending, "records": self.records, "rejected": self.rejected, **repeated, **counts, **waits}

    def _landed(self, records: int, repeats: int) -> str:
        if self._drops_repeats and self._dropped is None:
            return format_count(records, "record")
        if self._merges:
            return f"{format_count(records, 'change')} merged"
        return format_count(records - repeats, self._noun)
