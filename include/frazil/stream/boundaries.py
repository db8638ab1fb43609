"""Finds the offsets of a log before which every transaction of the source is whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_ENDS = 200_000
"""So many ends of transactions are remembered: a connector that starts again sends the last ones again."""


Place = tuple[str, int]
"""Where an event's transaction lies in the source's log: in a later one greater or equal. The text names a file."""


@dataclass(slots=True)
class _Run:
    """Records that follow each other, of one transaction or of none (empty)."""

    transaction: str
    order: int
    """Of the last one, as its place."""
    place: Place | None
    end: int
    """The offset behind them."""


@dataclass(slots=True)
class Boundaries:
    """Of a log whose events carry their transaction and their order in it, both as the source counts them.

    A transaction is open from each of its events on until the event that its end counts as the last. A connector that
    starts again sends events again: an older transaction may therefore lie between two events of one. What it sends
    again makes rows that were deleted since, so that there is no boundary before it has caught up with the newest.
    """

    at: int
    """The last offset that is known to be one."""
    newest: tuple[str, Place | None] = ("", None)
    """The last transaction before it, and its place."""
    _runs: list[_Run] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, transaction: str, order: int, place: Place | None, end: int) -> None:
        """The next record, whose offset is before `end`."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.transaction == transaction:
            last.order, last.place, last.end = order, place, end
        else:
            self._runs.append(_Run(transaction, order, place, end))

    def passed(self, end: int) -> None:
        """No more records lie before this offset."""
        if self._runs:
            self._runs[-1].end = end
        else:
            self.at = end

    def ended(self, transaction: str, count: int) -> None:
        """The transaction has so many events in this log."""
        self._counts[transaction] = count
        if len(self._counts) > MOST_ENDS:
            del self._counts[next(iter(self._counts))]

    def settle(self, *, whole: bool) -> str:
        """Move `at` as far as the ends of transactions allow; returns one that it waits for, or an empty text.

        Unless `whole`, more records follow at once, perhaps of the last transaction.
        """
        open_ones: dict[str, None] = {}
        newest, behind, done = self.newest, False, 0
        for i, run in enumerate(self._runs if whole else self._runs[:-1]):
            if run.transaction and run.transaction not in self._counts:
                open_ones[run.transaction] = None
                break  # nothing behind it is a boundary before its end is known
            if run.transaction and self._counts[run.transaction] != run.order:
                open_ones[run.transaction] = None
            elif run.transaction:
                open_ones.pop(run.transaction, None)
                behind = run.transaction != newest[0] and _is_before(run.place, newest[1])
                if not behind:
                    newest = (run.transaction, run.place or newest[1])
            if not open_ones and not behind:
                self.at, self.newest, done = run.end, newest, i + 1
        del self._runs[:done]
        return next(iter(open_ones), newest[0] if behind else "")


def _is_before(place: Place | None, other: Place | None) -> bool:
    return place is not None and other is not None and place < other
