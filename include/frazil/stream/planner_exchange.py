"""The documents that planner and writer exchange: the planner's report, and the rates that the writer measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from frazil.commit.marker import flat, nested
from frazil.host.exchange import Exchange
from frazil.offsets.spans import TopicPartition
from frazil.stream.plan import Rates

_REPORT = "planner.json"
_RATES = "rates.json"


@dataclass(frozen=True, slots=True)
class PlannerReport:
    """The planner's last observation: the ends of all partitions, or the error that stopped it."""

    ends: Mapping[TopicPartition, int]
    error_type: str | None = None
    error: str | None = None
    began: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offsets of partitions that appeared while the writer ran and are in no marker yet."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How many offsets wait for transactions to end, for partitions with any."""
    written_at_ms: int = 0
    """Milliseconds since the epoch. The ends may be old: while a batch runs, Spark does not ask the planner."""

    def unread(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How many records lie beyond those offsets, for topic-partitions with any."""
        starts = {**self.began, **offsets}
        lags = {tp: end - starts.get(tp, 0) for tp, end in self.ends.items()}
        return {tp: lag for tp, lag in lags.items() if lag > 0}


def write_report(exchange: Exchange, report: PlannerReport) -> None:
    value = {
        "ends": nested(report.ends),
        "error_type": report.error_type,
        "error": report.error,
        "began": nested(report.began),
        "in_transactions": nested(report.in_transactions),
        "written_at_ms": report.written_at_ms,
    }
    exchange.write(_REPORT, value)


def read_report(exchange: Exchange) -> PlannerReport | None:
    """The planner's last report; None before its first since the query was opened."""
    raw = _read(exchange, _REPORT)
    maps = {name: flat(raw.get(name, {})) for name in ("ends", "began", "in_transactions")} if raw else {}
    return PlannerReport(**{**raw, **maps}) if raw else None


def clear_report(exchange: Exchange) -> None:
    exchange.clear(_REPORT)


def write_rates(exchange: Exchange, rates: Rates) -> None:
    exchange.write(_RATES, asdict(rates))


def read_rates(exchange: Exchange) -> Rates:
    """The measured rates, or the defaults before the first commit."""
    raw = _read(exchange, _RATES)
    return Rates(**raw) if raw else Rates()


def _read(exchange: Exchange, name: str) -> dict[str, Any] | None:
    """None for a missing or malformed document: the next one replaces it."""
    try:
        return dict(exchange.read(name))
    except (ValueError, TypeError):
        return None
