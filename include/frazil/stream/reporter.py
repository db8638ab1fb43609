"""The heartbeat's thread: says where the writer stands every second, whatever the writer is busy with."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from frazil.commit.marker import BatchKey, Marker
from frazil.stream.planner import read_report
from frazil.stream.progress import ProgressFolder
from frazil.supervise.heartbeat import Heartbeat, Phase

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class Reporter:
    """Writes the status file until it is closed. Its setters are called by the writer's other threads."""

    def __init__(self, *, stream: str, fingerprint: str, folder: Path, clock_ms: Callable[[], int]) -> None:
        now = clock_ms()
        self._folder, self._clock_ms = folder, clock_ms
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._marker: Marker | None = None
        self._progress: ProgressFolder | None = None
        self._state = Heartbeat(
            stream=stream,
            pid=os.getpid(),
            spec_fingerprint=fingerprint,
            phase=Phase.STARTING,
            written_at_ms=now,
            advanced_at_ms=now,
        )
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        text = f"{type(error).__name__}: {error}" if error else None
        self._change(phase=Phase.ENDED, error=text)
        self._write()

    def phase(self, phase: Phase, *, key: BatchKey | None = None) -> None:
        """The writer went on to another phase; `key` names the batch that it works on."""
        at = {} if key is None else {"epoch": key.epoch, "batch": key.batch, "batch_records": 0}
        self._change(phase=phase, **at)

    def table(self, location: str, progress: ProgressFolder) -> None:
        self._progress = progress
        self._change(table_location=location)

    def committed(self, marker: Marker, *, at_ms: int | None) -> None:
        """The marker as it stands; `at_ms` is when a batch landed, None for a take-over."""
        self._marker = marker
        us = marker.watermark_us
        commit = {} if at_ms is None else {"last_commit_at_ms": at_ms, "last_commit_snapshot": marker.snapshot_id}
        self._change(
            epoch=marker.at.epoch, batch=marker.at.batch, watermark_ms=us // 1000 if us is not None else None, **commit
        )

    def _change(self, **values: object) -> None:
        with self._lock:
            self._state = dataclasses.replace(self._state, advanced_at_ms=self._clock_ms(), **values)  # type: ignore[arg-type]
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(PERIOD_S)
            self._wake.clear()
            try:
                self._observe()
                self._write()
            except Exception as error:  # a full disk must not end a thread that says so when it can again
                log.warning("the heartbeat could not be written: %r", error)

    def _observe(self) -> None:
        state, progress = self._state, self._progress
        if state.phase is Phase.STAGING and progress and state.epoch is not None and state.batch is not None:
            records = progress.records(epoch=state.epoch, batch=state.batch)
            if records > state.batch_records:
                self._change(batch_records=records)
        report = read_report(self._folder)
        if report and self._marker:
            offsets = self._marker.offsets
            lag = sum(max(end - offsets.get(tp, 0), 0) for tp, end in report.ends.items())
            with self._lock:
                self._state = dataclasses.replace(self._state, lag=lag)

    def _write(self) -> None:
        with self._lock:
            dataclasses.replace(self._state, written_at_ms=self._clock_ms()).write(self._folder)
