"""Data that a writer's planner exchanges with the writer's other parts: the planner's observations, and the rates of
batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from frazil.host.exchange import Exchange
from frazil.offsets.spans import TopicPartition
from frazil.stream.plan import Rates

_RATES = "rates.json"


@dataclass(frozen=True, slots=True)
class PlannerReport:
    """The planner's last observation."""

    ends: Mapping[TopicPartition, int]
    """The offsets up to which records may be read."""
    began: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offsets of partitions that appeared while the writer ran and that are not in a marker yet."""
    in_transactions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Number of offsets that wait for transactions to end, by partition. Partitions without such offsets are left out.
    """
    transaction: str = ""
    """The source transaction that the offsets wait for, and what to do, as text; empty if they wait for Kafka's own
    transactions.
    """
    observed_at_ms: int = 0
    """Time of the observation, in milliseconds since 1970."""

    def unread(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the number of records after these offsets, by topic-partition.

        Leaves out topic-partitions without such records.
        """
        starts = {**self.began, **offsets}
        lags = {tp: end - starts.get(tp, 0) for tp, end in self.ends.items()}
        return {tp: lag for tp, lag in lags.items() if lag > 0}


def write_rates(exchange: Exchange, rates: Rates) -> None:
    exchange.write(_RATES, asdict(rates))


def read_rates(exchange: Exchange) -> Rates:
    """Return the rates of earlier batches.

    Returns the defaults before the first commit, and if the stored document is malformed.
    """
    try:
        return Rates(**dict(exchange.read(_RATES)))
    except (ValueError, TypeError):
        return Rates()
