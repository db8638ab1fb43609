"""Finds transaction boundaries in a log: offsets between complete source transactions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from frazil.commit.marker import NO_TRANSACTION, LastTransaction
from frazil.errors import SpecError
from frazil.ingest.source_log import is_after, is_before
from frazil.safe_text import escape_unsafe

MAX_REMEMBERED_TRANSACTIONS = 200_000
"""Maximum number of remembered transactions that have ended. A restarted connector may send their events again."""
MAX_OPEN_POSITIONS = 200
"""Maximum number of source positions of open transactions, which are compared in pairs."""


@dataclass(slots=True)
class _RecordRun:
    """Consecutive records of one transaction, or without a transaction."""

    transaction: str
    order: int
    """The number of the last readable record within its transaction."""
    position: str | None
    """The transaction's position in the source's log."""
    end: int
    unreadable: int = 0
    """Number of unreadable records after the last readable record. They may belong to the same transaction."""


@dataclass(slots=True)
class _OpenTransactions:
    """Open transactions, oldest first. A transaction without a position never counts as earlier than another."""

    positions: dict[str, str | None] = field(default_factory=dict)
    _at: dict[str, dict[str, None]] = field(default_factory=dict)

    def find_earlier(self, run: _RecordRun) -> list[tuple[str, str]]:
        """Return the other open transactions that precede this run in the source's log, as pairs of id and position."""
        positions = [earlier for earlier in self._at if is_after(run.position, earlier)]
        return [
            (transaction, earlier)
            for earlier in positions
            for transaction in self._at[earlier]
            if transaction != run.transaction
        ]

    def add(self, transaction: str, position: str | None) -> None:
        self._drop_position(transaction)
        self.positions[transaction] = position
        if position is not None:
            self._at.setdefault(position, {})[transaction] = None
        if len(self._at) > MAX_OPEN_POSITIONS:
            raise SpecError(
                f"source.format.envelope.transactions: transactions at more than {MAX_OPEN_POSITIONS} positions of the "
                f"source's log are open at once, the last at {escape_unsafe(position or '', lines=False)}: the events "
                "are not in the order of one log. Check what writes into the topic, or leave envelope.transactions out"
            )

    def remove(self, transaction: str) -> None:
        self._drop_position(transaction)
        self.positions.pop(transaction, None)

    def _drop_position(self, transaction: str) -> None:
        if (position := self.positions.get(transaction)) is not None:
            del self._at[position][transaction]
            if not self._at[position]:
                del self._at[position]


@dataclass(slots=True)
class Boundaries:
    """Finds transaction boundaries in a log of change events. Each event has a transaction's id, and a number in it.

    A transaction is open until its last event, or until a later transaction begins. The transaction's end record states
    the number of events.

    A restarted connector sends events again. A batch that ends among repeated events would restore deleted rows.
    Therefore, no offset is a boundary until the newest transaction was sent again.
    """

    boundary: int
    newest: LastTransaction = NO_TRANSACTION
    """The newest complete transaction before `boundary`."""
    is_behind: bool = False
    """Whether a restarted connector had not sent `newest` again at the last `advance`."""
    _runs: list[_RecordRun] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    """The number of events of each transaction with an end record that was read."""

    def add(self, transaction: str, order: int, position: str | None, end: int, *, unreadable: bool = False) -> None:
        """Add the next record: `order` is its number in the transaction, and `end` is the offset after the record."""
        last = self._runs[-1] if self._runs else None
        if last is not None and unreadable:
            last.unreadable, last.end = last.unreadable + 1, end
        elif last is not None and last.transaction == transaction:
            last.order, last.position, last.end, last.unreadable = order, position, end, 0
        else:
            self._runs.append(_RecordRun(transaction, order, position, end))

    def skip_to(self, end: int) -> None:
        """Record that all records before the offset `end` were added."""
        if self._runs:
            self._runs[-1].end = end
        else:
            self.boundary = end

    def add_end(self, transaction: str, count: int) -> None:
        """Record that the transaction has `count` events in this log."""
        self._counts[transaction] = count
        if len(self._counts) > MAX_REMEMBERED_TRANSACTIONS:
            del self._counts[next(iter(self._counts))]

    def advance(self, *, at_end: bool) -> str:
        """Move `boundary` to the last one, and return the id of the transaction that prevents a later boundary, or "".

        Unless `at_end`, more records follow, so the last transaction stays open. Raises SpecError for records from more
        than one log.
        """
        open_ones = _OpenTransactions()
        newest, behind, begins, end = self.newest, False, 0, self.boundary
        for i, run in enumerate(self._runs if at_end else self._runs[:-1]):
            for transaction, position in open_ones.find_earlier(run) if run.transaction else ():
                open_ones.remove(transaction)
                newest, behind = _advance(newest, transaction, position)
                if not open_ones.positions and not behind:
                    self.boundary, self.newest, begins = end, newest, i
            count = self._counts.get(run.transaction)
            if run.transaction and count is not None and run.order <= count <= run.order + run.unreadable:
                open_ones.remove(run.transaction)
                newest, behind = _advance(newest, run.transaction, run.position)
            elif run.transaction:
                open_ones.add(run.transaction, run.position)
            end = run.end
            if not open_ones.positions and not behind:
                self.boundary, self.newest, begins = end, newest, i + 1
        del self._runs[:begins]
        self.is_behind = behind and not open_ones.positions
        return next(iter(open_ones.positions), newest.id if behind else "")


def _advance(newest: LastTransaction, transaction: str, position: str | None) -> tuple[LastTransaction, bool]:
    """Return the newest transaction once `transaction` has ended, and whether `transaction` is older than `newest`."""
    if transaction != newest.id and is_before(position, newest.position):
        return newest, True
    return LastTransaction(transaction, position or newest.position), False
