"""Tells when a silent stall begins and when it ends, each once."""

from __future__ import annotations

from collections.abc import Callable

from frazil.events import Happening, StallBegan, StallEnded
from frazil.host.heartbeat import Stall
from frazil.stream.stall import find_stall
from frazil.stream.stall_history import WORKING, History, Limits, Sample, remember


class StallWatch:
    """Remembers the samples that the heartbeat's thread takes. Not for several threads at once."""

    def __init__(self, stream: str, limits: Limits, *, emit: Callable[[Happening], None]) -> None:
        self._stream, self._declared, self._limits, self._emit = stream, limits, limits, emit
        self._history: History | None = None
        self._stall: Stall | None = None

    def stretch(self, stretch: float) -> None:
        """The commit interval is so many times longer than declared."""
        self._limits = self._declared.stretched(stretch)

    def judge(self, sample: Sample) -> Stall | None:
        """The stall at that moment. While the writer takes over or stops nothing new is judged: what was, stays."""
        self._history = remember(self._history, sample, limits=self._limits)
        if sample.phase in WORKING:
            found = find_stall(self._history, sample, limits=self._limits, stream=self._stream)
            self._tell(found, now_ms=sample.at_ms)
            self._stall = found
        return self._stall

    def _tell(self, found: Stall | None, *, now_ms: int) -> None:
        """A stall whose numbers, or whose topic-partition, change is the same one still."""
        before = self._stall
        if (before and before.kind) == (found and found.kind):
            return
        if before is not None:
            self._emit(StallEnded(before.kind, lasted_ms=now_ms - before.since_ms))
        if found is not None:
            self._emit(StallBegan(found))
