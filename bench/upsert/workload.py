"""A table of orders by day, and changes to it: 30 % repeat the table's values, 10 % are stale, 5 % are new orders.

Keys follow Zipf's law, and are scattered over all days. A seed determines all values, so the table's expected final
content is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

FIRST_DAY = date(2026, 1, 1)
FIRST_UPDATE = datetime(2026, 6, 1, tzinfo=UTC)
STATES = ("placed", "paid", "packed", "sent", "returned")
ZIPF = 1.2
SCATTER = 2_654_435_761
"""An odd factor, which scatters popular keys over all days."""
UNCHANGED, STALE, NEW, DELETED = 0.30, 0.10, 0.05, 0.02
"""Shares of the changes. All other changes are updates."""

Version = tuple[int, int]
"""Time of an order's last update, in seconds after `FIRST_UPDATE`, and the number that determines its values."""


@dataclass(frozen=True, slots=True)
class Order:
    """One row, with the key (day, id)."""

    id: int
    day: int
    """Days after `FIRST_DAY`."""
    version: Version

    def values(self) -> dict[str, object]:
        updated_s, number = self.version
        return {
            "day": str(FIRST_DAY + timedelta(days=self.day)),
            "id": self.id,
            "updated_at": (FIRST_UPDATE + timedelta(seconds=updated_s)).isoformat().replace("+00:00", "Z"),
            "amount": mixed(self.id, number) % 1_000_000 / 100,
            "state": STATES[(self.id + number) % len(STATES)],
            "customer": f"customer {mixed(self.id, 0) % 500_000:06}",
            "note": f"{mixed(self.id, number):016x}",
        }


def mixed(id: int, number: int) -> int:
    """Return 63 bits that look random, so that a column compresses realistically."""
    value = (id * 0x9E3779B97F4A7C15 + number * 0xC2B2AE3D27D4EB4F) & (2**64 - 1)
    value ^= value >> 29
    return (value * 0xBF58476D1CE4E5B9 & (2**64 - 1)) >> 1


def all_mixed(ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Apply `mixed` to arrays."""
    value = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + numbers.astype(np.uint64) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    value ^= value >> np.uint64(29)
    found: np.ndarray = (value * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(1)).astype(np.int64)
    return found


def base(rows: int, days: int) -> Iterator[pa.Table]:
    """Yield the table's rows before the changes, by day."""
    per_day = rows // days
    for day in range(days):
        ids = np.arange(per_day, dtype=np.int64) * days + day
        yield columns(ids, np.full(per_day, day), np.zeros(per_day, np.int64), np.zeros(per_day, np.int64))


def columns(ids: np.ndarray, days: np.ndarray, updated_s: np.ndarray, numbers: np.ndarray) -> pa.Table:
    """Compute the values of `Order.values` for many orders."""
    start = int(FIRST_UPDATE.timestamp())
    return pa.table(
        {
            "day": pa.array((days + FIRST_DAY.toordinal() - date(1970, 1, 1).toordinal()).astype(np.int32)).cast(
                pa.date32()
            ),
            "id": pa.array(ids),
            "updated_at": pa.array((updated_s + start) * 1_000_000).cast(pa.timestamp("us", "UTC")),
            "amount": pa.array(all_mixed(ids, numbers) % 1_000_000 / 100),
            "state": pa.array(np.array(STATES)[(ids + numbers) % len(STATES)]),
            "customer": pa.array([f"customer {n:06}" for n in (all_mixed(ids, 0 * ids) % 500_000).tolist()]),
            "note": pa.array([f"{n:016x}" for n in all_mixed(ids, numbers).tolist()]),
            "op": pa.array(["u"] * len(ids)),
        }
    )


@dataclass(slots=True)
class Changes:
    """Creates the changes, and computes the table's content after them."""

    rows: int
    days: int
    seed: int = 7
    current: dict[int, Version | None] = field(default_factory=dict)
    """The newest version of each changed order, by id; None if it is deleted."""
    kinds: dict[str, int] = field(default_factory=dict)

    def make(self, count: int) -> Iterator[tuple[int, bytes]]:
        """Yield the next changes: the order's id, which is the Kafka key, and the record."""
        draw = np.random.default_rng(self.seed)
        ranks = draw.zipf(ZIPF, count)
        kinds = draw.random(count)
        for number in range(1, count + 1):
            id = int(ranks[number - 1]) * SCATTER % self.rows
            yield self._change(id, float(kinds[number - 1]), number)

    def _change(self, id: int, drawn: float, number: int) -> tuple[int, bytes]:
        found = self.current.get(id, (0, 0))
        if drawn < NEW:
            order, kind = self._order(self.rows + number, (number, number)), "new"
        elif found is None:
            order, kind = self._order(id, (number, number)), "new again"
        elif drawn < NEW + UNCHANGED:
            order, kind = self._order(id, found), "unchanged"
        elif drawn < NEW + UNCHANGED + STALE:
            order, kind = self._order(id, (found[0] - 1, number)), "stale"
        elif drawn < NEW + UNCHANGED + STALE + DELETED:
            order, kind = self._order(id, (number, number)), "deleted"
        else:
            order, kind = self._order(id, (number, number)), "updated"
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind not in {"unchanged", "stale"}:
            self.current[order.id] = None if kind == "deleted" else order.version
        op = "d" if kind == "deleted" else "u"
        return order.id, json.dumps({**order.values(), "op": op}, separators=(",", ":")).encode()

    def _order(self, id: int, version: Version) -> Order:
        return Order(id, id % self.days, version)

    def expected(self) -> tuple[int, int, int]:
        """Return the expected number of rows, the sum of their ids, and the sum of their update times (s)."""
        base_ids = np.arange(self.rows // self.days * self.days, dtype=np.int64)
        rows, ids, seconds = len(base_ids), int(base_ids.sum()), 0
        for id, version in self.current.items():
            was = id < self.rows
            rows += (version is not None) - was
            ids += id * ((version is not None) - was)
            seconds += version[0] if version else 0
        return rows, ids, seconds
