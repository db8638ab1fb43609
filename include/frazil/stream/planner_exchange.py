"""What planner and writer tell each other: the planner what it saw, the writer what its batches taught."""

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
    """What the planner saw last: ends of all partitions, or the error that stopped it."""

    ends: Mapping[TopicPartition, int]
    error_type: str | None = None
    error: str | None = None
    began: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where partitions begin that appeared while the writer ran: no marker knows them yet."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets that wait for transactions to end, where there are any."""
    written_at_ms: int = 0
    """Milliseconds since the epoch: Spark asks the planner for nothing while a batch runs, and one that hangs writes
    no more, so the ends may be old."""

    def unread(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How many records wait beyond those offsets, for the topic-partitions where any do."""
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
    """What the planner saw last; None where it has said nothing since the query was opened."""
    raw = _read(exchange, _REPORT)
    maps = {name: flat(raw.get(name, {})) for name in ("ends", "began", "in_transactions")} if raw else {}
    return PlannerReport(**{**raw, **maps}) if raw else None


def clear_report(exchange: Exchange) -> None:
    exchange.clear(_REPORT)


def write_rates(exchange: Exchange, rates: Rates) -> None:
    exchange.write(_RATES, asdict(rates))


def read_rates(exchange: Exchange) -> Rates:
    """The learned rates, or the defaults of a stream that has not committed yet."""
    raw = _read(exchange, _RATES)
    return Rates(**raw) if raw else Rates()


def _read(exchange: Exchange, name: str) -> dict[str, Any] | None:
    """What cannot be read is as what is not there: the next one replaces it."""
    try:
        return dict(exchange.read(name))
    except (ValueError, TypeError):
        return None
