"""Writes recordings in threads, one per storage service, so that a service that hangs does not block the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from frazil import clock

POLL_INTERVAL_S = 1.0
END_TIMEOUT_S = 3.0
"""Maximum seconds for which an ending writer waits until the last minute of its history is written."""


class Recording(Protocol):
    """Data to be stored or sent at intervals, such as a history or lineage events."""

    def is_due(self, now_ms: int) -> bool: ...

    def write(self, now_ms: int) -> None:
        """Store or send the recording. Never raises."""


class RecordingThreads:
    """Writes the recordings of one process's streams, in one thread per storage. Thread-safe."""

    def __init__(self, *, clock_ms: Callable[[], int] = clock.now_ms, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._clock_ms, self._poll_interval_s = clock_ms, poll_interval_s
        self._threads: dict[str, _RecordingThread] = {}
        self._lock = threading.Lock()

    def add(self, recording: Recording, *, storage: str) -> None:
        """Start to write a recording each time that it is due."""
        with self._lock:
            thread = self._threads.get(storage)
            if thread is None or not thread.add(recording):
                self._threads[storage] = thread = _RecordingThread(self._clock_ms, self._poll_interval_s)
                thread.add(recording)

    def remove(self, recording: Recording, *, wait_s: float = END_TIMEOUT_S) -> None:
        """Write a recording for the last time. Return when that is done, or after the timeout."""
        with self._lock:
            recording_threads = list(self._threads.values())
        for thread in recording_threads:
            thread.remove(recording, wait_s=wait_s)


class _RecordingThread:
    """A thread that writes recordings, and ends when it has none left."""

    def __init__(self, clock_ms: Callable[[], int], poll_interval_s: float) -> None:
        self._clock_ms, self._poll_interval_s = clock_ms, poll_interval_s
        self._recordings: list[Recording] = []
        self._leaving: dict[Recording, threading.Event] = {}
        self._over = False
        self._lock, self._wake = threading.Lock(), threading.Event()
        # A daemon: a storage request that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def add(self, recording: Recording) -> bool:
        """Add a recording. Return False if the thread has ended."""
        with self._lock:
            if self._over:
                return False
            self._recordings.append(recording)
            if self._thread.ident is None:
                self._thread.start()
            return True

    def remove(self, recording: Recording, *, wait_s: float) -> None:
        """Let the thread write a recording for the last time, and wait for that up to `wait_s` seconds."""
        with self._lock:
            if recording not in self._recordings:
                return
            done = self._leaving[recording] = threading.Event()
        self._wake.set()
        done.wait(wait_s)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._poll_interval_s)
            self._wake.clear()
            with self._lock:
                recordings, leaving = list(self._recordings), dict(self._leaving)
            now_ms = self._clock_ms()
            for recording in sorted(recordings, key=lambda one: one not in leaving):
                if recording in leaving or recording.is_due(now_ms):
                    recording.write(now_ms)
                if recording in leaving:
                    with self._lock:
                        self._recordings.remove(recording)
                        del self._leaving[recording]
                    leaving[recording].set()
            with self._lock:
                if not self._recordings:
                    self._over = True
                    return
