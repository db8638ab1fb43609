"""Events of many kinds, as several producers write them into one topic, with the row that each must become."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

START = datetime(2026, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    """One record, its row (None for a dead letter), and the number of its values that are cast."""

    value: bytes
    row: dict[str, Any] | None
    casts: int


def events(count: int, *, seed: int = 1) -> Iterator[Event]:
    chance = random.Random(seed)
    for number in range(count):
        yield _event(number, chance)


def _event(number: int, chance: random.Random) -> Event:
    at = START + timedelta(milliseconds=number * 61_007)
    ms = int(at.timestamp() * 1000)
    row: dict[str, Any] = dict.fromkeys(("id", "kind", "at", "actor", "amount", "first_sku", "app", "others"))
    row |= {"id": str(number), "at": at, "kind": chance.choice(["view", "purchase", "signup", "error", "unknown"])}
    casts = 0

    def form(*forms: tuple[Any, bool]) -> Any:
        nonlocal casts
        value, is_cast = chance.choice(forms)
        casts += is_cast
        return value

    record: dict[str, Any] = {
        "id": form((number, True), (str(number), False)),
        "event": {} if row["kind"] == "unknown" else {"type": row["kind"]},
        "meta": {"sent": form((ms, False), (str(ms), True), (float(ms), True))},
    }
    if chance.random() < 0.8:
        row["actor"] = chance.choice([None, number * 7])
        known, unknown = (
            ((number * 7, False), (str(number * 7), True)),
            (("", False), ("anonymous", False), (None, False)),
        )
        record["actor"] = {"id": form(*(unknown if row["actor"] is None else known))}
    if row["kind"] == "purchase":
        cents = Decimal(chance.randrange(10**6)) / 1000
        row["amount"] = cents.quantize(Decimal("0.01"), ROUND_HALF_UP)
        casts += row["amount"] != cents
        row["first_sku"] = f"a-{number}"
        record["data"] = {
            "amount": float(cents) if chance.random() < 0.5 else str(cents),
            "items": [{"sku": row["first_sku"]}, *([{"sku": 5}] if chance.random() < 0.3 else [])],
        }
    elif row["kind"] == "error":
        record["data"] = {"amount": "N/A"}
    if chance.random() < 0.5:
        row["app"] = "2.1"
        record["client"] = {"app.version": "2.1"}
    if chance.random() < 0.3:
        record["trace"] = {"span": number, "tags": [True, None]}
        row["others"] = f'{{"trace": {json.dumps(record["trace"])}}}'
    if chance.random() < 0.05:
        broken = chance.choice([{**record, "id": None}, {**record, "meta": {"sent": "soon"}}, {**record, "actor": 1}])
        return Event(json.dumps(broken).encode(), None, 0)
    return Event(json.dumps(record).encode(), row, casts)
