"""Emits one event when a stall begins and one event when it ends."""

from __future__ import annotations

from collections.abc import Callable

from frazil.events import StallBegan, StallEnded, StreamEvent
from frazil.host.heartbeat import Stall
from frazil.stream.stall import find_stall
from frazil.stream.stall_history import WORKING, History, Limits, Sample, remember


class StallWatch:
    """Keeps the history of the samples that the heartbeat's thread takes. Not thread-safe."""

    def __init__(self, stream: str, limits: Limits, *, emit: Callable[[StreamEvent], None]) -> None:
        self._stream, self._declared, self._limits, self._emit = stream, limits, limits, emit
        self._history: History | None = None
        self._stall: Stall | None = None

    def stretch(self, stretch: float) -> None:
        """Set the factor by which the commit interval is stretched."""
        self._limits = self._declared.stretched(stretch)

    def evaluate(self, sample: Sample) -> Stall | None:
        """Return the stall at the sample's time.

        While the writer takes over or stops, the last result is returned.
        """
        self._history = remember(self._history, sample, limits=self._limits)
        if sample.phase in WORKING:
            found = find_stall(self._history, sample, limits=self._limits, stream=self._stream)
            self._emit_change(found, now_ms=sample.at_ms)
            self._stall = found
        return self._stall

    def _emit_change(self, found: Stall | None, *, now_ms: int) -> None:
        """Emit a change of the stall. A stall of the same kind is the same stall, even with another topic-partition."""
        before = self._stall
        if (before and before.kind) == (found and found.kind):
            return
        if before is not None:
            self._emit(StallEnded(before.kind, lasted_ms=now_ms - before.since_ms))
        if found is not None:
            self._emit(StallBegan(found))
