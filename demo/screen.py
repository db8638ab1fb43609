"""The demo's progress: a line that is rewritten on a terminal, or an occasional line elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO

from demo.flights import LIVE_FROM

PERIOD_TERMINAL_S = 1.0
PERIOD_ELSEWHERE_S = 10.0


@dataclass(frozen=True, slots=True)
class State:
    """The demo at one moment."""

    hour: int | None
    """Hours of event time since `LIVE_FROM`; None while the backlog lands."""
    published: int
    committed: int
    oldest_waiting_s: float
    writer: str

    def __str__(self) -> str:
        sending = "backlog" if self.hour is None else f"{LIVE_FROM + timedelta(hours=self.hour):%d %b %H:00}"
        lag = self.published - self.committed
        fresh = f"{self.oldest_waiting_s:.0f} s behind" if lag else "up to date"
        return (
            f"{sending:<12}  published {self.published:,}  committed {self.committed:,}  lag {lag:,}  {fresh}  "
            f"writer {self.writer}"
        )


class Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown_s = float("-inf")
        self._open_line = False

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.end_line()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, state: State, *, now_s: float) -> None:
        """Show progress, not too often."""
        if now_s - self._shown_s < (PERIOD_TERMINAL_S if self._terminal else PERIOD_ELSEWHERE_S):
            return
        self._shown_s = now_s
        self._stream.write(f"\r  {state}\033[K" if self._terminal else f"  {state}\n")
        self._open_line = self._terminal
        self._stream.flush()

    def end_line(self) -> None:
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False
