"""Writes an agent's heartbeat: a copy of the driver's last heartbeat, with the times of this host's clock."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from pathlib import Path
from typing import Self

from frazil import clock
from frazil.cluster.driver import DriverState, DriverStatus
from frazil.errors import Failure, explain
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.records import StoredError
from frazil.host.writer_log import rotate_full_log
from frazil.spec.model import StreamSpec

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
REPORT_TIMEOUT_MS = 10_000
"""How long a driver's last report counts as current. Then the heartbeat is no longer renewed."""
LOG_CHECK_HEARTBEATS = 60


class HeartbeatMirror:
    """A thread that writes the heartbeat every second, even before the driver starts and during outages."""

    def __init__(self, spec: StreamSpec, folder: Path) -> None:
        now_ms = clock.now_ms()
        self._folder = folder
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(
            stream=spec.name,
            pid=os.getpid(),
            spec_fingerprint=spec.fingerprint(),
            table=spec.table.identifier,
            phase=Phase.STARTING,
            written_at_ms=now_ms,
            advanced_at_ms=now_ms,
        )
        self._copied_at_ms: int | None = None
        self._advanced: tuple[int, int] | None = None
        """The time of the last progress, by the driver's clock and by this host's clock."""
        self._outage: str | None = None
        self._notice: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        self._thread.join()
        if error is not None:
            self.end(explain(error))

    def copy_heartbeat(self, heartbeat: Heartbeat) -> None:
        now_ms = clock.now_ms()
        with self._lock:
            if self._advanced is None or self._advanced[0] != heartbeat.advanced_at_ms:
                self._advanced = (
                    heartbeat.advanced_at_ms,
                    now_ms - max(0, heartbeat.written_at_ms - heartbeat.advanced_at_ms),
                )
            self._heartbeat = dataclasses.replace(
                heartbeat,
                pid=self._heartbeat.pid,
                spec_fingerprint=self._heartbeat.spec_fingerprint,
                advanced_at_ms=self._advanced[1],
            )
            self._copied_at_ms = now_ms

    def show_status(self, submission: str, status: DriverStatus) -> None:
        sentence = f"driver {submission}: {status.reason}"
        self._set_notice(sentence, is_waiting=status.state in {DriverState.WAITING, DriverState.UNKNOWN})

    def show_missing_name(self, reason: str | None) -> None:
        sentence = "the driver's submission is not confirmed yet"
        self._set_notice(f"{sentence}: {reason}" if reason else sentence, is_waiting=True)

    def _set_notice(self, sentence: str, *, is_waiting: bool) -> None:
        now_ms = clock.now_ms()
        with self._lock:
            self._notice = sentence
            if is_waiting and self._copied_at_ms is None:  # waiting for a cluster is not a hang
                self._heartbeat = dataclasses.replace(self._heartbeat, advanced_at_ms=now_ms)

    def set_outage(self, sentence: str | None) -> None:
        with self._lock:
            self._outage = sentence

    def end(self, cause: Failure | None) -> None:
        with self._lock:
            self._heartbeat = dataclasses.replace(self._heartbeat, phase=Phase.ENDED, **StoredError.fields_of(cause))
            self._outage = self._notice = None
        self._over.set()
        self.write(ended=True)

    def write(self, *, ended: bool = False) -> None:
        """Write the heartbeat, with an old time if the driver's last report is too old."""
        now_ms = clock.now_ms()
        with self._lock:
            copied_ms = self._copied_at_ms
            stale = (
                copied_ms is not None and now_ms - copied_ms > REPORT_TIMEOUT_MS and self._outage is None and not ended
            )
            heartbeat = dataclasses.replace(
                self._heartbeat,
                written_at_ms=copied_ms + REPORT_TIMEOUT_MS if stale and copied_ms is not None else now_ms,
                outage=self._outage or self._heartbeat.outage,
                outage_code=None if self._outage else self._heartbeat.outage_code,
                notices=(*self._heartbeat.notices, *((self._notice,) if self._notice else ())),
            )
        heartbeat.write(self._folder)

    def _run(self) -> None:
        heartbeats = 0
        while not self._over.wait(HEARTBEAT_INTERVAL_S):
            heartbeats += 1
            try:
                self.write()
                if heartbeats % LOG_CHECK_HEARTBEATS == 0:
                    rotate_full_log(self._folder)
            except Exception as error:  # a full disk must not end this thread
                log.warning("cannot write the heartbeat: %r", error)
